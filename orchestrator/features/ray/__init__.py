"""Attempts on the nodes of a Ray cluster: Ray connects the machines, schedules tasks and notices
deaths.

On a node the same worker processes are started as on one machine, on CPUs of their own.

==================== ===============================================================================================
``ray_kind``         what ``--executor ray`` stands for, with its options
``ray_executor``     the executor ``ray``, which combines the other modules
``ray_launcher``     its launcher: ``remote_attempt`` is an attempt, ``ray_task`` a Ray task of it
``node_attempt``     what such a task does on its node, in a folder of the ``scratch_directory``
``node_agent``       one small actor on each node: its CPUs, orders to attempts, facts about the node
``node_registry``    the nodes of the cluster as they join and leave, each with its agent
``compatible_nodes`` those whose software agrees with the driver's; ``executors/cluster_slots``: their room
``rank_placement``   room for ranks on several nodes
``transport``        how files travel (``--storage``); ``file_sync`` without a shared file system
``driver_directory`` the run directory as nodes know it; ``user_code``: the user's Python code on nodes
``connection``       the connection to Ray; ``head_liveness``; ``internals``: Ray's private names
``cluster``          what the commands ``cluster up``, ``join``, ``status`` and ``down`` (``commands``) do
==================== ===============================================================================================

Importing these modules does not import Ray.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    import typer

    from orchestrator.executors.kinds import ExecutorKind


def _commands() -> typer.Typer:
    from orchestrator.features.ray import commands

    return commands.app


def _executors() -> Iterable[ExecutorKind]:
    from orchestrator.features.ray.ray_kind import KIND

    return [KIND]


FEATURE = Feature(
    name="ray",
    about="The executor ray: jobs run on the machines of a Ray cluster, which `cluster` makes.",
    commands=_commands,
    executors=_executors,
)
