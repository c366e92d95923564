"""Evaluation of the trained policy: whole episodes in fresh environments, with the policy's most
likely actions.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
import torch

from orchestrator.core.numbers.evaluation_grid import EvaluationGrid, GridPoint
from orchestrator.core.text import count
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.episode_conditions import DRAWN, GridPlaces
from orchestrator.worker.runtime import sb3_internals
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training.acting import ActingPolicy
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.best_moment import BestMoment
from orchestrator.worker.training.recorder import reported_measures
from orchestrator.worker.training.training_state import generators, restore_generators

LONGEST = 100_000
"""Control steps after which an episode is cut off: a good policy may never end one where nothing
limits it."""
MOST_AT_ONCE = 32
"""Environments of a built-in task: one more in a batch costs its physics alone, a second round the
whole batch."""
GRID_AT_ONCE = 128
"""Environments in a batch of points of a grid: so many share the cost of the policy, and need
little memory."""
_ENVIRONMENTS = 1
_GENERATORS = 2
"""Purposes of random numbers, so that evaluation's seeds differ from training's and from each
other."""


class EvaluatedEpisode(NamedTuple):
    total_reward: float
    """Sum of the task's unnormalised rewards; finite."""
    length: int
    """Control steps."""
    measures: Mapping[str, float | None]
    """The environment's own measures by name; None where one was not finite."""
    drawn: Mapping[str, float]
    """Properties of the robot that the episode has drawn: key of ``randomize`` → value."""
    env: int
    """Number of its environment."""


class MeasureSummary(TypedDict):
    mean: float | None
    std: float | None
    values: list[float | None]
    """One for each episode; None where it did not report the measure."""


class OutcomeSummary(TypedDict):
    """As described in ``docs/evaluation.md``."""

    mean: float
    std: float
    iqm: float
    min: float
    max: float
    length_mean: float
    returns: list[float]
    lengths: list[int]
    measures: dict[str, MeasureSummary]
    drawn: NotRequired[dict[str, list[float]]]
    """Key of ``randomize`` → a value for each episode."""


@dataclass(frozen=True)
class Outcome:
    """Episodes in the order in which they ended; at least one."""

    episodes: Sequence[EvaluatedEpisode]

    @functools.cached_property
    def summary(self) -> OutcomeSummary:
        returns = [episode.total_reward for episode in self.episodes]
        lengths = [episode.length for episode in self.episodes]
        reported = [episode.measures for episode in self.episodes]
        drawn = [episode.drawn for episode in self.episodes]
        names = dict.fromkeys(name for measures in reported for name in measures)
        summary: OutcomeSummary = {
            "mean": float(np.mean(returns)),
            "std": float(np.std(returns)),
            "iqm": interquartile_mean(returns),
            "min": min(returns),
            "max": max(returns),
            "length_mean": float(np.mean(lengths)),
            "returns": returns,
            "lengths": lengths,
            "measures": {
                name: _summary([measures.get(name) for measures in reported]) for name in names
            },
        }
        if all(drawn):  # not for an episode that was cut off
            summary["drawn"] = {key: [values[key] for values in drawn] for key in drawn[0]}
        return summary


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    deterministic: Outcome
    moment: bytes | None
    """The best moment of these episodes, where the spec asks for one:
    :meth:`BestMoment.content`."""
    seed: int
    """Environment *i* had ``seed + i`` (the batch of a built-in task has ``seed`` as a whole)."""
    n_envs: int
    nominal: Outcome | None
    """Episodes of the robot of the file, where the others are of drawn ones."""
    grid: Sequence[tuple[GridPoint, Outcome]]
    """Episodes at each point of the spec's grid."""

    def to_json(self) -> str:
        content: dict[str, Any] = {
            "deterministic": self.deterministic.summary,
            "episodes": len(self.deterministic.episodes),
            "seed": self.seed,
            "n_envs": self.n_envs,
        }
        if self.nominal is not None:
            content["nominal"] = self.nominal.summary
        if self.grid:
            content["grid"] = [{"at": point.at, **outcome.summary} for point, outcome in self.grid]
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    def __str__(self) -> str:
        """One line for people, with the means of the measures."""
        summary = self.deterministic.summary
        means = {name: measure["mean"] for name, measure in summary["measures"].items()}
        measures = ", ".join(
            f"{name} {mean:,.4g}" for name, mean in means.items() if mean is not None
        )
        text = (
            f"{count(len(self.deterministic.episodes), 'episode')}: "
            f"return {summary['mean']:,.1f} ± {summary['std']:,.1f}"
        )
        return f"{text}; {measures}" if measures else text


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter of ``values``, each rounded down to whole
    values.

    Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", as
    their library rliable computes it (``scipy.stats.trim_mean(values, 0.25)``): the plain mean of
    up to three values.
    """
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


def _summary(values: list[float | None]) -> MeasureSummary:
    numbers = [value for value in values if value is not None]
    return {
        "mean": float(np.mean(numbers)) if numbers else None,
        "std": float(np.std(numbers)) if numbers else None,
        "values": values,
    }


def evaluate(
    spec: WorkerSpec, job_dir: Path, model: Model, each_step: Callable[[], None]
) -> EvaluationResult:
    """Run ``spec.eval_episodes`` episodes with deterministic actions and frozen normalisation.

    The number of episodes of each environment is fixed beforehand: taking the first to end would
    favour short ones. ``each_step`` is called after every step and may raise to end the evaluation.
    The result is a function of spec and policy; parameters, normalisation and the process's random
    generators are unchanged afterwards.

    :raises Diverged: a return is not finite.
    """
    evaluation = _Evaluation(spec=spec, job_dir=job_dir, model=model, each_step=each_step)
    n_envs = min(spec.eval_episodes, _most_at_once(spec))
    moment = BestMoment() if spec.preview and not spec.video else None
    grid = EvaluationGrid.parse(spec.evaluate)
    return EvaluationResult(
        deterministic=Outcome(evaluation.run(n_envs, moment)),
        moment=None if moment is None else moment.content(),
        seed=evaluation.seed,
        n_envs=n_envs,
        nominal=Outcome(evaluation.run(n_envs, nominal=True)) if spec.randomize else None,
        grid=[] if grid is None else list(evaluation.run_on(grid)),
    )


def _most_at_once(spec: WorkerSpec) -> int:
    """Environments that are evaluated side by side, apart from a grid."""
    return max(spec.n_envs, MOST_AT_ONCE) if env_factory.is_batched(spec) else spec.n_envs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    """Runs episodes of one policy; its arguments are those of :func:`evaluate`."""

    spec: WorkerSpec
    job_dir: Path
    model: Model
    each_step: Callable[[], None]

    @property
    def seed(self) -> int:
        return environment_seed(self.spec)

    def run(
        self,
        n_envs: int,
        watched: BestMoment | None = None,
        *,
        grid: GridPlaces | None = None,
        nominal: bool = False,
    ) -> Sequence[EvaluatedEpisode]:
        """Episodes in ``n_envs`` fresh environments, as many at each place of ``grid``, or in all,
        as the spec says.
        """
        spec = self.spec
        at_each = n_envs if grid is None else grid.at_each
        remaining = np.array(
            [(spec.eval_episodes + index % at_each) // at_each for index in range(n_envs)]
        )
        if grid is not None or nominal:
            # A diverging robot far from those trained on is a result, and the training succeeded.
            spec = dataclasses.replace(spec, on_divergence="end-episode")
        seed = self.seed
        with _seed_generators(_seed(spec, _GENERATORS), self.model.device):
            venv = env_factory.make(
                spec,
                self.job_dir,
                n_envs=n_envs,
                seed=seed,
                measuring=True,
                grid=grid,
                nominal=nominal,
            )
            try:
                venv.seed(seed)
                prepared = _prepared_env(self.spec, self.model, venv)
                return _run(self.model, prepared, remaining, self.each_step, watched)
            finally:
                venv.close()

    def run_on(self, grid: EvaluationGrid) -> Iterator[tuple[GridPoint, Outcome]]:
        """Episodes at each point."""
        at_each = min(self.spec.eval_episodes, GRID_AT_ONCE)
        at_once = GRID_AT_ONCE // at_each
        for first in range(0, len(grid.points), at_once):
            points = grid.points[first : first + at_once]
            places = GridPlaces(grid, points, at_each)
            episodes = self.run(len(points) * at_each, grid=places)
            for number, point in enumerate(points):
                here = [episode for episode in episodes if episode.env // at_each == number]
                yield point, Outcome(here)


def environment_seed(spec: WorkerSpec) -> int:
    """The seed of the evaluation's environments, which ``eval.json`` names: a function of the job's
    seed alone.
    """
    return _seed(spec, _ENVIRONMENTS) >> 1


def _seed(spec: WorkerSpec, purpose: int) -> int:
    """A seed of 32 bits that depends on the job's seed and ``purpose`` alone."""
    return int(np.random.SeedSequence(spec.seed, spawn_key=(purpose,)).generate_state(1)[0])


@contextmanager
def _seed_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the process's generators, which environments may use; restore them afterwards."""
    before = generators(device)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        restore_generators(before)


def _prepared_env(spec: WorkerSpec, model: Model, venv: Any) -> Any:
    """``venv`` as the model saw its own in training: observations normalised, images transposed."""
    trained = model.get_vec_normalize_env()
    if trained is not None:
        wrapped = env_factory.normalized_env(spec, venv)
        wrapped.training = False
        wrapped.norm_reward = False
        if trained.norm_obs:
            wrapped.obs_rms = trained.obs_rms
        venv = wrapped
    return sb3_internals.wrap_env(model, venv)


def _run(
    model: Model,
    venv: Any,
    remaining: np.ndarray,
    each_step: Callable[[], None],
    watched: BestMoment | None,
) -> Sequence[EvaluatedEpisode]:
    """Run episodes. :param remaining: ``(n_envs,)`` episodes still to run in each environment;
    counted down here.
    """
    episodes: list[EvaluatedEpisode] = []
    returns = np.zeros(len(remaining))
    steps = np.zeros(len(remaining), int)
    observations = venv.reset()
    if watched is not None:
        watched.begin(venv)
    policy = ActingPolicy(model, len(remaining))
    while remaining.any():
        observations, rewards, dones, infos = venv.step(policy.act(observations))
        policy.see_ends(dones)
        returns += rewards
        steps += 1
        ended = dones | (steps >= LONGEST)
        if watched is not None:
            watched.step(float(rewards[0]), int(steps[0]), ended=bool(ended[0]))
        for index in np.flatnonzero(ended & (remaining > 0)):
            info = infos[index]
            if dones[index]:
                remaining[index] -= 1
                total_reward = float(info["episode"]["r"])
                length = int(info["episode"]["l"])
            else:
                remaining[index] = 0
                total_reward = float(returns[index])
                length = int(steps[index])
                say(
                    f"evaluation: environment {index} ended no episode in {LONGEST} steps and was cut off"
                )
            if not math.isfinite(total_reward):
                raise Diverged(
                    f"evaluation: an episode of {length} steps in environment {index} has the return {total_reward}; "
                    "the environment's rewards must be finite"
                )
            episode = EvaluatedEpisode(
                total_reward=total_reward,
                length=length,
                measures=reported_measures(info),
                drawn=info.get(DRAWN, {}),
                env=int(index),
            )
            episodes.append(episode)
        returns[dones] = 0
        steps[dones] = 0
        each_step()
    return episodes
