"""``exit.json``: the record that a worker writes when it exits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.core.decoding import decode, field_values
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.job_parts import PartFacts
from orchestrator.core.text import shortened, storable

LARGEST_BYTES = 1 << 20
"""A larger ``exit.json`` is not read: no worker writes one."""
MOST_MEASURES = 50
"""Measures that are kept of an evaluation."""
LONGEST_NAME = 100
"""Characters of the name of a measure."""
_TEXTS = ("message", "traceback", "learner_reason", "eval_finding", "unsaveable", "why_exec")


@dataclass(slots=True, kw_only=True)
class ExitRecord:
    """How a worker ended, as it says itself. A worker that is killed writes none."""

    code: int
    message: str
    """One line for ``status``; empty on success."""
    traceback: str = ""
    env_steps: int = 0
    resumed_from: int | None = None
    """env_steps of the checkpoint that this attempt resumed from."""
    ep_rew_mean: float | None = None
    """The last ``rollout/ep_rew_mean`` of training."""
    ep_rew_mean_first: float | None = None
    """The first ``rollout/ep_rew_mean`` of the job, in whichever attempt."""
    eval_mean: float | None = None
    """Mean return of the deterministic policy over ``eval_episodes`` episodes."""
    eval_length: float | None = None
    """Mean length of the same episodes in control steps."""
    eval_finding: str | None = None
    """What is wrong with the policy although its return may be high; None: nothing is known."""
    measures: Mapping[str, float | None] | None = None
    """Means of the task's measures over the same episodes, by name; None for a mean that does not
    exist."""
    training_measures: Mapping[str, float | None] | None = None
    """The same of the last episodes of training, over which ``ep_rew_mean`` is the mean; None where
    training is not measured (:attr:`.WorkerSpec.measure_training`)."""
    learner: str | None = None
    learner_reason: str | None = None
    import_s: float | None = None
    """Seconds from the start of the worker to the end of imports."""
    first_step_s: float | None = None
    """Seconds from the start of the worker to the end of the first environment step."""
    checkpoint_s: float | None = None
    eval_s: float | None = None
    wall_s: float | None = None
    """Seconds from the start of the worker to the writing of this record."""
    cpu_s: float | None = None
    weights_sha256: str | None = None
    """Over policy, optimiser and normalisation of a finished training (see
    ``worker/training/weights.py``)."""
    unsaveable: str | None = None
    """Why the last checkpoint lacks the state of the environments, so that resuming starts new
    episodes."""
    divergences: int | None = None
    """Episodes that ended because physics diverged, where that does not end the job."""
    start: Literal["exec", "fork"] | None = None
    """How the process was started; None: not known."""
    why_exec: str = ""
    """Why it was exec'ed although it was to be forked."""
    parts: PartFacts = field(default_factory=dict)
    """What the worker tells of features in its training, by name
    (:mod:`orchestrator.core.job_parts`)."""

    def __post_init__(self) -> None:
        for name in _TEXTS:  # by the worker, and again by whoever reads what another program wrote
            if (text := getattr(self, name)) is not None:
                setattr(self, name, shortened(text))
        self.measures = _kept(self.measures)
        self.training_measures = _kept(self.training_measures)

    @property
    def env_steps_per_s(self) -> float | None:
        """Mean speed of the attempt's training: from its first env_step until the evaluation; None
        without training.
        """
        if self.first_step_s is None or self.wall_s is None:
            return None
        training_s = self.wall_s - self.first_step_s - (self.eval_s or 0.0)
        steps = self.env_steps - (self.resumed_from or 0)
        return steps / training_s if training_s > 0 and steps > 0 else None

    def to_json(self) -> str:
        return json.dumps(field_values(self), indent=2, default=field_values) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> ExitRecord:
        """:raises ValueError: it is none."""
        return decode(cls, text)


def _kept(measures: Mapping[str, float | None] | None) -> Mapping[str, float | None] | None:
    """The first of these measures, with names that can be stored."""
    if measures is None:
        return None
    first = itertools.islice(measures.items(), MOST_MEASURES)
    return {storable(name)[:LONGEST_NAME]: mean for name, mean in first}


def read_exit_record(
    path: Path, on_error: Callable[[Exception], object] | None = None
) -> ExitRecord | None:
    """The exit record in ``path``; None if the file is missing or cannot be read.

    :param on_error: called if the file is there but cannot be read.
    """
    try:
        return ExitRecord.from_json(read_regular(path, LARGEST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if on_error is not None:
            on_error(error)
        return None
