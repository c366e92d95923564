"""Findings about an evaluation that its return does not show: episodes that are far too short, and a
policy that is paid for standing still.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.task_names import BUILT_IN
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.tasks import find_task
from orchestrator.worker.tasks.task_options import read_options

SHORT = 0.1
"""Share of the longest episode below which episodes are far too short."""
LEAST_M_PER_STEP = 0.0005
"""Distance per control step of a robot that moves at all: half a metre in 1,000 steps."""


def evaluation_finding(
    spec: WorkerSpec, mean: float | None, length: float, measures: Mapping[str, float | None]
) -> str | None:
    """Say what is wrong with a policy of a built-in task. Return None if nothing is.

    :param mean: of the returns; None: it is not finite. :param length: mean length of the episodes, in control steps.
    :param measures: means by name.
    """
    if spec.task is None or spec.task not in BUILT_IN:
        return None
    options = read_options(spec.task, find_task(spec.task).Options, spec.task_options)
    limit = options.max_episode_steps
    if length < SHORT * limit:
        return f"episodes last {length:,.0f} of {limit:,} steps"
    distance = measures.get("distance_m")
    if not BUILT_IN[spec.task].travels or distance is None or mean is None:
        return None
    if mean > 0 and distance < LEAST_M_PER_STEP * length:
        cure = ", or lower healthy_reward" if hasattr(options, "healthy_reward") else ""
        return (
            f"a return of {mean:,.4g}, but distance_m is {distance:.2g}: the policy is paid for standing still; train "
            f"longer{cure}"
        )
    return None
