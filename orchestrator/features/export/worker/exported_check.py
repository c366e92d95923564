"""Runs an exported file beside the policy that it was exported from, over an episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.paths import JobPaths
from orchestrator.core.text import count, joined
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.export.worker import policy_files
from orchestrator.features.export.worker.exported_policy import ACTION, CTRL, ExportError
from orchestrator.worker.tasks.actions import control_limits
from orchestrator.worker.training import trained_policy
from orchestrator.worker.training.asymmetric_critic import privileged_values
from orchestrator.worker.training.trained_policy import Observation

MOST_STEPS = 10_000
"""Of an episode that does not end."""
TOLERANCE = 1e-4
"""Largest difference of an action that rounding explains, by far."""


def check(
    file: Path,
    spec: WorkerSpec,
    paths: JobPaths,
    trained: trained_policy.Checkpoint | None,
    outputs: Set[str],
) -> str:
    """A sentence with the largest differences over an episode, in which the policy itself acts.

    :param outputs: the names of what the file is to give.
    :raises ExportError: the file gives other actions, or has other outputs.
    """
    act = policy_files.read(file)

    def checked_act(observation: Observation) -> Mapping[str, NDArray[Any]]:
        given = act(observation)
        if given.keys() != outputs:
            raise ExportError(
                f"{file} gives {joined(sorted(given))}; expected {joined(sorted(outputs))}, as the policy "
                "does; export it again"
            )
        return given

    steps, largest = _compare(checked_act, spec, paths, trained)
    differences = " and ".join(f"{name} by {value:.1e}" for name, value in largest.items())
    text = (
        f"over {count(steps, 'step')} of an episode they differ by at most: {differences} "
        "(of the largest value, where that is above 1)"
    )
    if max(largest.values()) > TOLERANCE:
        raise ExportError(f"{file} does not act as the policy does: {text}; expected {TOLERANCE:g}")
    return text


def _compare(
    act: Callable[[Observation], Mapping[str, NDArray[Any]]],
    spec: WorkerSpec,
    paths: JobPaths,
    trained: trained_policy.Checkpoint | None,
) -> tuple[int, dict[str, float]]:
    """How many steps the episode had, and the largest difference of each output, relative to its
    largest value where that is above 1; infinite where one of them is not a number.
    """
    from orchestrator.worker.envs import env_factory

    # Noise comes after the task has clipped what it observes, and the file clips that again.
    venv: Any = env_factory.make(spec, paths.root, n_envs=1, seed=0, nominal=True)
    model = trained_policy.load_model(spec, paths, venv, trained)
    env: Any = trained_policy.normalized_env(spec, paths, venv, trained)
    hidden = privileged_values(venv)
    largest: dict[str, float] = {}
    steps = 0
    is_over = False
    observation = env.reset()
    while not is_over and steps < MOST_STEPS:
        steps += 1
        raw = env.get_original_obs() if hasattr(env, "get_original_obs") else observation
        seen = _copy_of(raw, hidden)
        actions, _ = model.predict(observation, deterministic=True)
        expected = _outputs(venv, np.clip(actions, venv.action_space.low, venv.action_space.high))
        for name, values in act(seen).items():
            scale = max(1.0, float(np.abs(expected[name]).max()))
            difference = float(np.abs(values - expected[name]).max()) / scale
            if math.isnan(difference):  # which no comparison finds
                difference = math.inf
            largest[name] = max(largest.get(name, 0.0), difference)
        observation, _, dones, _ = env.step(actions)
        is_over = bool(dones[0])
    return steps, largest


def _copy_of(observation: Observation, hidden: int) -> Observation:
    """What the actor sees of an observation. :param hidden: numbers at its end that it does not."""
    if isinstance(observation, Mapping):
        return {name: np.array(values) for name, values in observation.items()}
    return np.array(observation[:, :-hidden] if hidden else observation)


def _outputs(venv: Any, actions: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
    """What the policy gives: actions and, where the task is one of this program, controls."""
    simulation = getattr(venv, "simulation", None)
    if simulation is None:
        return {ACTION: actions}
    mapping = simulation.task.actions
    ctrl = np.clip(mapping.ctrl(mapping.taken(actions)), *control_limits(simulation.model))
    return {ACTION: actions, CTRL: ctrl}
