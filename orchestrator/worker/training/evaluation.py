"""Evaluation of the trained policy: whole episodes in fresh environments, with the policy's most
likely actions.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.utils import set_random_seed

from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.episode_conditions import DRAWN, GridPlaces
from orchestrator.worker.envs.poses import Pose, pose_of
from orchestrator.worker.runtime import sb3_internals
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.training import nan_guard
from orchestrator.worker.training.acting import ActingPolicy
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.recorder import reported_measures

LONGEST = 100_000
"""Control steps of an episode: a good policy may never end one where nothing limits it."""
STILL_STEP = 100
"""Control step of which the pose is kept, in the first episode that has so many; without one, the
pose at the start."""
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


class EndlessEpisodeError(Exception):
    """An episode of the evaluation does not end."""


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


def evaluate(
    spec: WorkerSpec, job_dir: Path, model: Model, each_step: Callable[[], None]
) -> tuple[dict[str, Any], bytes | None]:
    """Run ``spec.eval_episodes`` episodes with deterministic actions and frozen normalisation; as
    many of the robot of the file where episodes draw others, and at each point of the spec's grid.

    :returns: what ``eval.json`` holds, as described in ``docs/evaluation.md``; and a pose, where the
        spec asks for one and has a task: :func:`pose_file`.

    ``each_step`` is called after every step and may raise to end the evaluation. The result is a
    function of spec and policy, which are unchanged afterwards. The process's random generators are
    not.

    :raises Diverged: observations or the policy's actions are not finite.
    :raises EndlessEpisodeError: an episode does not end.
    """
    # Whatever the job does in training: its policy is trained and saved.
    spec = dataclasses.replace(spec, on_divergence="end-episode")
    at_once = max(spec.n_envs, MOST_AT_ONCE) if env_factory.is_batched(spec) else spec.n_envs
    n_envs = min(spec.eval_episodes, at_once)
    poses: list[Pose] | None = None
    if spec.preview and env_factory.is_batched(spec):
        poses = []
    run = functools.partial(_run, spec, job_dir, model, each_step)
    figures = _figures(run(n_envs, poses=poses))
    content: dict[str, Any] = {
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
    return content, pose_file(poses[-1]) if poses else None


def pose_file(pose: Pose) -> bytes:
    """Return a file of the arrays ``state``, ``marker`` and ``ground``, from which a still is drawn
    later.
    """
    ground = [] if pose.ground is None else [pose.ground.geom, pose.ground.x_m, pose.ground.y_m]
    file = io.BytesIO()
    np.savez_compressed(
        file,
        state=pose.state,
        marker=np.array(pose.marker or (), float),
        ground=np.array(ground, float),
    )
    return file.getvalue()


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
    returns = [
        episode.total_reward if math.isfinite(episode.total_reward) else None
        for episode in episodes
    ]
    measures = {}
    for name in dict.fromkeys(name for episode in episodes for name in episode.measures):
        values = [episode.measures.get(name) for episode in episodes]
        measures[name] = {**_mean_and_std(values), "values": values}
    lengths = [episode.length for episode in episodes]
    figures: dict[str, Any] = {
        **_mean_and_std(returns),
        "length_mean": float(np.mean(lengths)),
        "diverged": sum(episode.diverged for episode in episodes),
        "returns": returns,
        "lengths": lengths,
        "measures": measures,
    }
    if episodes[0].drawn:
        figures["drawn"] = {
            key: [episode.drawn[key] for episode in episodes] for key in episodes[0].drawn
        }
    return figures


def _mean_and_std(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return the figures of those that are known; None without any, and where one is too large."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "std": None}
    with np.errstate(over="ignore", invalid="ignore"):
        figures = {"mean": float(np.mean(known)), "std": float(np.std(known))}
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
    poses: list[Pose] | None = None,
    grid: GridPlaces | None = None,
    nominal: bool = False,
) -> list[Episode]:
    """Run episodes in ``n_envs`` fresh environments, as many at each place of ``grid``, or in all,
    as the spec says.
    """
    seed = environment_seed(spec)
    # Environments may use the process's generators.
    set_random_seed(_seed(spec, _GENERATORS))
    venv: Any = env_factory.make(
        spec, job_dir, n_envs=n_envs, seed=seed, measuring=True, grid=grid, nominal=nominal
    )
    try:
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
        return _run_episodes(model, venv, remaining, each_step, poses)
    finally:
        venv.close()


def _run_episodes(
    model: Model,
    venv: Any,
    remaining: np.ndarray,
    each_step: Callable[[], None],
    poses: list[Pose] | None,
) -> list[Episode]:
    """Run the episodes.

    :param remaining: ``(n_envs,)`` episodes still to run in each environment; counted down here.
    :param poses: of a task: gets the first environment's pose at the start, and of :data:`STILL_STEP`.
    """
    episodes: list[Episode] = []
    steps = np.zeros(len(remaining), int)
    observations = venv.reset()
    if poses is not None:
        poses.append(pose_of(venv.unwrapped.simulation, 0))
    policy = ActingPolicy(model, len(remaining))
    while remaining.any():
        problem = nan_guard.observation_problem(observations)
        if problem is not None:
            raise Diverged(problem)
        observations, _, dones, infos = venv.step(policy.act(observations))
        policy.see_ends(dones)
        for index in np.flatnonzero(dones & (remaining > 0)).tolist():
            remaining[index] -= 1
            info = infos[index]
            total_reward = float(info["episode"]["r"])
            episode = Episode(
                env=index,
                total_reward=total_reward,
                length=int(info["episode"]["l"]),
                measures=reported_measures(info),
                drawn=info.get(DRAWN, {}),
                diverged="divergence" in info or not math.isfinite(total_reward),
            )
            episodes.append(episode)
        steps += 1
        steps[dones] = 0
        if (steps[remaining > 0] >= LONGEST).any():
            raise EndlessEpisodeError(f"an episode has not ended after {LONGEST:,} steps")
        if poses is not None and steps[0] == STILL_STEP and len(poses) == 1:
            poses.append(pose_of(venv.unwrapped.simulation, 0))
        each_step()
    return episodes
