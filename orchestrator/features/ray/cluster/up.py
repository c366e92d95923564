"""``cluster up`` and ``cluster join``: start a node of a cluster on this machine, by ``ray
start``.
"""

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

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.processes.child_process import package_path
from orchestrator.core.processes.environment_variables import TOKEN_VARIABLE
from orchestrator.core.text import count
from orchestrator.features.ray.cluster import (
    address,
    cluster_token,
    node_settings,
    node_state,
    query,
)
from orchestrator.features.ray.cluster.down import end
from orchestrator.features.ray.cluster.node_settings import ResourceOffer
from orchestrator.features.ray.cluster.node_state import LocalNode
from orchestrator.machine import topology
from orchestrator.machine.process_identity import boot_id
from orchestrator.machine.users import private_directory

START_S = 120.0
INHERITED = (cluster_token.TOKEN_VARIABLE, cluster_token.TOKEN_FILE_VARIABLE)
"""Variables of Ray that its processes inherit; the others would change what this program sets."""
LOG_TAIL_LINES = 8
START_LOG = "start.log"
RAY_LOGS = [
    f"session_2*/logs/{name}"
    for name in ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err")
]
RAY_PROGRAM = "from orchestrator.features.ray.internals import ray_command; ray_command()"


def up(
    *, host: str | None = None, port: int = address.DEFAULT_PORT, insecure: bool = False
) -> list[str]:
    """Start the head of a new cluster here. Returns lines for the user.

    :param host: this machine's address for the others; None: the one on its default route.
    :raises UsageError: a node runs here already, the address is not this machine's or is taken, or
        there is no valid token.
    """
    cluster_token.require_ray()
    with node_state.exclusive():
        _check_nothing_runs()
        own = address.lookup(host) if host is not None else address.outward()
        address.check_own(own, port)
        _check_mode(insecure)
        if not insecure and not cluster_token.has_token():
            cluster_token.create_token()
        offer = node_settings.offer(topology.detect(with_gpus=True))
        cluster = address.host_port(own, port)
        options = [
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            "--disable-usage-stats",
            "--no-monitor",
        ]
        node = _start("head", cluster, own, offer, options, insecure=insecure)
    return _head_lines(node, offer, own)


def join(head: str, *, host: str | None = None, insecure: bool = False) -> list[str]:
    """Make this machine a node of the cluster whose head is at ``head`` (``HOST:PORT``). Returns
    lines for the user.

    :raises UsageError: there is no such cluster, it refuses our token, its versions differ, or a
        node runs here already.
    """
    cluster_token.require_ray()
    with node_state.exclusive():
        _check_nothing_runs()
        head_host, port = address.parse(head, address.DEFAULT_PORT)
        cluster = address.host_port(head_host, port)
        own = address.lookup(host) if host is not None else address.own(head_host)
        address.check_own(own)
        _check_mode(insecure)
        why = address.connect_error(head_host, port)
        if why:
            question = "is `cluster up` running there, and the port open?"
            raise UsageError(f"{cluster}: no head of a cluster answers ({why}); {question}")
        query.check(cluster, insecure=insecure)
        offer = node_settings.offer(topology.detect(with_gpus=True))
        _start("node", cluster, own, offer, [f"--address={cluster}"], insecure=insecure)
    return [f"joined the cluster at {cluster} as {own}: {_offer_text(offer)}"]


def _check_nothing_runs() -> None:
    """:raises UsageError: a node runs here."""
    node = node_state.load()
    if node is None:
        return
    running = node.running_processes()
    if not running:
        with contextlib.suppress(FileNotFoundError):  # a restart has removed it
            shutil.rmtree(node.directory)
        node_state.delete()
        return
    broken = "" if node.is_intact() else "what is left of "
    raise UsageError(
        f"this machine runs {broken}{node} already ({node.address}, since {node.started}, "
        f"{count(len(running), 'process', 'processes')}); `cluster status` shows it, `cluster down` ends it"
    )


def _check_mode(insecure: bool) -> None:
    """:raises UsageError: authentication is turned off, and not on purpose."""
    mode = os.environ.get(cluster_token.MODE_VARIABLE, "token").lower()
    if mode != "token" and not insecure:
        raise UsageError(
            f"{cluster_token.MODE_VARIABLE}={mode} in the environment turns authentication off: whoever reaches this"
            " machine could run code on it. Unset the variable, or add --insecure"
        )


def _start(
    role: node_state.Role,
    cluster: str,
    own: str,
    offer: ResourceOffer,
    options: Sequence[str],
    *,
    insecure: bool,
) -> LocalNode:
    """Run ``ray start``, and record its processes. :raises OrchestratorError: it failed; nothing of
    it is left.
    """
    authentication = cluster_token.environment(insecure=insecure)
    mark = secrets.token_hex(16)
    directory = _create_directory(mark)
    node = LocalNode(
        role=role,
        cluster=cluster,
        address=own,
        insecure=insecure,
        mark=mark,
        directory=str(directory),
        started=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        boot=boot_id(),
    )
    variables = _variables(authentication, mark)
    command = _command(directory, own, offer, options)
    node_state.save(node)  # before anything runs, so that `cluster down` finds it whatever happens
    try:
        failure = _run(command, variables, directory / START_LOG)
        node = dataclasses.replace(node, processes=node_state.processes_with(node.mark))
        node_state.save(node)
        if failure is not None:
            raise _start_error(f"`ray start` {failure}", directory, START_LOG, *RAY_LOGS)
        if not node.is_intact():
            raise _start_error("Ray ended immediately after its start", directory, *RAY_LOGS)
    except BaseException:
        end(node)
        node_state.delete()
        raise
    return node


def _variables(authentication: Mapping[str, str], mark: str) -> dict[str, str]:
    """The environment of ``ray start``. :param mark: by which its processes are found."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") or name in INHERITED
    }
    return {
        **inherited,
        **node_settings.process_variables(),
        **package_path(),
        **authentication,
        TOKEN_VARIABLE: mark,
    }


def _command(directory: Path, own: str, offer: ResourceOffer, options: Sequence[str]) -> list[str]:
    """``ray start`` with ``options``, on this machine at the address ``own``."""
    return [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        RAY_PROGRAM,
        "start",
        *options,
        f"--node-ip-address={own}",
        f"--temp-dir={directory}",
        "--include-log-monitor=false",
        *offer.arguments(),
    ]


def _run(command: Sequence[str], variables: Mapping[str, str], log: Path) -> str | None:
    """Run in a session of its own, so that the terminal's Ctrl-C and hang-up do not reach the
    cluster.

    Returns how it failed; None if it did not.
    """
    try:
        with log.open("wb") as output:
            child = subprocess.run(
                command,
                env=variables,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=START_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"did not end within {START_S:g} s"
    return f"failed with exit code {child.returncode}" if child.returncode else None


def _start_error(what: str, directory: Path, *patterns: str) -> OrchestratorError:
    """With the last lines of the logs, which are removed together with ``directory``."""
    lines = [f"{what}. The last lines of its logs:"]
    for pattern in patterns:
        for log in directory.glob(pattern):
            text = log.read_text(encoding="utf-8", errors="replace")
            content = [line for line in text.splitlines() if line.strip()]
            lines += [f"{log.name}: {line}" for line in content[-LOG_TAIL_LINES:]]
    return OrchestratorError("\n  ".join(lines))


def _create_directory(mark: str) -> Path:
    """A directory accessible to its owner only: what Ray creates in it is accessible to
    everyone.
    """
    parent = private_directory()
    if parent is None:
        why = "the directory for temporary files has no place that other users cannot write to"
        raise UsageError(f"{why}; set TMPDIR to a directory of your own")
    path = parent / f"ray-{mark[:6]}"
    if len(str(path)) > node_settings.LONGEST_DIRECTORY:
        why = f"the path is too long for the sockets of Ray (at most {node_settings.LONGEST_DIRECTORY - 11} characters)"
        raise UsageError(f"{parent}: {why}; set TMPDIR to a shorter one")
    path.mkdir(mode=0o700)
    return path


def _offer_text(offer: ResourceOffer) -> str:
    gpus = f", {count(offer.gpus, 'GPU')}" if offer.gpus else ""
    return f"{count(offer.cores, 'core')}{gpus}, {offer.memory_mib:,} MiB for jobs"


def _head_lines(node: LocalNode, offer: ResourceOffer, own: str) -> list[str]:
    lines = [f"the head of a cluster runs at {node.cluster}: {_offer_text(offer)}"]
    join_command = f"python -m orchestrator cluster join {node.cluster}"
    if node.insecure:
        lines += [
            "WARNING: no authentication; whoever reaches this machine can run code on it",
            f"to add a machine, run there:  {join_command} --insecure",
        ]
    elif address.is_loopback(own):
        lines.append(
            "only this machine can reach it; for other machines, run `cluster down` and `cluster up --address ADDRESS`"
        )
    elif os.environ.get(cluster_token.TOKEN_VARIABLE):
        variable = cluster_token.TOKEN_VARIABLE
        lines.append(
            f"to add a machine, run there, with the same {variable} in its environment:  {join_command}"
        )
    else:
        file = cluster_token.token_file()
        copy = str(file)
        if file.is_relative_to(Path.home()):
            copy = f"~/{file.relative_to(Path.home())}"
        lines.append(
            f"to add a machine, run there:  mkdir -p {Path(copy).parent} && scp {own}:{file} {copy} && {join_command}"
        )
    run_command = (
        f"python -m orchestrator run JOBS.toml --executor ray --ray-address {node.cluster}"
    )
    return [*lines, f"to train on it, run here:  {run_command}"]
