"""Evaluation of the trained policy: whole episodes in fresh environments, with the policy's most
likely actions.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.utils import set_random_seed

from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.core.text import count
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.episode_conditions import DRAWN, GridPlaces
from orchestrator.worker.runtime import sb3_internals
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import nan_guard
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


class Episode(NamedTuple):
    """An episode that was evaluated."""

    env: int
    """Number of its environment."""
    total_reward: float
    """Sum of the unnormalised rewards, which may not be finite."""
    length: int
    """Control steps."""
    measures: Mapping[str, float | None]
    """The environment's own measures by name; None where one was not finite."""
    drawn: Mapping[str, float]
    """Properties of the robot that the episode has drawn: key of ``randomize`` → value."""
    diverged: bool
    """Whether its physics diverged, or its return is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    content: Mapping[str, Any]
    """What ``eval.json`` holds, as described in ``docs/evaluation.md``."""
    moment: bytes | None
    """The best moment of these episodes, where the spec asks for one and has a task:
    :meth:`BestMoment.content`."""

    @property
    def deterministic(self) -> Mapping[str, Any]:
        """The figures of the robot as the job trains it."""
        figures: Mapping[str, Any] = self.content["deterministic"]
        return figures

    def to_json(self) -> str:
        return json.dumps(self.content, indent=2, allow_nan=False) + "\n"

    def __str__(self) -> str:
        """Return one line for people, with the means of the measures."""
        figures = self.deterministic
        shown = {"return": figures["mean"]}
        shown |= {name: measure["mean"] for name, measure in figures["measures"].items()}
        means = [f"{name} {mean:,.4g}" for name, mean in shown.items() if mean is not None]
        return f"{count(len(figures['returns']), 'episode')}: {', '.join(means)}"


def evaluate(
    spec: WorkerSpec, job_dir: Path, model: Model, each_step: Callable[[], None]
) -> EvaluationResult:
    """Run ``spec.eval_episodes`` episodes with deterministic actions and frozen normalisation; as
    many of the robot of the file where episodes draw others, and at each point of the spec's grid.

    ``each_step`` is called after every step and may raise to end the evaluation. The result is a
    function of spec and policy; parameters, normalisation and the process's random generators are
    unchanged afterwards.

    :raises Diverged: the policy's actions are not finite.
    """
    # Whatever the job does in training: its policy is trained and saved.
    spec = dataclasses.replace(spec, on_divergence="end-episode")
    at_once = max(spec.n_envs, MOST_AT_ONCE) if env_factory.is_batched(spec) else spec.n_envs
    n_envs = min(spec.eval_episodes, at_once)
    is_kept = spec.preview and not spec.video and env_factory.is_batched(spec)
    moment = BestMoment() if is_kept else None
    run = functools.partial(_run, spec, job_dir, model, each_step)
    figures = _figures(run(n_envs, moment=moment))
    content = {
        "deterministic": figures,
        "episodes": len(figures["returns"]),
        "seed": environment_seed(spec),
        "n_envs": n_envs,
    }
    if spec.randomize:
        content["nominal"] = _figures(run(n_envs, nominal=True))
    grid = EvaluationGrid.parse(spec.evaluate)
    if grid is not None:
        content["grid"] = list(_figures_on_grid(grid, spec.eval_episodes, run))
    return EvaluationResult(content=content, moment=None if moment is None else moment.content())


def _figures_on_grid(
    grid: EvaluationGrid, episodes: int, run: Callable[..., Sequence[Episode]]
) -> Iterator[dict[str, Any]]:
    """The figures at each point, with the point's values as ``at``."""
    at_each = min(episodes, GRID_AT_ONCE)
    at_once = GRID_AT_ONCE // at_each
    for first in range(0, len(grid.points), at_once):
        points = grid.points[first : first + at_once]
        found = run(len(points) * at_each, grid=GridPlaces(grid, points, at_each))
        for number, point in enumerate(points):
            here = [episode for episode in found if episode.env // at_each == number]
            yield {"at": point.at, **_figures(here)}


def _figures(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return the figures of at least one episode, in the order in which they ended."""
    returns = [episode.total_reward for episode in episodes]
    lengths = [episode.length for episode in episodes]
    finite = sorted(filter(math.isfinite, returns))
    cut = len(finite) // 4
    measures = {}
    for name in dict.fromkeys(name for episode in episodes for name in episode.measures):
        values = [episode.measures.get(name) for episode in episodes]
        known = [value for value in values if value is not None]
        measures[name] = {**_mean_and_std(known), "values": values}
    figures: dict[str, Any] = {
        **_mean_and_std([value for value in returns if math.isfinite(value)]),
        # Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
        "iqm": _mean_and_std(finite[cut : len(finite) - cut])["mean"],
        "min": min(finite, default=None),
        "max": max(finite, default=None),
        "length_mean": float(np.mean(lengths)),
        "diverged": sum(episode.diverged for episode in episodes),
        "returns": [value if math.isfinite(value) else None for value in returns],
        "lengths": lengths,
        "measures": measures,
    }
    if all(episode.drawn for episode in episodes):  # not for an episode that was cut off
        figures["drawn"] = {
            key: [episode.drawn[key] for episode in episodes] for key in episodes[0].drawn
        }
    return figures


def _mean_and_std(values: Sequence[float]) -> dict[str, float | None]:
    """Return None without values, and where a figure is too large."""
    if not values:
        return {"mean": None, "std": None}
    with np.errstate(over="ignore", invalid="ignore"):
        figures = {"mean": float(np.mean(values)), "std": float(np.std(values))}
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def environment_seed(spec: WorkerSpec) -> int:
    """The seed of the evaluation's environments, which ``eval.json`` names: a function of the job's
    seed alone.
    """
    return _seed(spec, _ENVIRONMENTS) >> 1


def _seed(spec: WorkerSpec, purpose: int) -> int:
    """A seed of 32 bits that depends on the job's seed and ``purpose`` alone."""
    return int(np.random.SeedSequence(spec.seed, spawn_key=(purpose,)).generate_state(1)[0])


def _run(
    spec: WorkerSpec,
    job_dir: Path,
    model: Model,
    each_step: Callable[[], None],
    n_envs: int,
    *,
    moment: BestMoment | None = None,
    grid: GridPlaces | None = None,
    nominal: bool = False,
) -> list[Episode]:
    """Run episodes in ``n_envs`` fresh environments, as many at each place of ``grid``, or in all,
    as the spec says.
    """
    seed = environment_seed(spec)
    # Environments may use the process's generators.
    before = generators(model.device)
    set_random_seed(_seed(spec, _GENERATORS))
    venv: Any = None
    try:
        venv = env_factory.make(
            spec, job_dir, n_envs=n_envs, seed=seed, measuring=True, grid=grid, nominal=nominal
        )
        venv.seed(seed)
        trained = model.get_vec_normalize_env()
        if trained is not None:
            venv = env_factory.frozen_normalized_env(spec, venv, vars(trained))
        venv = sb3_internals.wrap_env(model, venv)
        at_each = n_envs if grid is None else grid.at_each
        # The number of episodes of each environment is fixed beforehand: taking the first to
        # end would favour short ones.
        remaining = np.array(
            [(spec.eval_episodes + index % at_each) // at_each for index in range(n_envs)]
        )
        return _run_episodes(model, venv, remaining, each_step, moment)
    finally:
        restore_generators(before)
        if venv is not None:
            venv.close()


def _run_episodes(
    model: Model,
    venv: Any,
    remaining: np.ndarray,
    each_step: Callable[[], None],
    moment: BestMoment | None,
) -> list[Episode]:
    """:param remaining: ``(n_envs,)`` episodes still to run in each environment; counted down
    here.
    """
    episodes: list[Episode] = []
    returns = np.zeros(len(remaining))
    steps = np.zeros(len(remaining), int)
    observations = venv.reset()
    if moment is not None:
        moment.begin(venv)
    policy = ActingPolicy(model, len(remaining))
    while remaining.any():
        problem = nan_guard.observation_problem(observations)
        if problem is not None:
            raise Diverged(problem)
        observations, rewards, dones, infos = venv.step(policy.act(observations))
        policy.see_ends(dones)
        returns += rewards
        steps += 1
        ended = dones | (steps >= LONGEST)
        if moment is not None:
            moment.step(float(rewards[0]), int(steps[0]), ended=bool(ended[0]))
        for index in np.flatnonzero(ended & (remaining > 0)).tolist():
            info = infos[index]
            remaining[index] -= 1
            if not dones[index]:
                remaining[index] = 0
                say(
                    f"evaluation: environment {index} ended no episode in {LONGEST} steps and was cut off"
                )
            figures = info.get("episode", {"r": returns[index], "l": steps[index]})
            total_reward = float(figures["r"])
            episode = Episode(
                env=index,
                total_reward=total_reward,
                length=int(figures["l"]),
                measures=reported_measures(info),
                drawn=info.get(DRAWN, {}),
                diverged="divergence" in info or not math.isfinite(total_reward),
            )
            episodes.append(episode)
        returns[dones] = 0
        steps[dones] = 0
        each_step()
    return episodes
