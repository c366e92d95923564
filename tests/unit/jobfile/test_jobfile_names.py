"""Names of jobs and experiments, and the safe directory names made of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobfile_helpers import HOPPER, SAFE, resolve

from orchestrator.core.errors import SpecError
from orchestrator.jobfile import from_mapping, safe_name
from orchestrator.jobfile.job_names import matrix_suffix


@pytest.mark.parametrize("name", ["hopper", "Hopper_v2.1", "a--b", "_x", "7", "console", "x" * 64])
def test_a_name_that_is_safe_is_the_directory_name(place: Path, name: str) -> None:
    (job,) = resolve(place, HOPPER | {"name": name}).jobs
    assert job.job_id == f"{name}-s0"


@pytest.mark.parametrize(
    ("name", "remains"),
    [
        ("a/b", "a-b"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "unnamed"),
        ("-rf", "rf"),
        ("Läufer", "Laufer"),
        ("歩行", "unnamed"),
        ("x" * 300, "x" * 48),
    ],
)
def test_any_other_name_is_kept_and_makes_a_safe_directory_name(
    place: Path, name: str, remains: str
) -> None:
    (job,) = resolve(place, HOPPER | {"name": name}).jobs
    assert re.fullmatch(f"{re.escape(remains)}-[0-9a-f]{{8}}-s0", job.job_id)
    assert job.spec.name == name


def test_directory_names_are_the_same_in_every_version() -> None:
    assert safe_name("two words") == "two-words-a03f1d61"
    assert matrix_suffix({"ppo.learning_rate": "linear(3e-4, 0)"}) == "-lr_linear-3e-4-0-7efb08dd"


def test_the_experiment_has_a_safe_directory_name_too(place: Path) -> None:
    experiment = from_mapping({"name": "../my robots", "jobs": [HOPPER]}, source="x", base=place)
    assert experiment.name == "../my robots"
    assert SAFE.match(experiment.directory_name)


def test_two_jobs_of_one_id_are_a_problem(place: Path) -> None:
    matrix = HOPPER | {"matrix": {"ppo.learning_rate": [1e-4]}}
    with pytest.raises(SpecError, match="makes a job hopper-lr1e-4-s0, too"):
        resolve(place, matrix, HOPPER | {"name": "hopper-lr1e-4"})


@given(st.text(max_size=300))
def test_safe_names_are_safe_deterministic_and_unchanged_by_repetition(name: str) -> None:
    safe = safe_name(name)
    assert SAFE.match(safe)
    assert len(safe) <= 64
    assert safe == safe_name(name) == safe_name(safe)


NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1).filter(
    str.strip
)


@settings(max_examples=15)
@given(
    names=st.lists(NAMES, min_size=1, max_size=20, unique=True),
    seeds=st.lists(st.integers(0, 99), unique=True, min_size=1),
)
def test_job_ids_are_safe_unique_and_deterministic_for_any_names(
    place: Path, names: list[str], seeds: list[int]
) -> None:
    def ids() -> list[str]:
        return [
            job.job_id
            for job in resolve(
                place, *({"name": name, "env": "Ant-v5", "seeds": seeds} for name in names)
            ).jobs
        ]

    first = ids()
    assert all(SAFE.match(job_id) for job_id in first)
    assert len({*first}) == len(names) * len(seeds)
    assert first == ids()
