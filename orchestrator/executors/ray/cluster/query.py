"""Questions to a cluster, put by a child process: Ray aborts a process where something is wrong, and talks a lot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.text import last_line
from orchestrator.executors.process import package_path
from orchestrator.executors.ray.cluster import address, cluster_token

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
    answer = _ask("metadata", cluster, cluster_token.environment(insecure=insecure, loopback=_is_loopback(cluster)))
    return answer if isinstance(answer, Refused | Silent) else Metadata(ray=answer["ray"], python=answer["python"])


def check(cluster: str, *, insecure: bool) -> None:
    """Whether this machine and the cluster whose head answers at ``cluster`` should have to do with each other.

    :param insecure: whether it may be a cluster that takes everyone; then it must be one.
    :raises UsageError: it does not take our token, it is not as ``insecure`` says, what answers is no head, its Ray or
        its Python is another than ours, or there is no good token here.
    """
    with ThreadPoolExecutor() as both:  # each question costs the start of a process
        asked_without = both.submit(metadata, cluster, insecure=True)
        asked = asked_without if insecure else both.submit(metadata, cluster, insecure=False)
    without = asked_without.result()
    if insecure and isinstance(without, Refused):
        raise UsageError(
            f"{cluster}: this cluster wants a token; copy the file from the machine of its head to"
            f" {cluster_token.token_file()}, and leave --insecure out"
        )
    if not insecure and isinstance(without, Metadata):
        raise UsageError(
            f"{cluster}: this cluster takes everyone, without a token: whoever reaches it can run code on its nodes. "
            "Start it anew without --insecure; or join it with --insecure"
        )
    answer = asked.result()
    if isinstance(answer, Refused):
        where = (
            f"the environment's {cluster_token.TOKEN_VARIABLE}"
            if os.environ.get(cluster_token.TOKEN_VARIABLE)
            else cluster_token.token_file()
        )
        raise UsageError(
            f"{cluster}: this cluster has another token than {where}; copy the file from the machine of its head"
        )
    if isinstance(answer, Silent):
        raise UsageError(f"{cluster}: what listens there is no head of a cluster, or not a working one ({answer.why})")
    here = Metadata(ray=cluster_token.require_ray(), python=".".join(map(str, sys.version_info[:3])))
    if answer.ray != here.ray or answer.python.split(".")[:2] != here.python.split(".")[:2]:
        raise UsageError(
            f"{cluster}: its head has Ray {answer.ray} on Python {answer.python}, this machine Ray {here.ray} on "
            f"Python {here.python}; all nodes need the same Ray, and the same Python up to the second number"
        )


def facts(cluster: str) -> dict[str, Any]:
    """All that :mod:`orchestrator.executors.ray.cluster.query_child` finds out about a cluster that this machine is a
    node of.

    :raises UsageError: there is no good token here, or it is not that cluster's.
    :raises OrchestratorError: the cluster does not answer.
    """
    if why := address.answers(*address.parse(cluster)):
        raise OrchestratorError(f"{cluster}: the head does not answer ({why})")
    answer = _ask("facts", cluster, cluster_token.client_environment(cluster))
    if isinstance(answer, Refused):
        raise UsageError(
            f"{cluster}: the cluster does not take the token in {cluster_token.token_file()}; copy it from"
            " its head's machine"
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
        if not name.startswith("RAY_") or name == cluster_token.TOKEN_VARIABLE
    }
    limits = {"RAY_py_gcs_connect_timeout_s": "10", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.executors.ray.cluster.query_child", what, cluster],
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
        return Silent(last_line(done.stderr, f"exit code {done.returncode}"))
    if "refused" in answer:
        return Refused()
    return Silent(answer["silent"]) if "silent" in answer else answer
