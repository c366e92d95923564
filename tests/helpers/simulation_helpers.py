"""Simulations saved in mid-episode here, and continued in one fresh process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.worker.envs.simulation import Simulation

N_ENVS = 3
Case = tuple[str, str, Mapping[str, Any]]
"""Path of the MJCF, task, options."""


def steps(simulation: Simulation, plan: np.ndarray) -> list[Any]:
    results = [simulation.step(action) for action in plan]
    return [
        [
            result.observations,
            result.rewards,
            result.done,
            [
                (e.env, e.total_reward, e.length, e.terminal_observation.tolist())
                for e in result.ended
            ],
        ]
        for result in results
    ]


def continued(
    cases: Sequence[Case], folder: Path, before: int, after: int
) -> list[tuple[list[Any], list[Any]]]:
    """For each case what the saved simulation itself gives next, and what its copy gives in another
    process."""
    saved, expected = [], []
    for case in cases:
        xml, task, options = case
        simulation = Simulation.from_xml(xml, task, options, n_envs=N_ENVS, seed=7)
        simulation.reset()
        low, high = simulation.task.actions.low * 1.2, simulation.task.actions.high * 1.2
        plan = (
            np.random.default_rng(1)
            .uniform(low, high, (before + after, N_ENVS, len(low)))
            .astype(np.float32)
        )
        for action in plan[:before]:
            last = simulation.step(action).observations
        saved.append((case, simulation.get_state(), last, plan[before:]))
        expected.append(steps(simulation, plan[before:]))
    (folder / "states.pkl").write_bytes(pickle.dumps(saved))
    subprocess.run(
        [sys.executable, __file__, folder / "states.pkl", folder / "out.pkl"],
        check=True,
        timeout=120,
    )
    return list(zip(expected, pickle.loads((folder / "out.pkl").read_bytes()), strict=True))


def assert_same(expected: list[Any], found: list[Any]) -> None:
    for (*arrays, ended), (*others, others_ended) in zip(expected, found, strict=True):
        assert all(
            np.array_equal(array, other) for array, other in zip(arrays, others, strict=True)
        )
        assert ended == others_ended


def main(states: str, out: str) -> None:
    results = []
    for (xml, task, options), state, last, plan in pickle.loads(Path(states).read_bytes()):
        simulation = Simulation.from_xml(xml, task, options, n_envs=N_ENVS, seed=99)
        assert np.array_equal(simulation.set_state(state), last)
        results.append(steps(simulation, plan))
    Path(out).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
