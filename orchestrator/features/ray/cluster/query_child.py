"""The child process that queries a cluster by Ray: ``python -m
orchestrator.features.ray.cluster.query_child WHAT HOST:PORT``.

WHAT is ``metadata`` or ``facts``. Prints one line of JSON: the answer, ``{"refused": …}`` or
``{"silent": …}``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import AuthenticationError, RayError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.features.ray import internals
from orchestrator.features.ray.cluster.node_state import address_in
from orchestrator.features.ray.node_agent import NAME_PREFIX, NAMESPACE

NODES_TIMEOUT_S = 30.0
"""Time limit for the answers of all nodes together: each has to start a process first, which
imports Ray; on a busy machine that has taken more than 10 s."""


def metadata(cluster: str) -> dict[str, Any]:
    text = internals.cluster_metadata(cluster)
    if text is None:
        return {"silent": "it does not report its version"}
    versions = json.loads(text)
    return {"ray": versions["ray_version"], "python": versions["python_version"]}


def facts(cluster: str) -> dict[str, Any]:
    """Every live node, with its resources, its package versions, and the attempts that its node
    agents know of.
    """
    # First, because it raises AuthenticationError, which ``init`` does not.
    version = metadata(cluster).get("ray")
    ray.init(
        address=cluster,
        _node_ip_address=address_in(cluster),
        log_to_driver=False,
        logging_level=logging.CRITICAL,
    )
    free = internals.available_resources()
    rows = [row for row in ray.nodes() if row["Alive"]]
    versions = {row["NodeID"]: _request_versions(row["NodeID"]) for row in rows}
    deadline = time.monotonic() + NODES_TIMEOUT_S
    attempts = _attempts(deadline)
    return {
        "cluster": cluster,
        "ray": version,
        "nodes": [
            {
                "node_id": row["NodeID"],
                "address": row["NodeManagerAddress"],
                "host": row["NodeManagerHostname"],
                "is_head": "node:__internal_head__" in row["Resources"],
                "total": row["Resources"],
                "free": free.get(row["NodeID"], {}),
                "versions": _result(versions[row["NodeID"]], deadline),
                "jobs": attempts[row["NodeID"]],
            }
            for row in rows
        ],
    }


def _request_versions(node_id: str) -> Any:
    def versions() -> dict[str, str | None]:
        from orchestrator.machine.provenance import installed_versions

        return dict(installed_versions())

    on_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return (
        ray.remote(versions)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=on_node)
        .remote()
    )


def _attempts(deadline: float) -> Mapping[str, list[dict[str, Any]]]:
    """Node → its attempts, from the node agents of all drivers that answer before ``deadline``."""
    requests: list[Any] = []
    for entry in list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE and entry["name"].startswith(f"{NAME_PREFIX}/"):
            with contextlib.suppress(ValueError):  # its driver has just left
                requests.append(ray.get_actor(entry["name"], namespace=NAMESPACE).attempts.remote())
    attempts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for reference in requests:
        for row in _result(reference, deadline) or ():
            attempts[row["node_id"]].append(row)
    return attempts


def _result(reference: Any, deadline: float) -> Any:
    """None after the deadline, or if the node or its driver has just left."""
    try:
        return ray.get(reference, timeout=max(0.0, deadline - time.monotonic()))
    except RayError:
        return None


def main() -> None:
    what, cluster = sys.argv[1:]
    try:
        answer = {"metadata": metadata, "facts": facts}[what](cluster)
    except AuthenticationError as error:
        answer = {"refused": str(error)}
    except (RayError, ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
        answer = {"silent": (str(error).strip() or type(error).__name__).splitlines()[0]}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
