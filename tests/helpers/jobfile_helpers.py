"""Job files to start from, and how they are read."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from orchestrator.core.errors import SpecError
from orchestrator.jobfile import Experiment, from_mapping, json_schema

ROOT = Path(__file__).parents[2]
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")
EXAMPLE = """
name = "robots"
max_parallel = "auto"
order = "longest-first"

[defaults]
algo = "ppo"
task = "forward"
total_timesteps = 200_000
n_envs = 8
seeds = [0]
normalize = true
checkpoint_every = 50_000
eval_episodes = 10
learner = "auto"
[defaults.ppo]
n_steps = 256
[defaults.policy_kwargs]
net_arch = [64, 64]
[defaults.resources]
cores = 1
threads = 1
memory = "2 GiB"
gpus = 0
timeout = "2h"
stall_timeout = "10min"
[defaults.retry]
max_retries = 2

[[jobs]]
name = "hopper"
xml = "../mjcf/hopper.xml"
[[jobs]]
name = "zoo"
xml = "../mjcf/zoo/*.xml"
seeds = [0, 1, 2]
[jobs.matrix]
"ppo.learning_rate" = [1e-4, 3e-4]
"""


@functools.cache
def schema_validator() -> Draft202012Validator:
    """Checks data by the JSON Schema of the job file, whose own form ``test_jobfile_schema``
    checks."""
    return Draft202012Validator(json_schema())


def resolve(
    place: Path, *jobs: dict[str, Any], defaults: dict[str, Any] | None = None, **overrides: Any
) -> Experiment:
    data = {"name": "test", "defaults": defaults or {}, "jobs": list(jobs)}
    return from_mapping(data, source="robots.toml", base=place, overrides=overrides)


def problems(error: pytest.ExceptionInfo[SpecError]) -> list[tuple[str, str]]:
    return [(problem.where, problem.message) for problem in error.value.problems]


HOPPER = {"name": "hopper", "xml": "../mjcf/hopper.xml"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder ``jobs`` with robots beside it, as in the repository."""
    root = tmp_path_factory.mktemp("project")
    (root / "jobs").mkdir()
    for name in (
        "hopper.xml",
        "zoo/ant.xml",
        "zoo/bug.xml",
        "pony.urdf",
        "menagerie/go1/scene.xml",
        "menagerie/spot/scene.xml",
    ):
        path = root / "mjcf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<mujoco/>")
    (root / "mjcf" / "empty").mkdir()
    return root / "jobs"


@pytest.fixture
def write(place: Path) -> Callable[..., Path]:
    def write(text: str | bytes, name: str = "robots.toml") -> Path:
        path = place / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
