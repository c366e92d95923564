"""Questions to a cluster, put by a child process: Ray aborts a process where something is wrong, and talks a lot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster import access, address
from orchestrator.errors import OrchestratorError, UsageError
from orchestrator.executors.process import package_path

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Refused:
    """The cluster does not take our token, or wants one."""


@dataclass(frozen=True, slots=True)
class Silent:
    """There is no answer."""

    why: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a head says of itself."""

    ray: str
    python: str


def metadata(cluster: str, *, insecure: bool) -> Metadata | Refused | Silent:
    """The versions of the head at ``cluster``.

    :param insecure: ask without a token.
    :raises UsageError: there is no good token here.
    """
    answer = _ask("metadata", cluster, access.environment(insecure=insecure, loopback=_is_loopback(cluster)))
    return answer if isinstance(answer, Refused | Silent) else Metadata(ray=answer["ray"], python=answer["python"])


def facts(cluster: str) -> dict[str, Any]:
    """All that :mod:`orchestrator.cluster.inside` finds out about a cluster that this machine is a node of.

    :raises UsageError: there is no good token here, or it is not that cluster's.
    :raises OrchestratorError: the cluster does not answer.
    """
    if why := address.answers(*address.parse(cluster)):
        raise OrchestratorError(f"{cluster}: the head does not answer ({why})")
    answer = _ask("facts", cluster, access.client_environment(cluster))
    if isinstance(answer, Refused):
        raise UsageError(
            f"{cluster}: the cluster does not take the token in {access.token_file()}; copy it from its head's machine"
        )
    if isinstance(answer, Silent):
        raise OrchestratorError(f"{cluster}: the cluster does not answer: {answer.why}")
    return answer


def _is_loopback(cluster: str) -> bool:
    return address.is_loopback(address.parse(cluster)[0])


def _ask(what: str, cluster: str, variables: dict[str, str]) -> dict[str, Any] | Refused | Silent:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") or name == access.TOKEN_VARIABLE
    }
    limits = {"RAY_py_gcs_connect_timeout_s": "10", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.cluster.inside", what, cluster],
            env={**kept, **limits, **package_path(), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Silent(f"no answer within {PATIENCE_S:g} s")
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return Silent(said[-1] if said else f"exit code {done.returncode}")
    if "refused" in answer:
        return Refused()
    return Silent(answer["silent"]) if "silent" in answer else answer
