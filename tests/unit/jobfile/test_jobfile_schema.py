"""The JSON schema of job files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import EXAMPLE, HOPPER, ROOT, schema_validator
from jsonschema import Draft202012Validator

from orchestrator.core.errors import SpecError
from orchestrator.core.task_names import GYMNASIUM_TASKS, TASKS
from orchestrator.jobfile import from_mapping, json_schema, load


def test_the_schema_is_valid_and_accepts_what_is_shipped() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    validator = schema_validator()
    validator.validate(tomllib.loads(EXAMPLE))
    for path in (ROOT / "jobs").glob("*.toml"):
        validator.validate(tomllib.loads(path.read_text()))
    json.dumps(schema)


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.toml")), ids=lambda path: path.name)
def test_the_shipped_job_files_are_right(path: Path) -> None:
    assert load(path).jobs_to_examine


def test_the_schema_describes_every_key_that_the_format_has() -> None:
    schema = json_schema()
    tables = [schema, *schema["$defs"].values()]
    for table in tables:
        for name, content in table["properties"].items():
            assert content.get("description"), name
    named, own = schema["$defs"]["Settings"]["properties"]["task"]["anyOf"]
    assert named["enum"] == ["auto", *TASKS, *GYMNASIUM_TASKS]
    assert re.match(own["pattern"], "my_tasks:Jump")
    assert schema["$defs"]["ResourcesTable"]["properties"]["memory"]["default"] == "2 GiB"


@pytest.mark.parametrize(
    "job",
    [
        {"total_timestep": 1},
        {"ppo": {"n_step": 256}},
        {"ppo": {"gamma": 1.5}},
        {"ppo": {"learning_rate": -1}},
        {"n_envs": "8"},
        {"n_envs": 0},
        {"task": "foward"},
        {"seeds": [-1]},
        {"resources": {"min_free_disk": False}},
        {"matrix": {"ppo.gamma": 0.9}},
    ],
)
def test_the_schema_rejects_what_the_program_rejects(place: Path, job: dict[str, Any]) -> None:
    validator = schema_validator()
    good, bad = {"name": "x", "jobs": [HOPPER]}, {"name": "x", "jobs": [HOPPER | job]}
    assert validator.is_valid(good)
    assert not validator.is_valid(bad)
    with pytest.raises(SpecError):
        from_mapping(bad, source="x", base=place)


@pytest.mark.parametrize(
    "job",
    [
        {
            "ppo": {
                "learning_rate": "linear(3e-4, 1e-5, 0.8)",
                "clip_range_vf": 0.2,
                "target_kl": 0.02,
            }
        },
        {"policy_kwargs": {"net_arch": {"pi": [64], "vf": []}}},
        {"resources": {"memory": "1.5 GB", "timeout": "1h 30min", "stall_timeout": 90}},
        {"resources": {"gpus": 0.5}, "matrix": {"resources.gpus": [0, 0.25, 2]}},
        {"task_options": {"a": {"b": [1, "x", True]}}},
        {"matrix": {"ppo.gamma": [0.9, 0.99], "task_options.a": [1, "x"], "task": ["balance"]}},
    ],
)
def test_schema_and_program_accept_every_form(place: Path, job: dict[str, Any]) -> None:
    data = {"name": "x", "jobs": [HOPPER | job]}
    schema_validator().validate(data)
    assert from_mapping(data, source="x", base=place).jobs
