"""The built-in tasks under gymnasium's ids: found after ``import orchestrator``, checked by
gymnasium, drawn."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import command_helpers as commands
import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO

import orchestrator
from orchestrator.core.gymnasium_ids import env_id
from orchestrator.core.task_names import EFFORT, TASKS
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


@pytest.mark.parametrize("task", TASKS)
def test_gymnasium_finds_nothing_wrong_with_a_task(task: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*infinity")  # observations have no bounds
        check_env(make(task).unwrapped, skip_render_check=True)


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
            'expected an MJCF file: gymnasium.make("orchestrator/forward-v0", xml=',
        ),
        ({"xml": "gone.xml"}, "xml = gone.xml: expected an MJCF file"),
        ({"xml": mujoco.MjSpec()}, "MjSpec object"),
        ({"xml": f"<mujoco>{'<!-- -->' * 9999}</mujoco>"}, "…: expected an MJCF file"),
        ({"healthy_rewards": 1.0}, "did you mean 'healthy_reward'?"),
        ({"xml": commands.REPOSITORY / "mjcf/arm.xml"}, 'arm.xml: task "forward"'),
    ],
    ids=["no robot", "no file", "a specification", "a text", "option", "misfit"],
)
def test_what_is_wrong_with_the_robot_or_an_option_is_told(
    arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(orchestrator.UsageError) as caught:
        make("forward", **arguments)
    assert expected in str(caught.value)
