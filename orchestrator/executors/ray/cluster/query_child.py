"""The child process that asks a cluster, through Ray: ``python -m orchestrator.executors.ray.cluster.query_child
QUESTION HOST:PORT``.

QUESTION is ``metadata`` or ``facts``. Prints one line of JSON: the answer, or ``{"refused": …}``, or ``{"silent": …}``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.exceptions import AuthenticationError, RayError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.executors.ray.cluster.node_state import address_in
from orchestrator.executors.ray.node_agent import NAME_PREFIX, NAMESPACE

ANSWER_S = 5.0
"""For a head's own tables."""
NODES_S = 10.0
"""For all nodes together: each may have to start a process first."""


def metadata(cluster: str) -> dict[str, Any]:
    told = GcsClient(address=cluster).internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=ANSWER_S)
    if told is None:
        return {"silent": "it does not tell its version"}
    found = json.loads(told)
    return {"ray": found["ray_version"], "python": found["python_version"]}


def facts(cluster: str) -> dict[str, Any]:
    """Every node that lives, with its resources, its versions, and the attempts that its keepers know of."""
    version = metadata(cluster).get("ray")  # asked first: what refuses us here says so, in ``init`` it does not
    ray.init(address=cluster, _node_ip_address=address_in(cluster), log_to_driver=False, logging_level=logging.CRITICAL)
    free = ray._private.state.available_resources_per_node()
    rows = [row for row in ray.nodes() if row["Alive"]]
    asked = {row["NodeID"]: _software(row["NodeID"]) for row in rows}
    running = _running()
    until = time.monotonic() + NODES_S
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
                "versions": _answer(asked[row["NodeID"]], until),
                "jobs": running[row["NodeID"]],
            }
            for row in rows
        ],
    }


def _software(node_id: str) -> Any:
    """A reference to the versions on a node; the task needs no core."""

    def versions() -> dict[str, str | None]:
        from orchestrator.executors.ray.node_versions import found

        return dict(found())

    place = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(versions).options(num_cpus=0, max_retries=0, scheduling_strategy=place).remote()


def _running() -> Mapping[str, list[dict[str, Any]]]:
    """Node → its attempts, by the keepers of all drivers."""
    asked: dict[str, list[Any]] = defaultdict(list)
    for entry in list_named_actors(all_namespaces=True):
        prefix, _, rest = entry["name"].partition("/")
        if entry["namespace"] == NAMESPACE and prefix == NAME_PREFIX:
            with contextlib.suppress(ValueError):  # its driver has just left
                keeper = ray.get_actor(entry["name"], namespace=NAMESPACE)
                asked[rest.rpartition("/")[2]].append(keeper.running.remote())
    until = time.monotonic() + NODES_S
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for node_id, references in asked.items():
        for reference in references:
            found[node_id] += map(dataclasses.asdict, _answer(reference, until) or ())
    return found


def _answer(reference: Any, until: float) -> Any:
    """None where there is none in time: the node has just left, or its driver has."""
    try:
        return ray.get(reference, timeout=max(0.0, until - time.monotonic()))
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
