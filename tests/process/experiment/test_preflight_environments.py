"""Preflight of environments and of users' tasks: one clear message for whatever is wrong with
them."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.messages import ExaminationRequest
from orchestrator.examination.examination_requests import requests_of
from orchestrator.examination.preflight import examine
from orchestrator.jobfile import from_mapping
from orchestrator.worker.robots.preflight_child import check

ROOT = Path(__file__).parents[3]
HOPPER = ROOT / "mjcf" / "hopper.xml"


def test_what_a_task_of_the_users_own_raises_is_told_with_the_robot(
    tmp_path: Path, search_path: str
) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "from orchestrator.worker.tasks import Task\n\n\nclass Broken(Task):\n"
        "    def __init__(self, model, options):\n        raise KeyError('nose')\n"
    )
    answer = check(
        ExaminationRequest(xml=str(HOPPER), task="my_tasks:Broken", search_path=search_path)
    )
    assert answer.problem is not None
    assert re.match(f"{HOPPER}: .*KeyError: 'nose' .*my_tasks.py:6", answer.problem)
    assert answer.figures["nq"] == 6


ENVIRONMENTS = """
import threading

import gymnasium
import numpy as np
from gymnasium import spaces


class Env(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, xml=None, seed=0, mode="good"):
        self.mode = mode
        box = spaces.Box(-1, 1, (2,), np.float32)
        if mode == "dict_action":
            self.action_space = spaces.Dict({"a": spaces.Discrete(2)})
        if mode == "endless_action":
            self.action_space = spaces.Box(-np.inf, np.inf, (1,))
        if mode in ("dict", "nested", "lacking"):
            inner = spaces.Dict({"b": box}) if mode == "nested" else box
            self.observation_space = spaces.Dict({"a": inner} | ({"c": box} if mode == "lacking" else {}))
        if mode == "wide":
            self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        if mode == "unsaveable":
            self.simulator = threading.Lock()
        if mode == "exit":
            raise SystemExit(3)
        assert seed == 0

    def observe(self):
        observation = np.zeros(2, np.float32)
        return {"a": observation} if isinstance(self.observation_space, spaces.Dict) else observation

    def reset(self, *, seed=None, options=None):
        return self.observe() if self.mode == "old_reset" else (self.observe(), {})

    def step(self, action):
        if self.mode == "broken":
            raise KeyError("speed")  # line 40
        if self.mode == "old_step":
            return self.observe(), 0.0, False, {}
        return self.observe(), 0.0, False, False, {}

    @classmethod
    def make(cls, xml, seed):
        return cls()


def not_an_env(xml, seed):
    return [xml, seed]


def wants_more(xml, seed, size):
    return None


number = 3


class Shaped(gymnasium.Env):
    SPACES = {
        "vector": spaces.Box(-1, 1, (2,), np.float32),
        "grid": spaces.Box(0, 9, (2, 3, 4), np.uint8),
        "image": spaces.Box(0, 255, (36, 36, 3), np.uint8),
        "scaled": spaces.Box(0, 1, (3, 36, 36), np.float32),
        "choice": spaces.Discrete(2),
        "table": spaces.Box(-1, 1, (2, 3), np.float32),
        "small": spaces.Box(0, 255, (35, 60, 3), np.uint8),
        "buttons": spaces.MultiBinary([2, 3]),
        "dials": spaces.MultiDiscrete([[2, 3], [4, 5]]),
        "whole": spaces.Box(-3, 3, (2,), np.int64),
        "shifted": spaces.Discrete(3, start=-1),
        "several": spaces.MultiDiscrete([3, 2], start=[0, 5]),
        "flat": spaces.Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32)),
    }
    SPACES["dict"] = spaces.Dict({"a": SPACES["vector"]})
    SPACES["small_dict"] = spaces.Dict({"a": SPACES["vector"], "b": SPACES["small"]})
    SPACES["shifted_dict"] = spaces.Dict({"a": SPACES["vector"], "b": SPACES["shifted"]})

    def __init__(self, xml=None, seed=0, observation="vector", action="vector"):
        self.observation_space, self.action_space = self.SPACES[observation], self.SPACES[action]

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}
"""


@pytest.fixture
def search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_envs.py").write_text(ENVIRONMENTS)
    (tmp_path / "half_done.py").write_text("import torch_geometric_that_is_not_there\n")
    (tmp_path / "typo.py").write_text("def make_env(:\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_envs", "half_done", "typo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("entry_point", "kwargs", "fact"),
    [
        ("my_envs:Env", {}, None),
        ("my_envs:Env", {"mode": "broken"}, "my_envs.py:40"),
        ("my_envs:Env", {"mode": "dict_action"}, "Dict"),
        ("my_envs:Env", {"mode": "dict"}, None),
        ("my_envs:Env", {"mode": "lacking"}, "'c'"),
        ("my_envs:Env", {"mode": "old_reset"}, "reset()"),
        ("my_envs:Env", {"mode": "old_step"}, "step()"),
        ("my_envs:Env", {"colour": 1}, "colour"),
        ("my_envs:not_an_env", {}, "list"),
        ("my_envs:Ent", {}, "named 'Ent'"),
        ("nowhere:make_env", {}, "'nowhere'"),
        ("half_done:make_env", {}, "half_done.py:1"),
    ],
)
def test_an_entry_point_is_tried_out(
    entry_point: str, kwargs: dict[str, object], fact: str | None, search_path: str
) -> None:
    """What is wrong names the entry point and the fact."""
    answer = check(
        ExaminationRequest(entry_point=entry_point, env_kwargs=kwargs, search_path=search_path)
    )
    if fact is None:
        assert answer.problem is None
    else:
        assert answer.problem is not None
        assert answer.problem.startswith(entry_point)
        assert fact in answer.problem


@pytest.mark.parametrize(
    ("mode", "policy", "use_sde", "is_fit"),
    [
        ("good", "MlpPolicy", False, True),
        ("good", "MlpPolicy", True, False),
        ("good", "CnnPolicy", False, False),
        ("good", "MultiInputPolicy", False, False),
        ("dict", "MlpPolicy", False, False),
        ("dict", "MultiInputPolicy", False, True),
    ],
)
def test_a_policy_that_does_not_fit_the_spaces_is_told_before_launch(
    mode: str, policy: str, use_sde: bool, is_fit: bool, search_path: str
) -> None:
    asked: dict[str, Any] = {
        "entry_point": "my_envs:Env",
        "env_kwargs": {"mode": mode},
        "search_path": search_path,
    }
    answer = check(ExaminationRequest(**asked, policy=policy, use_sde=use_sde))
    assert (answer.problem is None) == is_fit


@pytest.mark.parametrize(
    ("observation", "action", "is_fit"),
    [
        ("vector", "vector", True),
        ("image", "vector", False),
        ("dict", "vector", False),
        ("vector", "table", False),
    ],
)
def test_spaces_that_the_fast_learner_cannot_train_are_refused_where_it_is_demanded(
    observation: str, action: str, is_fit: bool, search_path: str
) -> None:
    request = ExaminationRequest(
        entry_point="my_envs:Shaped",
        env_kwargs={"observation": observation, "action": action},
        search_path=search_path,
        policy="MultiInputPolicy" if observation == "dict" else "MlpPolicy",
    )
    assert check(request).problem is None
    assert (check(dataclasses.replace(request, fast=True)).problem is None) == is_fit


@pytest.mark.parametrize(
    ("algo", "observation", "action", "problem", "warning"),
    [
        ("ppo", "vector", "choice", None, None),
        ("ppo", "vector", "shifted", "action space is Discrete(3, start=-1)", None),
        ("ppo", "vector", "several", "add [0 5]", None),
        ("ppo", "vector", "buttons", "flatten it", None),
        ("ppo", "buttons", "vector", None, None),
        ("ppo", "vector", "dials", "flatten it", None),
        ("ppo", "dials", "vector", "flatten it", None),
        ("ppo", "several", "vector", "observation space", None),
        ("ppo", "shifted_dict", "vector", "observation 'b'", None),
        ("ppo", "vector", "flat", None, "component [1]"),
        ("sac", "vector", "flat", "component [1]", None),
        ("sac", "vector", "vector", None, None),
    ],
)
def test_spaces_that_would_train_wrongly_are_refused_or_warned_of(
    algo: str,
    observation: str,
    action: str,
    problem: str | None,
    warning: str | None,
    search_path: str,
) -> None:
    request = ExaminationRequest(
        algo=algo,
        entry_point="my_envs:Shaped",
        env_kwargs={"observation": observation, "action": action},
        search_path=search_path,
    )
    answer = check(request)
    assert (problem or "") in (answer.problem or "")
    assert (answer.problem is None) == (problem is None)
    assert [(warning or "") in text for text in answer.warnings] == [True] * bool(warning)


@pytest.mark.parametrize(
    ("observation", "policy", "normalize_images", "problem"),
    [
        ("image", "CnnPolicy", True, None),
        ("small", "CnnPolicy", True, "at least 36 pixels"),
        ("small", "MlpPolicy", True, None),
        ("small_dict", "MultiInputPolicy", True, "observation 'b'"),
        ("scaled", "CnnPolicy", True, "does not take"),
        ("scaled", "CnnPolicy", False, None),
        ("grid", "CnnPolicy", False, "at least 36 pixels"),
        ("table", "CnnPolicy", False, "does not take"),
    ],
)
def test_images_that_are_too_small_or_none_are_refused(
    observation: str, policy: str, normalize_images: bool, problem: str | None, search_path: str
) -> None:
    answer = check(
        ExaminationRequest(
            entry_point="my_envs:Shaped",
            env_kwargs={"observation": observation},
            search_path=search_path,
            policy=policy,
            normalize_images=normalize_images,
        )
    )
    assert (answer.problem is None) == (problem is None)
    assert (problem or "") in (answer.problem or "")


def test_an_environment_whose_state_cannot_be_saved_is_warned_of(search_path: str) -> None:
    for kwargs in ({}, {"mode": "unsaveable"}):
        answer = check(
            ExaminationRequest(
                entry_point="my_envs:Env", env_kwargs=kwargs, search_path=search_path
            )
        )
        assert answer.problem is None
        assert ["starts new episodes" in text for text in answer.warnings] == [True] * bool(kwargs)


def test_jobs_that_share_an_environment_and_not_a_learner_get_verdicts_of_their_own(
    tmp_path: Path,
) -> None:
    jobs = from_mapping(
        {
            "name": "test",
            "jobs": [
                {"name": "any", "env": "CartPole-v1"},
                {"name": "stock", "env": "CartPole-v1", "learner": "sb3"},
                {"name": "fast", "env": "CartPole-v1", "learner": "fast", "seeds": [0, 1]},
                {"name": "pendulum", "env": "Pendulum-v1", "learner": "fast"},
                {"name": "hopper", "xml": str(HOPPER), "learner": "fast"},
                {"name": "hopper-stock", "xml": str(HOPPER), "learner": "sb3"},
            ],
        },
        source="robots.toml",
        base=tmp_path,
    ).jobs
    distinct, key_of = requests_of(jobs)
    assert len(distinct) == 4, "a robot of a built-in task is examined once, whatever the learner"
    verdicts = examine(jobs, staging=tmp_path / "staging", processes=1)
    problems = {job.job_id: verdicts[job.job_id].problem for job in jobs}
    assert problems.keys() == key_of.keys()
    refused = {job_id: problem for job_id, problem in problems.items() if problem is not None}
    assert refused.keys() == {"fast-s0", "fast-s1"}
    assert {problem.where for problem in refused.values()} == {"jobs[2]"}


def test_gymnasium_ids_are_tried_out_and_near_ones_suggested(tmp_path: Path) -> None:
    assert check(ExaminationRequest(env="CartPole-v1")).problem is None
    assert "Did you mean: `CartPole`?" in str(check(ExaminationRequest(env="CartPoel-v1")).problem)
    with pytest.warns(DeprecationWarning, match="out of date"):
        old = check(ExaminationRequest(env="Ant-v1"))
    assert "`Ant-v5`" in str(old.problem)
    assert old.cause == "settings"
    assert "TypeError" in str(
        check(ExaminationRequest(env="CartPole-v1", env_kwargs={"colour": 1})).problem
    )
    with_robot = ExaminationRequest(
        env="Hopper-v5", xml=str(HOPPER), stage_to=str(tmp_path / "staged")
    )
    answer = check(with_robot)
    assert (answer.problem, answer.xml) == (None, "hopper.xml")
