"""Queries to a cluster, in a child process: Ray aborts its process on some errors, and prints many
messages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.processes.child_process import package_path
from orchestrator.core.text import last_line
from orchestrator.features.ray.cluster import address, cluster_token

TIMEOUT_S = 90.0
"""Of a query: a process starts, imports Ray, connects, and waits for the answers of the nodes."""


@dataclass(frozen=True, slots=True)
class TokenRefused:
    """The cluster does not accept our token, or requires one."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    why: str


@dataclass(frozen=True, slots=True)
class HeadVersions:
    ray: str
    python: str


def head_versions(cluster: str, *, insecure: bool) -> HeadVersions | TokenRefused | NoAnswer:
    """:param insecure: ask without a token. :raises UsageError: there is no valid token here."""
    loopback = address.is_loopback(address.parse(cluster)[0])
    answer = _query(
        "metadata", cluster, cluster_token.environment(insecure=insecure, loopback=loopback)
    )
    return HeadVersions(**answer) if isinstance(answer, dict) else answer


def check(cluster: str, *, insecure: bool) -> None:
    """Check that this machine can use the cluster whose head is at ``cluster``.

    :param insecure: whether it is a cluster without authentication.
    :raises UsageError: it refuses our token, it is not as ``insecure`` says, something else listens
        there, its version of Ray or Python differs from ours, or there is no valid token here.
    """
    with ThreadPoolExecutor() as executor:  # each query costs the start of a process
        without_token = executor.submit(head_versions, cluster, insecure=True)
        ours = (
            without_token if insecure else executor.submit(head_versions, cluster, insecure=False)
        )
    open_answer = without_token.result()
    if insecure and isinstance(open_answer, TokenRefused):
        copy = f"copy the file from the machine of its head to {cluster_token.token_file()}"
        raise UsageError(f"{cluster}: this cluster requires a token; {copy}, and omit --insecure")
    if not insecure and isinstance(open_answer, HeadVersions):
        danger = "whoever reaches it can run code on its nodes"
        advice = "Restart it without --insecure, or join it with --insecure"
        raise UsageError(f"{cluster}: this cluster has no authentication: {danger}. {advice}")
    answer = ours.result()
    if isinstance(answer, TokenRefused):
        raise _other_token(cluster)
    if isinstance(answer, NoAnswer):
        raise UsageError(
            f"{cluster}: what listens there is not a working head of a cluster ({answer.why})"
        )
    here = HeadVersions(
        ray=cluster_token.require_ray(), python=".".join(map(str, sys.version_info[:3]))
    )
    if answer.ray != here.ray or answer.python.split(".")[:2] != here.python.split(".")[:2]:
        raise UsageError(
            f"{cluster}: its head has Ray {answer.ray} on Python {answer.python}, this machine Ray {here.ray} on Python"
            f" {here.python}; all nodes need the same Ray, and the same minor version of Python"
        )


def facts(cluster: str) -> dict[str, Any]:
    """What :mod:`orchestrator.features.ray.cluster.query_child` reports about a cluster that has a
    node here.

    :raises UsageError: there is no valid token here, or the cluster refuses it.
    :raises OrchestratorError: the cluster does not answer.
    """
    if why := address.connect_error(*address.parse(cluster)):
        raise OrchestratorError(f"{cluster}: the head does not answer ({why})")
    answer = _query("facts", cluster, cluster_token.client_environment(cluster))
    if isinstance(answer, TokenRefused):
        raise _other_token(cluster)
    if isinstance(answer, NoAnswer):
        raise OrchestratorError(f"{cluster}: the cluster does not answer: {answer.why}")
    return answer


def _other_token(cluster: str) -> UsageError:
    file = cluster_token.token_file()
    advice = f"copy the file {file} from the machine of its head"
    if not os.environ.get(cluster_token.TOKEN_VARIABLE):
        return UsageError(f"{cluster}: this cluster has another token than {file}; {advice}")
    variable = f"the environment's {cluster_token.TOKEN_VARIABLE}"
    return UsageError(
        f"{cluster}: this cluster has another token than {variable}; correct the variable, or unset"
        f" it and {advice}"
    )


def _query(
    what: str, cluster: str, variables: dict[str, str]
) -> dict[str, Any] | TokenRefused | NoAnswer:
    kept = cluster_token.TOKEN_VARIABLE
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") or name == kept
    }
    limits = {"RAY_py_gcs_connect_timeout_s": "10", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "orchestrator.features.ray.cluster.query_child", what, cluster],
            env={**inherited, **limits, **package_path(), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NoAnswer(f"no answer within {TIMEOUT_S:g} s")
    try:
        answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return NoAnswer(last_line(child.stderr, f"exit code {child.returncode}"))
    if "refused" in answer:
        return TokenRefused()
    return NoAnswer(answer["silent"]) if "silent" in answer else answer
