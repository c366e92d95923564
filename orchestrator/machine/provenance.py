"""``provenance.json``: versions, git commit, machine and settings that results come from.

Of the environment only the variables that decide thread counts are recorded, because others may
hold secrets.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.core.decoding import parsed_json
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import spawn
from orchestrator.core.text import joined
from orchestrator.machine.topology import Machine, cpu_model, online_cpus

GIT_PATIENCE_S = 2.0
OURS = "mujoco-orchestrator"
PACKAGES = (OURS, "torch", "stable-baselines3", "gymnasium", "mujoco", "numpy", "psutil")
PACKAGE = Path(__file__).parents[1]
CODE = "code of orchestrator"
OPTIONAL = ("sb3-contrib",)
"""Packages with algorithms, recorded where they are installed."""
DECIDING = ("torch", "stable-baselines3", "gymnasium", "mujoco", "numpy", CODE)
"""Packages that change results. So does Python's minor version: with another one, pickles may not
even load."""

Versions: TypeAlias = Mapping[str, str | None]


def version(name: str) -> str | None:
    """Version of an installed distribution, from its metadata; None when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages, without optional ones that are missing."""
    optional = {name: found for name in OPTIONAL if (found := version(name)) is not None}
    packages = {name: version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages, **optional}


@functools.cache
def installed_versions() -> Versions:
    """The versions here; for this package also a hash of its code, as a checkout changes without a
    new version.
    """
    return {**versions(), CODE: _hash_of_code()}


def _hash_of_code() -> str:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDifferences:
    """A line each: ``numpy 2.1.0, here 2.4.6``."""

    deciding: tuple[str, ...]
    """Those that may change results."""
    others: tuple[str, ...]


def differences(here: Versions, there: Versions, *, word: str = "here") -> VersionDifferences:
    """Between the versions of this process and those of another machine or an earlier session.

    :param word: what stands before the version of this process.
    """
    deciding: list[str] = []
    others: list[str] = []
    for name in {**here, **there}:
        ours = here.get(name)
        theirs = there.get(name)
        if ours != theirs:
            line = f"{name} {theirs or 'missing'}, {word} {ours or 'missing'}"
            if _changes_results(name, ours, theirs):
                deciding.append(line)
            else:
                others.append(line)
    return VersionDifferences(deciding=tuple(deciding), others=tuple(others))


def _changes_results(name: str, ours: str | None, theirs: str | None) -> bool:
    if name == "python":
        return (ours or "").split(".")[:2] != (theirs or "").split(".")[:2]
    if name in OPTIONAL:  # where one is missing, the jobs that need it fail
        return None not in (ours, theirs)
    # After the plus sign follows the accelerator of the build: on a CPU all builds compute the
    # same.
    return name in DECIDING and (ours or "").partition("+")[0] != (theirs or "").partition("+")[0]


class Repository:
    """Asks git for the commit of the job file, in the background because git is slow in large
    repositories.
    """

    def __init__(self, base: Path) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        # With optional locks git could make a command of the user fail.
        command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40"]
        with contextlib.suppress(OSError):  # git is not installed
            self._child = spawn([*command, "--exclude=*"], folder=base, stdout=subprocess.PIPE)

    def facts(self) -> dict[str, Any] | None:
        """Commit, and whether files were changed since; None outside of a repository, or when git
        does not answer.
        """
        if self._child is None:
            return None
        try:
            answer = self._child.communicate(timeout=GIT_PATIENCE_S)[0].decode().strip()
        except subprocess.TimeoutExpired:
            return None
        if self._child.returncode != 0:
            return None
        return {"commit": answer.removesuffix("-dirty"), "dirty": answer.endswith("-dirty")}

    def close(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            self._child.communicate()


def record(
    paths: RunPaths,
    *,
    experiment: str,
    command: Sequence[str],
    thread_variables: Mapping[str, str | None],
    machine: Machine,
    jobs_at_once: int,
    repository: Repository,
    started_with: Mapping[str, Any],
    backend: Mapping[str, Any],
    user_code: Mapping[str, str],
    declared: Mapping[str, Any] | None = None,
    resumed_by: str = "",
) -> list[str]:
    """Append this session to the list in ``provenance.json``.

    :param experiment: its name.
    :param command: the arguments of the process that has started the run.
    :param thread_variables: those of its environment.
    :param started_with: what :func:`started_with` returns later.
    :param backend: facts about it.
    :param user_code: folder that jobs import Python code from → a hash of its Python files.
    :param declared: job file and options from which the jobs were made, as :func:`declaration`
        returns it.
    :param resumed_by: what :func:`resumed_by` returns later.
    :returns: what may change results and is not as in the session before, a line each.
    """
    sessions = _sessions(paths)
    session = {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "experiment": experiment,
        "command": list(command),
        **(declared or {}),
        **({"resumed_by": resumed_by} if resumed_by else {}),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "versions": dict(installed_versions()),
        "user_code": dict(user_code),
        "cpu_model": cpu_model(),
        "git": repository.facts(),
        "cpus": [asdict(cpu) for cpu in machine.cpus],
        "online_cpus": len(online_cpus()) or None,
        "physical_cores": machine.physical_cores,
        "cpu_quota": machine.quota,
        "memory_total_mib": machine.memory_total_mib,
        "gpus": [asdict(gpu) for gpu in machine.gpus],
        "jobs_at_once": jobs_at_once,
        "started_with": dict(started_with),
        **backend,
        "thread_variables": dict(thread_variables),
    }
    changed = _changes(sessions[-1], session) if sessions else []
    sessions.append(session)
    write_whole(paths.provenance, json.dumps(sessions, indent=1) + "\n")
    return changed


def _sessions(paths: RunPaths) -> list[dict[str, Any]]:
    try:
        found = parsed_json(read_regular(paths.provenance))
    except FileNotFoundError:
        return []
    except (OSError, ValueError):  # damaged, by a full disk for example
        return [{"note": "an earlier provenance.json could not be read"}]
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def declaration(paths: RunPaths) -> Mapping[str, Any]:
    """Job file and options from which the jobs of ``paths`` were made last; empty where that is not
    recorded.
    """
    return _latest(paths, {"job_file": str, "overrides": dict})


def resumed_by(paths: RunPaths) -> str | None:
    """What resumes the run of the last session: a clause with ``{run_dir}``; None where none is
    recorded.
    """
    sessions = _sessions(paths)
    text = sessions[-1].get("resumed_by") if sessions else None
    return text if isinstance(text, str) else None


def started_with(paths: RunPaths) -> Mapping[str, Any]:
    """What the user gave the run of the last session on the command line, or around it; empty where
    that is not recorded.
    """
    found: Mapping[str, Any] = _latest(paths, {"started_with": dict}).get("started_with", {})
    return found


def executor(paths: RunPaths) -> Mapping[str, Any]:
    """Facts about the backend of the last session of ``paths``, with its name as ``executor``;
    empty if not recorded.

    See :meth:`orchestrator.executors.executor.OpenedExecutor.facts`.
    """
    return _latest(paths, {"executor": str})


def _latest(paths: RunPaths, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The last session that has recorded all keys of ``kinds``; empty where there is none."""
    for session in reversed(_sessions(paths)):
        if all(isinstance(session.get(key), kind) for key, kind in kinds.items()):
            return dict(session)
    return {}


def experiment_name(paths: RunPaths) -> str:
    """The name of the experiment in ``paths``; that of the directory where none is recorded."""
    name: str = _latest(paths, {"experiment": str}).get("experiment", "")
    return name or paths.root.resolve().name


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two sessions, as far as both recorded it."""
    lines: list[str] = []
    if isinstance(versions := before.get("versions"), Mapping):
        theirs = {
            name: None if version is None else str(version) for name, version in versions.items()
        }
        ours = {name: now["versions"].get(name) for name in theirs}
        lines += differences(ours, theirs, word="now").deciding
    cpus_before = _cpu_models(before)
    cpus_now = _cpu_models(now)
    if cpus_before and not cpus_now <= cpus_before:
        lines.append(f"CPU {joined(sorted(cpus_before))}, now {joined(sorted(cpus_now))}")
    if isinstance(hashes := before.get("user_code"), Mapping) and hashes:
        changed = [
            folder for folder, digest in now["user_code"].items() if digest not in hashes.values()
        ]
        lines += [f"Python files below {folder}" for folder in changed]
    return lines


def _cpu_models(session: Mapping[str, Any]) -> set[str]:
    """The CPUs that trained: those of a cluster's nodes, or that of this machine; empty if not
    recorded.
    """
    nodes = session.get("nodes")
    trained_on = nodes if isinstance(nodes, list) and nodes else [session]
    return {
        str(one["cpu_model"])
        for one in trained_on
        if isinstance(one, Mapping) and one.get("cpu_model")
    }
