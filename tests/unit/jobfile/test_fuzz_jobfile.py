"""Whatever a job file holds: an experiment, or every problem in one line each that says where it
is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fuzz_helpers import SCALARS, TEXT, VALUES, changed, fuzz
from hypothesis import example, given
from hypothesis import strategies as st
from jobfile_helpers import EXAMPLE, SAFE

from orchestrator.core.errors import SpecError
from orchestrator.core.text import LONGEST_LINE
from orchestrator.jobfile import Experiment, from_mapping, load
from orchestrator.jobfile.toml_models import FEATURE_TABLES, TABLES, Entry, JobFile

LONGEST = 2 * LONGEST_LINE + 4
KEYS = [
    *(f"jobs.{key}" for key in Entry.model_fields),
    *(f"jobs.{table}.{key}" for table, model in TABLES.items() for key in model.model_fields),
    *(key for key in JobFile.model_fields if key != "jobs"),
    *(f"{name}.{key}" for name, one in FEATURE_TABLES.items() for key in one.model.model_fields),
    *(
        "jobs.task_options.x",
        "jobs.model.geom.thigh.size",
        "jobs.env_kwargs.x",
    ),
]
"""Every key of a job file, dotted; those of ``jobs`` are of its first entry."""
TIMES = st.one_of(st.datetimes(), st.dates(), st.times())
NEAR = st.sampled_from(
    [
        *(
            "2 GiB",
            "1e400 GiB",
            "1h30min",
            "0s",
            "9" * 400 + "d",
            "linear(1e-3, 0)",
            "linear(nan, 0)",
            "linear(1e999, 0)",
        ),
        *(
            "*1.2",
            "*nan",
            "auto",
            "../mjcf/*.xml",
            "../mjcf/[",
            "**",
            "a:b",
            "gymnasium:Ant-v5",
            [[]],
            [0, 0],
            {"": 1},
        ),
        *(
            [1] * 5_000,
            list(range(400)),
            {"ppo.gamma": [0.9, 0.99]},
            {"model.geom.x.size": ["*1"]},
            {"x": [1]},
        ),
    ]
)
ANY = st.one_of(SCALARS, VALUES, NEAR, TIMES, st.lists(TIMES | NEAR, max_size=2))


def resolved(data: dict[str, Any], place: Path) -> None:
    try:
        check(from_mapping(data, source="any.toml", base=place))
    except SpecError as error:
        check_problems(error)


def check(experiment: Experiment) -> None:
    assert experiment.jobs
    for job in experiment.jobs:
        assert SAFE.match(job.job_id)
        assert json.loads(job.spec.to_json())
        assert all(
            math.isfinite(seconds)
            for seconds in (job.resources.timeout_s, job.resources.stall_timeout_s)
        )


def check_problems(error: SpecError) -> None:
    assert error.problems
    for problem in error.problems:
        assert problem.message
        assert "\n" not in str(problem)
        assert len(str(problem)) <= LONGEST


def test_any_value_of_any_key_is_taken_or_refused_in_one_line(place: Path) -> None:
    @fuzz(40)
    @given(
        changes=st.lists(st.tuples(st.sampled_from(KEYS), ANY), min_size=1, max_size=3),
        robot=st.booleans(),
    )
    @example(changes=[("jobs.seeds", list(range(100_001)))], robot=True)
    @example(changes=[("jobs.curriculum.advance", "\ud800\n")], robot=False)
    @example(changes=[("jobs.ppo.learning_rate", "x" * 5_000)], robot=True)
    @example(changes=[("jobs.resources.timeout", "1" + "x" * 5_000)], robot=True)
    @example(
        changes=[("jobs.model", {"1" * 5_000: 1}), ("jobs.resources", {"2" * 5_000: 1})], robot=True
    )
    @example(
        changes=[("jobs.matrix", {f"task_options.x{number}": [1, 2, 3] for number in range(30)})],
        robot=True,
    )
    def check_one(changes: list[tuple[str, Any]], robot: bool) -> None:
        valid = (
            {"name": "a", "xml": "../mjcf/hopper.xml"} if robot else {"name": "a", "env": "Ant-v5"}
        )
        data: dict[str, Any] = {"name": "any", "jobs": [valid, {"name": "b", "env": "Ant-v5"}]}
        for dotted, value in changes:
            top, *keys = dotted.split(".")
            holder = data if top != "jobs" else valid
            for key in [top, *keys][:-1] if holder is data else keys[:-1]:
                inner = holder.get(key)
                holder[key] = inner if isinstance(inner, dict) else {}
                holder = holder[key]
            holder[keys[-1] if keys else top] = value
        resolved(data, place)

    check_one()


def test_any_bytes_are_a_job_file_or_refused_in_one_line(place: Path) -> None:
    lines = EXAMPLE.splitlines()
    shuffled = st.lists(st.sampled_from(lines), max_size=40).map(
        lambda some: "\n".join(some).encode()
    )
    content = st.one_of(
        changed(EXAMPLE.encode()),
        changed(EXAMPLE.encode()),
        shuffled,
        st.binary(max_size=60),
        TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")),
    )
    path = place / "any.toml"

    @fuzz(30)
    @given(content=content)
    @example(b"a." * 2_000 + b"b = 1")
    @example(b"x = {" * 3_000)
    @example(("[" + "a." * 1_000 + "b]\n[[jobs]]\nxml = 'a'").encode())
    @example(b"name = 'a'\r[[jobs]]")
    @example("\ufeff".encode() + EXAMPLE.encode())
    def check_one(content: bytes) -> None:
        path.write_bytes(content)
        try:
            check(load(path))
        except SpecError as error:
            check_problems(error)

    try:
        check_one()
    finally:
        path.unlink(missing_ok=True)
