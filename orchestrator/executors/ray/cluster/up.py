"""``cluster up`` and ``cluster join``: a node of a cluster on this machine, by ``ray start``."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.core.environment import TOKEN_VARIABLE
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.text import count
from orchestrator.executors.process import package_path
from orchestrator.executors.ray.cluster import address, cluster_token, node_settings, node_state, query
from orchestrator.executors.ray.cluster.down import end
from orchestrator.executors.ray.cluster.node_settings import ResourceOffer
from orchestrator.executors.ray.cluster.node_state import LocalNode
from orchestrator.machine import topology
from orchestrator.machine.cpu_locks import shared_directory

START_S = 120.0
PASSED = (cluster_token.TOKEN_VARIABLE, cluster_token.TOKEN_FILE_VARIABLE)
"""Of the variables that are Ray's, those that we pass on; the others would change what we set."""
LAST_WORDS = 8
"""Lines of each log, when something has gone wrong."""
START_LOG = "start.log"
LOGS = [f"session_2*/logs/{name}" for name in ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err")]

_RAY = """
import resource
from ray._private import services
from ray.scripts.scripts import main
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
if not hasattr(services, "resolve_ip_for_localhost"):
    raise SystemExit("this version of Ray would listen on all interfaces, whatever it is told")
services.resolve_ip_for_localhost = lambda host: host
main()
"""
"""Ray's own command, as its ``ray`` program runs it. Two things are different: as many open files as this user may have
(each node and worker is a connection); and 127.0.0.1 stays what it is. Ray puts the machine's outward address in its
place, and then listens on all interfaces although it was told not to."""


def up(*, host: str | None = None, port: int = address.DEFAULT_PORT, insecure: bool = False) -> list[str]:
    """Start the head of a new cluster here. Returns what to tell the user.

    :param host: this machine's address for the others; None: the one on its way to everywhere else.
    :raises UsageError: something runs here already, the address is not ours or taken, or there is no good token.
    """
    cluster_token.require_ray()
    with node_state.alone():
        _nothing_runs()
        own = address.lookup(host) if host is not None else address.outward() or cluster_token.LOOPBACK[0]
        address.check_own(own, port)
        _check_mode(insecure)
        if not insecure and not cluster_token.has_token():
            cluster_token.create_token()
        offer = node_settings.offer(topology.detect(with_gpus=True))
        cluster = address.joined(own, port)
        options = ["--head", f"--port={port}", "--include-dashboard=false", "--disable-usage-stats", "--no-monitor"]
        node = _start("head", cluster, own, offer, options, insecure=insecure)
    return _told_of_head(node, offer, own)


def join(head: str, *, host: str | None = None, insecure: bool = False) -> list[str]:
    """Make this machine a node of the cluster whose head is at ``head`` (``HOST:PORT``). Returns what to tell the user.

    :raises UsageError: there is no such cluster, it does not take our token, its versions differ, or something runs
        here already.
    """
    cluster_token.require_ray()
    with node_state.alone():
        _nothing_runs()
        there, port = address.parse(head, address.DEFAULT_PORT)
        cluster = address.joined(there, port)
        own = address.lookup(host) if host is not None else address.own(there)
        address.check_own(own)
        _check_mode(insecure)
        if why := address.answers(there, port):
            raise UsageError(
                f"{cluster}: no head of a cluster answers ({why}); is `cluster up` running there, and the port open?"
            )
        query.check(cluster, insecure=insecure)
        offer = node_settings.offer(topology.detect(with_gpus=True))
        _start("node", cluster, own, offer, [f"--address={cluster}"], insecure=insecure)
    return [f"joined the cluster at {cluster} as {own}: {_brings(offer)}"]


def _nothing_runs() -> None:
    node = node_state.load()
    if node is None:
        return
    living = node.living()
    if not living:
        _remove(node)
        return
    what = "the head of a cluster" if node.role == "head" else f"a node of the cluster at {node.cluster}"
    broken = "" if node.is_whole() else "what is left of "
    raise UsageError(
        f"this machine runs {broken}{what} already ({node.address}, since {node.started}, "
        f"{count(len(living), 'process', 'processes')}); `cluster status` shows it, `cluster down` ends it"
    )


def _check_mode(insecure: bool) -> None:
    mode = os.environ.get(cluster_token.MODE_VARIABLE, "token").lower()
    if mode != "token" and not insecure:
        raise UsageError(
            f"{cluster_token.MODE_VARIABLE}={mode} in the environment turns authentication off: everyone who reaches"
            " this machine could run code on it. Unset it; or say --insecure"
        )


def _start(
    role: node_state.Role, cluster: str, own: str, offer: ResourceOffer, options: Sequence[str], *, insecure: bool
) -> LocalNode:
    """Run ``ray start``, and record what runs since. :raises OrchestratorError: it failed; nothing of it is left."""
    authentication = cluster_token.environment(insecure=insecure)
    mark = secrets.token_hex(16)
    directory = _directory(mark)
    node = LocalNode(
        role=role,
        cluster=cluster,
        address=own,
        insecure=insecure,
        mark=mark,
        directory=str(directory),
        started=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        boot=node_state.boot(),
    )
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name in PASSED},
        **node_settings.process_variables(),
        **package_path(),
        **authentication,
        TOKEN_VARIABLE: mark,
    }
    command = [
        *(sys.executable, "-W", "ignore", "-c", _RAY, "start", *options, f"--node-ip-address={own}"),
        *(f"--temp-dir={directory}", "--include-log-monitor=false", *offer.arguments()),
    ]
    node_state.save(node)  # before anything runs: whatever happens now, `down` finds it
    try:
        failed = _run(command, variables, directory / START_LOG)
        node = _recorded(node)
        if failed is not None:
            raise OrchestratorError(
                "\n  ".join([f"`ray start` {failed}; last words:", *_last_words(directory, START_LOG, *LOGS)])
            )
        if not node.is_whole():
            raise OrchestratorError(
                "\n  ".join(["Ray has ended again at once; its last words:", *_last_words(directory, *LOGS)])
            )
    except BaseException:
        end(node)
        node_state.forget()
        raise
    return node


def _run(command: Sequence[str], variables: Mapping[str, str], log: Path) -> str | None:
    """In a session of its own: the terminal's Ctrl-C and hang-up are not for a cluster. Returns how it failed."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env=variables,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(START_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    if code is None:
        return f"did not end within {START_S:g} s"
    return f"failed with exit code {code}" if code else None


def _last_words(directory: Path, *logs: str) -> list[str]:
    """Of the ``logs`` below ``directory``, which will be gone with it."""
    lines = []
    for log in (log for pattern in logs for log in directory.glob(pattern)):
        said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        lines += [f"{log.name}: {line}" for line in said[-LAST_WORDS:]]
    return lines


def _recorded(node: LocalNode) -> LocalNode:
    node = dataclasses.replace(node, processes=node_state.marked(node.mark))
    node_state.save(node)
    return node


def _directory(mark: str) -> Path:
    """Ray makes its own directories open to everyone; so it gets one that only we can enter."""
    ours = shared_directory()
    if ours is None:
        raise UsageError(
            "the directory for temporary files has no place for us that others cannot write to; set TMPDIR to one of "
            "your own"
        )
    path = ours / f"ray-{mark[:6]}"
    if len(str(path)) > node_settings.LONGEST_DIRECTORY:
        raise UsageError(
            f"{ours}: the path is too long for the sockets of Ray (at most {node_settings.LONGEST_DIRECTORY - 11} "
            "characters); set TMPDIR to a shorter one"
        )
    path.mkdir(mode=0o700)
    return path


def _remove(node: LocalNode) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(node.directory)
    node_state.forget()


def _brings(offer: ResourceOffer) -> str:
    gpus = f", {count(offer.gpus, 'GPU')}" if offer.gpus else ""
    return f"{count(offer.cores, 'core')}{gpus}, {offer.memory_mib:,} MiB for jobs"


def _told_of_head(node: LocalNode, offer: ResourceOffer, own: str) -> list[str]:
    lines = [f"the head of a cluster is up at {node.cluster}: {_brings(offer)}"]
    command = f"python -m orchestrator cluster join {node.cluster}"
    if node.insecure:
        lines.append("WARNING: without authentication; whoever reaches this machine can run code on it")
        lines.append(f"to add a machine, say there:  {command} --insecure")
    elif address.is_loopback(own):
        lines.append("only this machine can reach it; for others, `cluster down`, then `cluster up --address ADDRESS`")
    elif os.environ.get(cluster_token.TOKEN_VARIABLE):
        lines.append(
            f"to add a machine, say there, with the same {cluster_token.TOKEN_VARIABLE} in its environment:  {command}"
        )
    else:
        file = cluster_token.token_file()
        there = _below_home(file)
        lines.append(
            f"to add a machine, say there:  mkdir -p {Path(there).parent} && scp {own}:{file} {there} && {command}"
        )
    lines.append(
        f"to train on it, say here:  python -m orchestrator run JOBS.toml --executor ray --ray-address {node.cluster}"
    )
    return lines


def _below_home(path: Path) -> str:
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)
