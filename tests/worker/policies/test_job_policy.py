"""``orchestrator.load`` and ``make_env``: policies of jobs of every kind, in a script's process."""

from __future__ import annotations

import json
import random
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import worker_helpers as helpers
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

import orchestrator
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import JobPaths
from orchestrator.core.robot_hash import hash_of_copy

ROBOTS = {
    "forward": "hopper",
    "stand": "quadruped",
    "track": "quadruped",
    "balance": "balancer",
    "reach": "arm",
}


EPISODES = 3


def trained(directory: Path, **changes: Any) -> JobPaths:
    paths = helpers.job(
        directory, helpers.spec(**{"total_timesteps": 256, "checkpoint_every": 128, **changes})
    )
    helpers.train_to_its_end(paths)
    return paths


def trained_task(directory: Path, task: str, **changes: Any) -> JobPaths:
    """A job of a built-in task, with the robot's copy and its hash as the supervisor leaves
    them."""
    robot = directory / f"robot/{ROBOTS[task]}.xml"
    robot.parent.mkdir(parents=True)
    shutil.copyfile(helpers.REPOSITORY / "mjcf" / robot.name, robot)
    JobPaths(directory).robot_hash.write_text(hash_of_copy(robot.parent, robot.name) or "")
    job = {"job_id": directory.name, "task": task, "xml": f"robot/{robot.name}", "normalize": True}
    evaluated = {"task_options": {"max_episode_steps": 60}, "eval_episodes": EPISODES}
    return trained(directory, **evaluated, **job, **changes)


@pytest.fixture(scope="module")
def balancer(tmp_path_factory: pytest.TempPathFactory) -> JobPaths:
    """Not to be changed."""
    return trained_task(tmp_path_factory.mktemp("jobs") / "balancer-s3", "balance")


@pytest.fixture
def copy(balancer: JobPaths, tmp_path: Path) -> JobPaths:
    """A copy of it to do anything with."""
    return JobPaths(Path(shutil.copytree(balancer.root, tmp_path / "run/jobs/balancer-s3")))


def deterministic(paths: JobPaths) -> Any:
    return json.loads(paths.eval.read_text())["deterministic"]


def returns(paths: JobPaths, **arguments: Any) -> tuple[list[float], list[int]]:
    evaluation = json.loads(paths.eval.read_text())
    model, env = orchestrator.load(paths.root, n_envs=evaluation["n_envs"], **arguments)
    rewards, lengths = evaluate_policy(
        model, env, evaluation["episodes"], return_episode_rewards=True
    )
    return list(rewards), list(lengths)  # type: ignore[arg-type]


def test_a_loaded_policy_has_the_returns_of_the_evaluation_to_the_bit(balancer: JobPaths) -> None:
    expected = deterministic(balancer)
    assert returns(balancer) == (expected["returns"], expected["lengths"])
    assert returns(balancer, checkpoint="latest") == (expected["returns"], expected["lengths"])
    assert returns(balancer, seed=1) != (expected["returns"], expected["lengths"])


def test_a_policy_acts_with_another_robot_that_fits_it(balancer: JobPaths, tmp_path: Path) -> None:
    own = (balancer.root / "robot/balancer.xml").read_text()
    heavier = tmp_path / "heavier.xml"
    heavier.write_text(own.replace('density="600"', 'density="1200"'))
    of_file = tmp_path / "same.xml"
    of_file.write_text(own)
    assert returns(balancer, xml=of_file) == returns(balancer)
    assert returns(balancer, xml=str(heavier)) != returns(balancer)
    one = orchestrator.make_env(balancer.root, None, xml=heavier)
    batch = orchestrator.make_env(balancer.root, 1, xml=heavier)
    np.testing.assert_array_equal(one.reset()[0], batch.reset()[0])
    action = np.ones((1, 1), np.float32)
    np.testing.assert_array_equal(one.step(action[0])[0], batch.step(action)[0][0])


SECOND_POLE = """<body pos="0.2 0 0.06"><joint name="second" axis="0 1 0"/><geom size="0.05"/></body>
      <body name="pole" """


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"cart"', '"wagon"', "observation 0 'cart position', and this robot 'wagon position'"),
        ('<body name="pole" ', SECOND_POLE, r"observations \(5,\), and this robot \(8,\)"),
        ('timestep="0.01"', 'timestep="0.05"', r"control period in s 0\.02, and this robot 0\."),
        ('name="pole" type="hinge"', 'name="pole" type="ball"', "needs a base driven by slide"),
        ("<worldbody>", "<world>", "XML parse error"),
    ],
)
def test_another_robot_that_does_not_fit_is_refused_with_what_differs(
    balancer: JobPaths, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    other = tmp_path / "other.xml"
    other.write_text((balancer.root / "robot/balancer.xml").read_text().replace(old, new))
    with pytest.raises(orchestrator.UsageError, match=expected) as refused:
        orchestrator.load(balancer.root, xml=other)
    assert str(refused.value).startswith(f"balancer-s3: xml = {other}: ")


def test_the_model_is_stock_and_the_environment_has_frozen_statistics(balancer: JobPaths) -> None:
    for checkpoint in (None, 128):
        model, env = orchestrator.load(balancer.root, checkpoint=checkpoint, n_envs=2)
        assert type(model) is PPO
        assert model.env is None
        assert isinstance(env, VecNormalize)
        assert not env.training
        assert not env.norm_reward
        before = env.obs_rms.mean.tobytes()  # type: ignore[union-attr]
        observations = env.reset()
        for _ in range(5):
            actions, _ = model.predict(observations, deterministic=True)  # type: ignore[arg-type]
            observations, rewards, _, _ = env.step(actions)
            assert np.array_equal(rewards, env.get_original_reward())
        assert env.obs_rms.mean.tobytes() == before  # type: ignore[union-attr]


@pytest.mark.parametrize("normalize", [True, False])
def test_one_environment_of_gymnasium_steps_as_the_vectorised_one_does(
    balancer: JobPaths, normalize: bool
) -> None:
    venv = orchestrator.make_env(balancer.root, normalize=normalize, seed=5)
    env = orchestrator.make_env(balancer.root, None, normalize)
    assert isinstance(env, gymnasium.Env)
    observation, _ = env.reset(seed=5)
    assert np.array_equal(venv.reset(), observation[None])
    drawn, ends = np.random.default_rng(0), 0
    for _ in range(150):
        action = drawn.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        observations, rewards, dones, infos = venv.step(action[None])
        assert rewards[0] == np.float32(reward)
        assert dones[0] == (terminated or truncated)
        if dones[0]:
            ends += 1
            assert infos[0]["TimeLimit.truncated"] == truncated
            assert infos[0]["measures"] == info["measures"]
            assert infos[0]["episode"]["r"] == pytest.approx(info["episode"]["r"], abs=1e-5)
            assert np.array_equal(infos[0]["terminal_observation"], observation)
            observation, _ = env.reset()
        assert np.array_equal(observations, observation[None])
    assert ends >= 2
    with pytest.raises(
        orchestrator.UsageError, match="n_envs = 0: expected a whole number of at least 1, or None"
    ):
        orchestrator.make_env(balancer.root, 0)


def test_loading_leaves_the_random_numbers_of_the_script_as_they_were(balancer: JobPaths) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.random(), torch.rand(1).item()

    def seed() -> None:
        for generator in (random.seed, np.random.seed, torch.manual_seed):
            generator(7)

    seed()
    expected = draw()
    for checkpoint in (None, "latest"):
        seed()
        orchestrator.load(balancer.root, checkpoint=checkpoint)
        assert draw() == expected


OWN = """
import gymnasium
import numpy as np

BOX = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
DICT = gymnasium.spaces.Dict({"arm": BOX, "eye": gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)})


class Own(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = DICT
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, xml, seed, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def observation(self):
        eye = self.np_random.integers(0, 255, (36, 36, 1), np.uint8)
        return {"arm": self.np_random.random(3, np.float32), "eye": eye}

    def step(self, action):
        self.steps += 1
        return self.observation(), float(action.sum()), False, self.steps == 10, {}

    def render(self):
        return np.full((8, 8, 3), 200, np.uint8)


def blind(xml, seed):
    return Own(xml, seed)
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A folder with the user's environment, of images and numbers."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/own_env.py").write_text(OWN)
    path = list(sys.path)
    yield tmp_path / "code"
    sys.path[:] = path
    sys.modules.pop("own_env", None)


@pytest.mark.nightly
def test_a_policy_over_images_and_numbers_of_the_users_own_environment_loads(
    own: Path, tmp_path: Path
) -> None:
    shape = {
        "policy": "MultiInputPolicy",
        "policy_kwargs": {"net_arch": [4]},
        "normalize": True,
        "eval_episodes": 2,
    }
    paths = trained(tmp_path / "job", entry_point="own_env:Own", search_path=str(own), **shape)
    sys.modules.pop("own_env", None)
    expected = deterministic(paths)
    assert returns(paths) == (expected["returns"], expected["lengths"])
    assert sys.path[-1] == str(own)
    model, env = orchestrator.load(paths.root, n_envs=None, render_mode="rgb_array")
    observation, _ = env.reset(seed=1)
    assert observation["eye"].dtype == np.uint8
    assert model.predict(observation)[0].shape == (2,)
    assert env.render().shape == (8, 8, 3)  # type: ignore[union-attr]

    spec = json.loads(paths.spec.read_text())
    paths.spec.write_text(json.dumps(spec | {"entry_point": "own_env:blind"}))
    with pytest.raises(orchestrator.UsageError, match="unexpected keyword argument 'render_mode'"):
        orchestrator.make_env(paths.root, render_mode="rgb_array")
    other = tmp_path / "other"
    shutil.copytree(own, other)
    (other / "own_env.py").write_text((own / "own_env.py").read_text() + "\n# another one")
    ours = json.loads(paths.spec.read_text())
    paths.spec.write_text(json.dumps(ours | {"search_path": str(other)}))
    with pytest.raises(
        orchestrator.UsageError, match=f"its module own_env is {other}/own_env.py, and this program"
    ):
        orchestrator.load(paths.root)
    paths.spec.write_text(json.dumps(ours))
    sys.path.remove(str(own))
    sys.modules.pop("own_env")
    own.rename(tmp_path / "moved")
    with pytest.raises(orchestrator.UsageError, match="there is no module 'own_env'"):
        orchestrator.load(paths.root)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "changes",
    [
        {"env": "CartPole-v1"},
        {"env": "Hopper-v5", "normalize": True},
        {"algo": "sac", "env": "Pendulum-v1", "hyperparameters": helpers.SMALL["sac"]},
    ],
    ids=["discrete", "gymnasium's MuJoCo", "off-policy"],
)
def test_policies_in_environments_of_gymnasium_have_their_returns(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    paths = trained(tmp_path / "job", eval_episodes=2, policy_kwargs={"net_arch": [8]}, **changes)
    expected = deterministic(paths)
    assert returns(paths) == (expected["returns"], expected["lengths"])


def test_without_a_finished_policy_the_latest_checkpoint_is_loaded_with_a_warning(
    copy: JobPaths,
) -> None:
    copy.model.unlink()
    copy.checkpoints.joinpath("checkpoint-000000000256.pt").unlink()
    copy.attempt(0).exit.write_text(
        json.dumps({"code": int(ExitCode.ERROR), "message": "the knee fell off"})
    )
    expected = "balancer-s3: the policy was trained for 128 of 256 env_steps. Its training failed: the knee fell off"
    with pytest.warns(orchestrator.UnfinishedPolicyWarning) as caught:
        model, _ = orchestrator.load(copy.root)
    assert str(caught[0].message) == expected
    assert caught[0].filename == __file__
    assert model.num_timesteps == 128
    orchestrator.make_env(copy.root)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # who asks for it knows
        orchestrator.load(copy.root, checkpoint=128)
        orchestrator.make_env(copy.root, normalize=False)
    copy.attempt(0).exit.unlink()
    with pytest.warns(orchestrator.UnfinishedPolicyWarning, match="left no exit record"):
        orchestrator.load(copy.root)


def test_what_cannot_be_loaded_says_what_is_missing_and_what_to_do(copy: JobPaths) -> None:
    def refusal(path: Path, **arguments: Any) -> str:
        with pytest.raises(orchestrator.UsageError) as caught:
            orchestrator.load(path, **arguments)
        return str(caught.value)

    run = copy.root.parent.parent
    assert "No such file or directory" in refusal(run / "gone")
    assert (
        "this is a run directory, with the jobs balancer-s3; expected a job's directory"
        in refusal(run)
    )
    (run / "jobs/waiting-s0").mkdir()
    assert "spec.json, which is written when a job is launched" in refusal(run / "jobs/waiting-s0")
    assert "existing checkpoints: 128, 256" in refusal(copy.root, checkpoint=5)
    assert "has no checkpoint gone.pt; expected a file" in refusal(
        copy.root, checkpoint=Path("gone.pt")
    )
    assert "expected None, human or rgb_array" in refusal(copy.root, render_mode="ascii")
    copy.model.write_bytes(copy.model.read_bytes()[:500])
    assert f"{copy.model} cannot be loaded" in refusal(copy.root)
    copy.vecnormalize.unlink()
    assert f"{copy.vecnormalize} cannot be loaded" in refusal(copy.root)
    copy.model.unlink()
    shutil.rmtree(copy.checkpoints)
    assert "balancer-s3: it has neither a policy nor a checkpoint" in refusal(copy.root)
    copy.spec.write_text("{}")
    assert f"{copy.spec}: cannot be read" in refusal(copy.root)


def test_the_copy_of_the_robot_is_used_and_what_is_wrong_with_it_is_told(copy: JobPaths) -> None:
    robot = copy.robot / "balancer.xml"
    robot.write_text(robot.read_text().replace("<worldbody>", "<worldbody><site name='added'/>"))
    with pytest.warns(
        orchestrator.AlteredRobotWarning, match="differ from the robot that was examined"
    ) as caught:
        orchestrator.make_env(copy.root)
    assert caught[0].filename == __file__
    robot.unlink()
    with pytest.raises(
        orchestrator.UsageError, match=f"{robot}: the job's own copy of the robot is missing"
    ):
        orchestrator.make_env(copy.root)
