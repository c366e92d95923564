"""A task of the user's own: the documented one works, and whatever is wrong with one is reported
before launch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

import orchestrator
from orchestrator.core.errors import SpecError
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.tasks.task_options import CommonOptions, TaskError, read_options

ROOT = Path(__file__).parents[3]
HOPPER = ROOT / "mjcf/hopper.xml"
SHORT = "total_timesteps = 256\nn_envs = 2\neval_episodes = 2\nppo = { n_steps = 64, batch_size = 64, n_epochs = 1 }\n"


def documented() -> str:
    (snippet,) = re.findall(
        r"```python\n(# my_tasks\.py.*?)```", (ROOT / "docs/tasks.md").read_text(), re.S
    )
    return str(snippet)


def written(folder: Path, snippet: str, name: str = "my_tasks") -> str:
    (folder / f"{name}.py").write_text(snippet)
    return name


def job_file(folder: Path, options: str = "{ effort_weight = 0.1 }") -> Path:
    path = folder / "jobs.toml"
    job = f'name = "jump"\nxml = "{HOPPER}"\ntask = "my_tasks:Jump"\ntask_options = {options}\n'
    path.write_text(f'name = "own"\n[defaults]\n{SHORT}\n[[jobs]]\n{job}')
    return path


def test_the_documented_task_is_under_40_lines_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snippet = documented()
    assert len(snippet.splitlines()) < 40
    monkeypatch.syspath_prepend(tmp_path)
    name = written(tmp_path, snippet, "documented_task")
    env = MujocoVecEnv(
        HOPPER,
        f"{name}:Jump",
        n_envs=4,
        seed=0,
        task_options={"effort_weight": 0.5},
        measuring=True,
    )
    torch.set_num_threads(1)
    PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, device="cpu").learn(512)
    assert env.simulation.task.options.effort_weight == 0.5
    env.reset()
    assert (env.step(np.ones((4, env.simulation.model.nu)))[1] > 0).all(), (
        "to stand is better than to end it all"
    )
    with pytest.raises(
        ValueError, match=r"unknown option 'efort_weight'; did you mean 'effort_weight'"
    ):
        MujocoVecEnv(HOPPER, f"{name}:Jump", n_envs=1, seed=0, task_options={"efort_weight": 1.0})


@pytest.mark.nightly
def test_the_documented_task_runs_from_a_job_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    written(tmp_path, documented())
    (result,) = orchestrator.run(job_file(tmp_path), run_dir=tmp_path / "run").results
    assert result.ok, result.error
    with pytest.raises(SpecError, match="task \"my_tasks:Jump\": unknown option 'efort_weight'"):
        orchestrator.run(job_file(tmp_path, "{ efort_weight = 0.1 }"), run_dir=tmp_path / "other")


WRONG: dict[str, tuple[str, str, str]] = {
    "observe raises": (
        "return np.concatenate((states.qpos[:, 1:], velocities), axis=1, dtype=np.float32)",
        "return states.qpos[:, 77]",
        r"observe raises IndexError: index 77 is out of bounds .*spoilt_\w+\.py:\d+\)",
    ),
    "observation of the wrong shape": (
        "axis=1, dtype=np.float32)",
        "axis=1).mean(axis=1)",
        r"observe gives floating-point numbers of shape \(3,\); expected .*\(3, 1\)",
    ),
    "observation of the wrong type": (
        "dtype=np.float32)",
        "dtype=np.float32).astype(np.int64)",
        r"observe gives int64 of shape \(3, 11\); expected floating-point",
    ),
    "observation that is a view": (
        "return np.concatenate((states.qpos[:, 1:], velocities), axis=1, dtype=np.float32)",
        "return states.qpos[:, 1:]",
        r"observe gives a view of the states; expected a new array",
    ),
    "observation that is not finite": (
        "velocities = np.clip(states.qvel, -10, 10)",
        "velocities = states.qvel * np.inf",
        r"observe gives floating-point .*, of which number 5 is not finite at the start",
    ),
    "one reward for all": (
        "np.square(action).mean(axis=1)",
        "np.square(action).mean() + 0 * after.qpos[:, :1]",
        r"reward_and_terminated gives \(floating-point numbers of shape \(3, 3\).*expected .*of shape \(3,\)",
    ),
    "no pair": (
        "effort, fallen",
        "effort",
        r"reward_and_terminated gives floating-point .*; expected \(floating.*, booleans",
    ),
    "terminations that are numbers": (
        "np.abs(after.qpos[:, 2]) > 1.0",
        "np.abs(after.qpos[:, 2])",
        r"gives \(.*, floating-point numbers of shape \(3,\)\); expected \(.*, booleans",
    ),
    "distances of the wrong shape": (
        "    def measure(self",
        "    def distance_travelled(self, before, after):\n        return after.qpos - before.qpos\n\n"
        "    def measure(self",
        r"distance_travelled gives floating-point numbers of shape \(3, 6\); expected .*\(3,\)",
    ),
    "measures of the wrong shape": (
        "return self._height(after)[:, None]",
        "return self._height(after)",
        r"measure gives floating-point numbers of shape \(3,\); expected .*\(3, 1\)",
    ),
    "no reward at all": (
        "def reward_and_terminated",
        "def reward",
        r"reward_and_terminated raises NotImplementedError",
    ),
    "a field that is none": (
        "    measures =",
        '    fields = ("site_xpoz",)\n    measures =',
        r"fields name 'site_xpoz', which is not available from MjData: .*site_xpos",
    ),
    "a goal of another size": (
        "    measures =",
        "    goal_size = 2\n\n    def sample_goal(self, rng):\n        return rng.uniform(size=3)\n\n    measures =",
        r"sample_goal gives floating-point numbers of shape \(3,\); expected .*\(2,\)",
    ),
    "a start of another size": (
        "    measures =",
        "    def initial_state(self, rng):\n        return np.zeros(3), np.zeros(self.model.nv)\n\n    measures =",
        r"initial_state gives \(floating-point numbers of shape \(3,\).*; expected .*\(6,\)",
    ),
    "a start that is one": (
        "    measures =",
        "    def initial_state(self, rng):\n        return self.pose\n\n    measures =",
        r"initial_state gives floating-point numbers .*; expected \(floating-point",
    ),
    "__init__ that fails": (
        "if model.nq < 3:",
        "if model.nqq < 3:",
        r"making it raises AttributeError: .*nqq",
    ),
    "__init__ that forgets its base": (
        "super().__init__(model, options)",
        "pass",
        r"making it raises AttributeError: .*'options'",
    ),
    "__init__ that refuses the robot": (
        "model.nq < 3",
        "model.nq > 3",
        "needs slide x, slide z and hinge y at the",
    ),
    "options without their decorator": (
        "@dataclass(frozen=True, kw_only=True)\n",
        "",
        r"whose Options, .* with @dataclass\(frozen=True, kw_only=True\) above",
    ),
    "a class that is no task": (
        "Jump(Task)",
        "Jump",
        "is not a class derived from orchestrator.worker.tasks.Task",
    ),
    "no such class": (
        "class Jump(",
        "class Jumping(",
        r"module .* has nothing to call named 'Jump'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_task_is_one_clear_message(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, message = WRONG[case]
    assert documented().count(good) == 1
    monkeypatch.syspath_prepend(tmp_path)
    name = written(
        tmp_path, documented().replace(good, bad), f"spoilt_{re.sub(r'[^a-z]', '_', case)}"
    )
    with pytest.raises(ValueError, match=message) as raised:
        Simulation.from_xml(HOPPER, f"{name}:Jump", n_envs=1, seed=0)
    assert f"{name}:Jump" in str(raised.value) or "site_xpoz" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("fields", ['("actuator_force",)', '("act", "actuator_force")'])
@pytest.mark.parametrize(
    ("task", "robot"),
    [
        ("forward.Forward", "quadruped"),
        ("stand.Stand", "biped"),
        ("track.Track", "rover"),
        ("balance.Balance", "balancer"),
        ("reach.Reach", "arm"),
    ],
)
def test_a_task_derived_from_a_built_in_one_has_further_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, robot: str, fields: str
) -> None:
    """And its observations are those of the task that it is derived from."""
    monkeypatch.syspath_prepend(tmp_path)
    module, base = task.split(".")
    code = f"""from orchestrator.worker.tasks.{module} import {base}


class Effort({base}):
    fields = {fields}

    def reward_and_terminated(self, before, action, after):
        _, terminated = super().reward_and_terminated(before, action, after)
        return abs(after.fields["actuator_force"]).sum(axis=1), terminated
"""
    name = written(tmp_path, code, f"effort_{module}_{len(fields)}")
    xml = ROOT / f"mjcf/{robot}.xml"
    derived = Simulation.from_xml(xml, f"{name}:Effort", n_envs=2, seed=0)
    built_in = Simulation.from_xml(xml, module, n_envs=2, seed=0)
    assert np.array_equal(derived.reset(), built_in.reset())
    actions = np.ones((2, derived.task.model.nu), np.float32)
    ours, usual = derived.step(actions), built_in.step(actions)
    assert np.array_equal(ours.observations, usual.observations)
    assert (ours.rewards > 0).all()


def test_a_spoilt_task_is_refused_before_launch(tmp_path: Path) -> None:
    written(tmp_path, documented().replace("axis=1, dtype=np.float32)", "axis=1).mean()"))
    with pytest.raises(SpecError, match=r"my_tasks:Jump: observe gives a float64; expected"):
        orchestrator.run(job_file(tmp_path), run_dir=tmp_path / "run")
    assert not list((tmp_path / "run").glob("jobs/*/attempts"))


@dataclass(frozen=True, kw_only=True)
class Remarked(CommonOptions):
    offset: Annotated[float, "metres"] = 0.0
    colour: Annotated[str, "of the floor"] = ""


def test_remarks_of_ones_own_about_an_option_do_not_bound_it() -> None:
    options = read_options("own", Remarked, {"offset": -1.0, "colour": "red"})
    assert (options.offset, options.colour) == (-1.0, "red")


WRONG_OPTIONS = {
    "a required option is missing": ("speed: float", r'option "speed" is missing in task_options'),
    "a type that only a type checker imports": (
        "weights: Sequence[float] = ()",
        r"Wanted raises NameError: name 'Sequence'",
    ),
    "an error of another kind": (
        "speed: float = 1.0\n\n    def __post_init__(self): raise KeyError('gait')",
        r"Wanted raises KeyError: 'gait' \(.*\.py:\d+\)",
    ),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_what_is_wrong_with_the_options_of_a_task_is_one_clear_message(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, message = WRONG_OPTIONS[case]
    monkeypatch.syspath_prepend(tmp_path)
    code = f"""from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.worker.tasks import CommonOptions, Forward

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Wanted(Forward.Options):
    {fields}


class Own(Forward):
    Options = Wanted
"""
    name = written(tmp_path, code, f"options_{re.sub(r'[^a-z]', '_', case)}")
    with pytest.raises(TaskError, match=message) as raised:
        Simulation.from_xml(HOPPER, f"{name}:Own", {"max_episode_steps": 5}, n_envs=1, seed=0)
    assert f'task "{name}:Own"' in str(raised.value)
    assert raised.value.is_certain
