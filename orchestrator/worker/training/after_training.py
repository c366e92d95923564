"""What follows when a policy is trained: its files, and its evaluation. Rank 0 does it."""

from __future__ import annotations

import io
import json
import pickle
import time
from collections.abc import Callable, Mapping

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.task_names import BUILT_IN
from orchestrator.core.text import count
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.runtime.failures import Diverged, Interrupted
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.tasks import find_task
from orchestrator.worker.tasks.task_options import read_options
from orchestrator.worker.training import evaluation
from orchestrator.worker.training.attempt import Attempt

SHORT = 0.1
"""Share of the longest episode below which episodes are far too short."""
LEAST_M_PER_STEP = 0.0005
"""Distance per control step of a robot that moves at all: half a metre in 1,000 steps."""


def save_policy(attempt: Attempt) -> None:
    """Write ``model.zip`` and, with normalisation, ``vecnormalize.pkl``; both load without this
    package.
    """
    paths = attempt.paths
    content = io.BytesIO()
    attempt.model.save(content)
    attempt.before_writing()
    for of_shorter_training in (paths.eval, paths.moment, paths.preview):
        of_shorter_training.unlink(missing_ok=True)
    write_whole(paths.model, content.getvalue())
    normalization = attempt.model.get_vec_normalize_env()
    if normalization is not None:
        write_whole(paths.vecnormalize, pickle.dumps(normalization))


def evaluate(attempt: Attempt, stop_requested: Callable[[], bool]) -> None:
    """Evaluate the policy and write ``eval.json``. What diverges is a warning: the policy is trained
    and saved.

    :raises Interrupted: it is to stop.
    """

    def each_step() -> None:
        attempt.reporter.report("evaluating", attempt.model.num_timesteps)
        if stop_requested():
            raise Interrupted(
                "stopped on request during evaluation; the policy is trained and saved"
            )

    facts = attempt.facts
    begun = time.monotonic()
    try:
        content, pose = evaluation.evaluate(
            attempt.spec, attempt.paths.root, attempt.model, each_step
        )
    except (Diverged, evaluation.EndlessEpisodeError) as error:
        _warn(attempt, f"no evaluation: {error}")
        return
    finally:
        facts.eval_s = time.monotonic() - begun
    attempt.before_writing()
    if pose is not None:
        write_whole(attempt.paths.moment, pose, durable=False)
    write_whole(attempt.paths.eval, json.dumps(content, indent=2, allow_nan=False) + "\n")
    figures = content["deterministic"]
    facts.eval_mean = figures["mean"]
    facts.eval_length = figures["length_mean"]
    facts.measures = {name: measure["mean"] for name, measure in figures["measures"].items()}
    facts.eval_finding = evaluation_finding(
        attempt.spec, facts.eval_mean, facts.eval_length, facts.measures
    )
    means = {"return": facts.eval_mean, **facts.measures}
    shown = [f"{name} {mean:,.4g}" for name, mean in means.items() if mean is not None]
    say(f"evaluated over {count(len(figures['returns']), 'episode')}: {', '.join(shown)}")
    if facts.eval_finding is not None:
        say(f"evaluation: {facts.eval_finding}")
    if figures["diverged"]:
        episodes = len(figures["returns"])
        _warn(attempt, f"{figures['diverged']} of {episodes} episodes of the evaluation diverged")


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


def _warn(attempt: Attempt, text: str) -> None:
    """Tell the log and the supervisor."""
    say(text)
    reporter = attempt.reporter
    reporter.warning = f"{reporter.warning}; {text}" if reporter.warning else text
    reporter.is_urgent = True
    reporter.report("evaluating", attempt.model.num_timesteps)
