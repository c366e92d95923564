"""Task options that change over the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.core.messages import ExaminationRequest
from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.robots.preflight_child import check

MJCF = Path(__file__).parents[3] / "mjcf"
HOPPER = MJCF / "hopper.xml"
OPTIONS = {
    "max_episode_steps": "linear(20, 41)",
    "push_speed": "stages(0, 0.5, 1)",
    "push_period_s": 0.2,
    "healthy_reward": "linear(1, 0, 0.5)",
}
OWN = """
from dataclasses import dataclass
import numpy as np
from orchestrator.worker.tasks import CommonOptions, Task


@dataclass(frozen=True, kw_only=True)
class LiftOptions(CommonOptions):
    weights: tuple[float, float] = (1.0, 1.0)
    inputs: int = 2
    note: str = ""


class Lift(Task):
    Options = LiftOptions

    def __init__(self, model, options):
        super().__init__(model, options)
        self.scale = np.array(options.weights)

    def observe(self, states):
        return states.qpos[:, : self.options.inputs].copy()

    def reward_and_terminated(self, before, action, after):
        return after.qpos[:, :2] @ self.scale, np.zeros(len(action), bool)
"""


def venv(
    task: str, options: dict[str, Any], *, training: bool = True, **changes: Any
) -> MujocoVecEnv:
    settings: Any = {"n_envs": 2, "seed": 3, **changes}
    return MujocoVecEnv(HOPPER, task, options, training=training, **settings)


def test_options_are_those_of_the_moment_and_in_an_evaluation_those_of_the_end() -> None:
    training = venv("stand", OPTIONS)
    seen = []
    for moment in (None, TrainingMoment(0.25, 1), TrainingMoment(0.5, 2), TrainingMoment(1.0, 3)):
        if moment is not None:
            training.move(moment)
        options = training.simulation.task.options
        seen.append(
            (
                options.max_episode_steps,
                options.push_speed,
                options.healthy_reward,
                options.push_period_s,
            )
        )
    assert seen == [
        (20, 0.0, 1.0, 0.2),
        (25, 0.0, 0.5, 0.2),
        (30, 0.5, 0.0, 0.2),
        (41, 1.0, 0.0, 0.2),
    ]
    assert venv("stand", OPTIONS, training=False).simulation.task.options == options


def test_what_a_task_makes_of_its_options_follows_in_running_episodes() -> None:
    changing, last = (
        venv("stand", OPTIONS),
        venv("stand", {**OPTIONS, "max_episode_steps": 25}, training=False),
    )
    changing.reset()
    last.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (24, 2, changing.action_space.shape[0]))
    for action in actions[:4]:
        changing.step(action)
    state = changing.get_state()
    changing.move(TrainingMoment(0.25, 3))
    last.set_state(state)
    task = changing.simulation.task
    assert (task.max_episode_steps, task.push_period) == (25, last.simulation.task.push_period)
    pushed = np.zeros((2, task.model.nv))
    for env in range(2):
        rngs = changing.simulation.generators[env], last.simulation.generators[env]
        pushed[env] = task.push(rngs[0])
        assert np.array_equal(pushed[env], last.simulation.task.push(rngs[1]))
    assert np.linalg.norm(pushed, axis=1) == pytest.approx(1.0)
    lengths = [
        info["episode"]["l"]
        for action in actions[4:]
        for info in changing.step(action)[3]
        if "episode" in info
    ]
    assert lengths.count(25) == 2 or max(lengths) < 25


def examined(task: str, options: dict[str, Any], folder: Path | None = None) -> str | None:
    search_path = None if folder is None else str(folder)
    request = ExaminationRequest(
        xml=str(HOPPER), task=task, task_options=options, simulate_s=0.02, search_path=search_path
    )
    return check(request).problem


def test_options_of_a_users_own_task_change_but_not_what_it_observes(tmp_path: Path) -> None:
    (tmp_path / "lifting.py").write_text(OWN)
    fits = {"weights": ["linear(0, 1)", "stages(2, 3)"], "note": "linear(0, 1)"}
    assert examined("lifting:Lift", fits, tmp_path) is None
    training = venv("lifting:Lift", fits)
    training.move(TrainingMoment(0.5, 2))
    assert training.simulation.task.scale.tolist() == [0.5, 3.0]
    assert training.simulation.task.options.note == "linear(0, 1)"
    problem = examined("lifting:Lift", {"inputs": "linear(2, 3)"}, tmp_path)
    assert 'task_options.inputs = "linear(2, 3)": the number of observations would change' in str(
        problem
    )
