"""With ``on_divergence = "end-episode"``, physics that diverges ends one episode instead of the
job."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import worker_helpers as helpers
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.divergence_wrapper import DivergenceCheck
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.training.checkpoint import Checkpoints
from orchestrator.worker.training.divergences import COLUMN, Divergences
from orchestrator.worker.training.recorder import Recorder
from orchestrator.worker.training.training_state import LoopState

MJCF = Path(__file__).parents[3] / "mjcf"
TASK = """
import numpy as np
from orchestrator.worker.tasks.forward import Forward


class Torn(Forward):
    '''In {share} of its episodes the physics diverges at the first step.'''

    def initial_state(self, rng):
        qpos, qvel = super().initial_state(rng)
        return qpos, np.full_like(qvel, 1e300) if rng.random() < {share} else qvel
"""


def hopper(**settings: Any) -> Simulation:
    return Simulation.from_xml(MJCF / "hopper.xml", "forward", n_envs=3, seed=7, **settings)


def spoilt(simulation: Simulation, env: int, component: str, value: float) -> None:
    getattr(simulation.states, component)[env, 3] = value


# -- a batch of a built-in task


@pytest.mark.parametrize("value", [1e12, np.nan])
@pytest.mark.parametrize("component", ["qvel", "qpos"])
def test_the_diverged_environment_falls_and_the_others_keep_their_bits(
    component: str, value: float
) -> None:
    simulation, untouched = hopper(on_divergence="end-episode"), hopper()
    plan = np.random.default_rng(0).uniform(-1, 1, (12, 3, 3))
    for each in (simulation, untouched):
        each.reset()
        for action in plan[:3]:
            each.step(action)
    spoilt(simulation, 1, component, value)
    result, expected = simulation.step(plan[3]), untouched.step(plan[3])
    (episode,) = result.ended
    assert (episode.env, episode.length, episode.truncated) == (1, 4, False)
    assert "hopper.xml: environment 1 at simulation time" in episode.divergence
    assert np.isfinite(episode.terminal_observation).all()
    assert np.isfinite([episode.total_reward, *result.rewards]).all()
    assert result.done.tolist() == [False, True, False]
    for others in (0, 2):
        assert np.array_equal(result.observations[others], expected.observations[others])
        assert result.rewards[others] == expected.rewards[others]
    # The environment goes on with a new episode, and the divergence is not reported again.
    for action in plan[4:]:
        result, expected = simulation.step(action), untouched.step(action)
        assert np.isfinite(result.observations).all()
        assert not any(episode.divergence for episode in result.ended)
        assert np.array_equal(result.observations[0], expected.observations[0])


@pytest.mark.filterwarnings("ignore:overflow encountered in dot")
@pytest.mark.parametrize("on_divergence", ["fail", "end-episode"])
def test_finite_numbers_whose_squares_are_not_are_no_divergence(on_divergence: str) -> None:
    simulation = hopper(on_divergence=on_divergence)
    simulation.reset()
    simulation._batch.bind("time")[0] = 1e200
    assert not simulation.step(np.zeros((3, 3))).ended


# -- an environment of gymnasium's


class Keeping(gymnasium.Env[Any, Any]):
    """A simulation whose warning counters nobody clears."""

    render_mode = None

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {"position": gymnasium.spaces.Box(-9, 9, (1,))}
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,))
        body = '<body><joint type="slide"/><geom size=".1"/></body>'
        self.model = mujoco.MjModel.from_xml_string(
            f"<mujoco><worldbody>{body}</worldbody></mujoco>"
        )
        self.data = mujoco.MjData(self.model)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.data.qpos[:] = self.data.qvel[:] = 0
        return {"position": self.data.qpos.copy()}, {}

    def step(self, action: Any) -> Any:
        mujoco.mj_step(self.model, self.data)
        return {"position": self.data.qpos * np.nan}, np.nan, False, False, {"own": 1}


def test_an_environment_of_gymnasiums_ends_its_episode_and_starts_anew() -> None:
    mujoco.set_mju_user_warning(lambda _: None)
    env = DivergenceCheck(Keeping(), "slider", "end-episode")
    env.reset()
    env.unwrapped.data.qvel[0] = np.inf
    observation, reward, terminated, truncated, info = env.step(np.zeros(1))
    assert (observation, reward, terminated, truncated) == ({"position": 0.0}, 0.0, True, False)
    assert info["own"] == 1
    assert "slider: physics diverged" in info["divergence"]
    env.reset()
    assert env.step(np.zeros(1))[2] is False
    env.unwrapped.data.qvel[0] = np.inf
    with pytest.raises(Diverged):
        env.step(np.full(1, np.nan))


# -- whole trainings


def torn_task(folder: Path, share: float) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "torn_task.py").write_text(TASK.format(share=share))
    options = {"max_episode_steps": 5}
    return {
        "task": "torn_task:Torn",
        "task_options": options,
        "search_path": str(folder),
        "normalize": True,
    }


def prepared(folder: Path, given: WorkerSpec) -> JobPaths:
    paths = helpers.job(folder, given)
    paths.robot.mkdir(exist_ok=True)
    shutil.copy(MJCF / "hopper.xml", paths.robot)
    return paths


def divergences(paths: JobPaths) -> list[int]:
    with paths.progress_csv.open(newline="") as file:
        return [int(row[COLUMN]) for row in csv.DictReader(file)]


TRAININGS = {
    "fast": {"learner": "fast"},
    "sb3": {"learner": "sb3"},
    "sac": {"algo": "sac", "hyperparameters": helpers.SMALL_BUFFER},
}


def spec_of(learner: str, **changes: Any) -> WorkerSpec:
    values = {"total_timesteps": 1536, "checkpoint_every": 512, "policy_kwargs": {"net_arch": [8]}}
    return helpers.spec(xml="robot/hopper.xml", **{**values, **TRAININGS[learner], **changes})


@pytest.mark.parametrize(
    "learner", ["fast", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("sb3", "sac"))]
)
def test_a_training_survives_few_divergences_and_killed_and_resumed_has_the_same_bits(
    learner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = torn_task(tmp_path, 0.006)
    paths = prepared(
        tmp_path / "whole", spec_of(learner, **torn, on_divergence="end-episode", eval_episodes=2)
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            Checkpoints, "drop_replay", lambda store: None
        )  # as where a job is killed before its end
        record, log = helpers.train_here(paths)
    assert record.code == ExitCode.SUCCEEDED, log
    assert record.divergences == sum(divergences(paths)) > 0
    assert "physics diverged" in log
    # As if it had been killed after the checkpoint before the last.
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    killed = JobPaths(tmp_path / "killed")
    max(killed.checkpoints.glob("*.pt")).unlink()
    again, log = helpers.train_here(killed, 1)
    assert again.resumed_from is not None, log
    assert again.weights_sha256 == record.weights_sha256
    assert again.divergences == record.divergences
    assert divergences(killed) == divergences(paths)


def test_too_many_divergences_end_the_job_and_say_how_many(tmp_path: Path) -> None:
    torn = torn_task(tmp_path, 0.2)
    paths = prepared(tmp_path / "job", spec_of("fast", **torn, on_divergence="end-episode"))
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.DIVERGED, log
    assert f"physics diverged in {record.divergences} of " in record.message
    assert "tolerates 1 %" in record.message
    assert sum(divergences(paths)) == record.divergences
    assert not paths.model.exists()


def test_by_default_the_first_divergence_ends_the_job_and_nothing_is_counted(
    tmp_path: Path,
) -> None:
    paths = prepared(tmp_path / "job", spec_of("fast", **torn_task(tmp_path, 0.2)))
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.DIVERGED, log
    assert record.divergences is None
    assert COLUMN not in paths.progress_csv.read_text()


# -- counting


class TwoRanks(Ranks):
    """The other rank has ended 60 episodes, of which six diverged."""

    size = 2

    def all_gather_array(self, array: np.ndarray) -> np.ndarray:
        return np.stack([array, np.array([60, 6])])


def divergences_of(ranks: Ranks, loop: LoopState) -> Divergences:
    recorder = Recorder(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]), lambda: None)
    attempt: Any = SimpleNamespace(
        model=SimpleNamespace(logger=Logger(None, []), num_timesteps=100),
        ranks=ranks,
        facts=AttemptFacts(started=0.0),
    )
    return Divergences(recorder, attempt, loop)


def test_divergences_of_all_ranks_count() -> None:
    counted = divergences_of(TwoRanks(), LoopState(divergences=3))
    counted.before_row()
    assert counted._attempt.model.logger.name_to_value[COLUMN] == 6
    assert not counted.is_due({})
    assert (counted.total, list(counted.recent)) == (9, [(60, 6)])
    counted.before_row()
    with pytest.raises(Diverged, match="12 of 120 episodes of the last 100 iterations"):
        counted.is_due({})


@pytest.mark.parametrize(
    ("recent", "is_too_many"),
    [
        ([(20, 10)], False),
        ([(20, 11)], True),
        ([(600, 5), (500, 6)], False),
        ([(600, 5), (499, 6)], True),
        ([(100, 100), *[(100, 0)] * 100], False),
        ([*[(100, 0)] * 1000, (200, 110)], True),
    ],
)
def test_one_percent_of_the_last_hundred_iterations_and_any_ten_are_tolerated(
    recent: list[tuple[int, int]], is_too_many: bool
) -> None:
    counted = divergences_of(ALONE, LoopState(recent_episodes=recent))
    if is_too_many:
        with pytest.raises(Diverged):
            counted.is_due({})
    else:
        assert not counted.is_due({})
