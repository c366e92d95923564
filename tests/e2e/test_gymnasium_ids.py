"""The built-in tasks under gymnasium's ids: found after ``import orchestrator``, checked by
gymnasium, drawn."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import command_helpers as commands
import gymnasium
import mujoco
import mujoco.viewer
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

import orchestrator
from orchestrator.core.gymnasium_ids import env_id
from orchestrator.core.task_names import EFFORT, TASKS
from orchestrator.worker.rendering import live_view
from orchestrator.worker.runtime import sb3_internals

ROBOTS = {
    "forward": "hopper",
    "stand": "quadruped",
    "track": "quadruped",
    "balance": "balancer",
    "reach": "arm",
}


def make(task: str, **arguments: Any) -> gymnasium.Env:
    return gymnasium.make(
        f"orchestrator.envs:{env_id(task)}",
        **{"xml": commands.REPOSITORY / f"mjcf/{ROBOTS[task]}.xml", **arguments},
    )


@pytest.mark.parametrize(
    "code",
    [
        "import gymnasium, orchestrator; gymnasium.spec('orchestrator/reach-v0')",
        "import orchestrator.envs, gymnasium; gymnasium.spec('orchestrator/reach-v0')",
    ],
    ids=["gymnasium first", "the module with environments first"],
)
def test_gymnasium_knows_the_tasks_after_an_import(code: str) -> None:
    code += "; import sys; assert not {'torch', 'stable_baselines3', 'mujoco'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=commands.REPOSITORY, check=True)


@pytest.mark.parametrize(
    ("imports", "module"),
    [
        pytest.param(
            "orchestrator, gymnasium",
            "orchestrator.envs",
            id="package first",
            marks=pytest.mark.nightly,
        ),
        pytest.param("gymnasium", "orchestrator", id="gymnasium alone"),
    ],
)
def test_a_module_in_the_id_makes_gymnasium_know_the_tasks(imports: str, module: str) -> None:
    code = (
        f"import {imports}; gymnasium.make('{module}:orchestrator/balance-v0', "
        "xml='mjcf/balancer.xml').reset(seed=0); "
        "import sys; assert not {'torch', 'stable_baselines3'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=commands.REPOSITORY, check=True)


@pytest.mark.parametrize("task", TASKS)
def test_gymnasium_finds_nothing_wrong_with_a_task(task: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*infinity")  # observations have no bounds
        check_env(make(task).unwrapped, skip_render_check=True)


@pytest.mark.usefixtures("opengl")
@pytest.mark.nightly
def test_gymnasium_finds_nothing_wrong_with_the_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "display_problem", lambda: "no display in this test")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*infinity")
        warnings.filterwarnings(
            "ignore", message='render_mode="human" shows nothing: no display in this test'
        )
        check_env(make("balance").unwrapped)
    env = make("balance", render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    assert isinstance(first, np.ndarray)
    assert (first.shape, first.dtype) == ((480, 640, 3), np.uint8)
    assert np.ptp(first) > 100  # something is to be seen
    for _ in range(20):
        env.step(env.action_space.high)
    assert np.abs(env.render().astype(int) - first).max() > 50  # type: ignore[union-attr]  # and it moves
    env.close()
    with pytest.warns(
        RuntimeWarning, match='shows nothing: no display in this test; render_mode="rgb_array"'
    ):
        make("balance", render_mode="human")


class Viewer:
    """In place of MuJoCo's, which needs a display: counts what it shows, until ``open`` is
    False."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, **_: Any) -> None:
        self.data, self.times, self.open = data, [], True
        self.cam, self.lock = mujoco.MjvCamera(), contextlib.nullcontext
        self.is_running, self.close = lambda: self.open, lambda: setattr(self, "open", False)

    def sync(self) -> None:
        self.times.append(self.data.time)


def test_a_window_shows_every_step_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, finished_once: commands.Experiment
) -> None:
    viewers: list[Viewer] = []

    def launch(*arguments: Any, **settings: Any) -> Viewer:
        viewers.append(Viewer(*arguments, **settings))
        return viewers[-1]

    monkeypatch.setattr(live_view, "display_problem", lambda: None)
    monkeypatch.setattr(mujoco.viewer, "launch_passive", launch)
    env = make("balance", render_mode="human")
    job = orchestrator.make_env(finished_once.run_dir / "jobs/balancer-s0", 2, render_mode="human")
    env.reset(seed=0)
    job.reset()
    for _ in range(2):
        env.step(np.zeros(env.action_space.shape, np.float32))
        job.step(np.zeros((2, *env.action_space.shape), np.float32))
    for viewer in viewers:
        assert viewer.times == pytest.approx([0.0, 0.02, 0.04])
        viewer.open = False
    assert env.render() is None
    assert job.render() is None
    assert [len(viewer.times) for viewer in viewers] == [3, 3]
    env.close()
    job.close()


@pytest.mark.usefixtures("opengl")
@pytest.mark.nightly
def test_the_environments_of_a_job_are_drawn_side_by_side(
    finished_once: commands.Experiment,
) -> None:
    env = orchestrator.make_env(
        finished_once.run_dir / "jobs/hopper-s0", 2, render_mode="rgb_array"
    )
    assert isinstance(env, VecNormalize)
    env.reset()
    tiles = env.render()
    assert tiles is not None
    assert tiles.shape[0] * tiles.shape[1] == 2 * 480 * 640
    env.close()


def test_the_same_seed_gives_the_same_episodes_and_ends_are_those_of_the_task() -> None:
    def episode(seed: int) -> list[bytes]:
        env = make(
            "forward", task_options={"max_episode_steps": 30}, terminate_when_unhealthy=False
        )
        observation, _ = env.reset(seed=seed)
        seen = [observation.tobytes()]
        for step in range(1, 31):
            observation, _, terminated, truncated, info = env.step(
                np.zeros(env.action_space.shape, np.float32)
            )
            seen.append(observation.tobytes())
            assert (terminated, truncated) == (False, step == 30)
        assert list(info["measures"]) == ["distance_m", *EFFORT]
        return seen

    assert episode(1) == episode(1)
    assert not set(episode(1)) & set(episode(2))


def test_code_that_knows_only_gymnasium_trains_on_a_task() -> None:
    sb3_internals.keep_compiler_out()  # its import takes longer than the training
    model = PPO("MlpPolicy", make("balance"), n_steps=64, n_epochs=1, device="cpu").learn(64)
    assert model.num_timesteps == 64
    wrapped = [lambda: gymnasium.wrappers.RecordEpisodeStatistics(make("forward"))] * 2
    envs = gymnasium.vector.SyncVectorEnv(
        wrapped, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    observations, _ = envs.reset(seed=3)
    assert len({row.tobytes() for row in observations}) == 2
    infos: list[dict[str, Any]] = []
    while not any("final_info" in info for info in infos):
        *_, info = envs.step(envs.action_space.sample())
        infos.append(info)
    envs.close()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"xml": None},
            'no robot is given; expected an MJCF file: gymnasium.make("orchestrator/forward-v0", xml=',
        ),
        ({"xml": "gone.xml"}, "gone.xml: no such file; expected an MJCF file"),
        ({"healthy_rewards": 1.0}, 'did you mean "healthy_reward"?'),
        ({"xml": commands.REPOSITORY / "mjcf/arm.xml"}, 'arm.xml: task "forward"'),
    ],
    ids=["no robot", "no file", "option", "misfit"],
)
def test_what_is_wrong_with_the_robot_or_an_option_is_told(
    arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(orchestrator.UsageError) as caught:
        make("forward", **arguments)
    assert expected in str(caught.value)


def test_a_robot_that_was_moved_is_still_in_the_job(
    finished: commands.Experiment, tmp_path: Path
) -> None:
    moved = finished.run_dir.rename(tmp_path / "elsewhere")
    model, env = orchestrator.load(moved / "jobs/balancer-s0")
    actions, _ = model.predict(env.reset(), deterministic=True)  # type: ignore[arg-type]
    assert env.step(actions)[0].shape == env.reset().shape  # type: ignore[union-attr]
