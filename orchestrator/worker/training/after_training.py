"""What follows when a policy is trained: its files, and its evaluation. Rank 0 does it."""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.worker.runtime.failures import Diverged, Interrupted
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import evaluation
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.evaluation_findings import evaluation_finding


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
        result = evaluation.evaluate(attempt.spec, attempt.paths.root, attempt.model, each_step)
    except Diverged as error:
        _warn(attempt, f"no evaluation: {error}")
        return
    finally:
        facts.eval_s = time.monotonic() - begun
    attempt.before_writing()
    if result.moment is not None:
        write_whole(attempt.paths.moment, result.moment, durable=False)
    write_whole(attempt.paths.eval, result.to_json())
    figures = result.deterministic
    facts.eval_mean = figures["mean"]
    facts.eval_length = figures["length_mean"]
    facts.measures = {name: measure["mean"] for name, measure in figures["measures"].items()}
    facts.eval_finding = evaluation_finding(
        attempt.spec, facts.eval_mean, facts.eval_length, facts.measures
    )
    say(f"evaluated over {result}")
    if facts.eval_finding is not None:
        say(f"evaluation: {facts.eval_finding}")
    if figures["diverged"]:
        episodes = len(figures["returns"])
        _warn(attempt, f"{figures['diverged']} of {episodes} episodes of the evaluation diverged")


def _warn(attempt: Attempt, text: str) -> None:
    """Tell the log and the supervisor."""
    say(text)
    reporter = attempt.reporter
    reporter.warning = f"{reporter.warning}; {text}" if reporter.warning else text
    reporter.is_urgent = True
    reporter.report("evaluating", attempt.model.num_timesteps)
