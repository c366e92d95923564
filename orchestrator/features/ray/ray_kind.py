"""What ``--executor ray`` stands for. Nothing else of the feature is imported before it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.executors.kinds import ExecutorKind, ExecutorOption

if TYPE_CHECKING:
    from orchestrator.executors.executor import ExecutorSettings, OpenedExecutor

ADDRESS = ExecutorOption(
    name="ray_address",
    metavar="local|auto|HOST:PORT",
    help="Ray cluster to use; this machine must be one of its nodes. auto: the cluster that this machine belongs to. "
    "local: start Ray on this machine alone.",
    default="local",
)
STORAGE = ExecutorOption(
    name="storage",
    metavar="auto|shared|stream|URI",
    help="How other machines access the run directory. shared: over a shared file system. stream: files are sent over "
    "the network and results are sent back. URI (s3://bucket/folder): like stream, with large files stored there. "
    "auto: shared where a node sees the run directory, otherwise stream.",
    default="auto",
)


def _open(settings: ExecutorSettings) -> OpenedExecutor:
    from orchestrator.features.ray.ray_executor import RayExecutor

    return RayExecutor(settings)


KIND = ExecutorKind(name="ray", open=_open, options=(ADDRESS, STORAGE))
