"""What is wrong with a job file: every problem, at its place, in one go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import EXAMPLE, HOPPER, problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.jobfile import load


@pytest.mark.parametrize(
    ("defaults", "job", "overrides", "where"),
    [
        ({"learner": "fast"}, {"ppo": {"use_sde": True}}, {}, "jobs[1].ppo.use_sde"),
        ({"ppo": {"use_sde": True}}, {"learner": "fast"}, {}, "jobs[1].learner"),
        ({}, {"ppo": {"use_sde": True}}, {"learner": "fast"}, "--set learner"),
        (
            {"learner": "fast"},
            {"matrix": {"ppo.use_sde": [False, True]}},
            {},
            'jobs[1].matrix."ppo.use_sde"[1]',
        ),
    ],
)
def test_a_learner_that_does_not_suit_is_reported_once_where_it_was_written_last(
    place: Path,
    defaults: dict[str, Any],
    job: dict[str, Any],
    overrides: dict[str, Any],
    where: str,
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, HOPPER, HOPPER | {"name": "odd"} | job, defaults=defaults, **overrides)
    assert [found for found, _ in problems(error)] == [where]


@pytest.mark.parametrize("learner", ["auto", "sb3"])
def test_only_a_demand_for_the_fast_learner_is_refused(place: Path, learner: str) -> None:
    (job,) = resolve(
        place, HOPPER | {"learner": learner, "ppo": {"use_sde": True}, "resources": {"gpus": 1}}
    ).jobs
    assert job.spec.learner == learner


def test_a_fast_learner_with_whatever_it_can_do_is_taken(place: Path) -> None:
    policy = {
        "net_arch": {"pi": [], "vf": [32]},
        "activation_fn": "elu",
        "ortho_init": False,
        "log_std_init": -1.0,
    }
    (job,) = resolve(
        place, HOPPER | {"learner": "fast", "policy_kwargs": policy, "ppo": {"clip_range_vf": 0.2}}
    ).jobs
    assert job.spec.learner == "fast"


def test_all_errors_are_reported_at_once_and_in_order(write: Callable[..., Path]) -> None:
    jobs = "".join(
        f"[[jobs]]\nname = 'j{number}'\nxml = '../mjcf/hopper.xml'\n" for number in range(10)
    )
    path = write(
        f"""
        name = "many"
        max_parallel = 0
        [defaults.ppo]
        n_step = 3
        {jobs}
        [[jobs]]
        name = "far"
        xml = "../mjcf/hoper.xml"
        task = "dance"
        [[jobs]]
        xml = "../mjcf/*.mjcf"
        n_envs = "8"
        matrix = {{ "ppo.gamma" = [2, 3] }}
        [[jobs]]
        env = "Ant-v5"
        entry_point = "a:b"
        """
    )
    with pytest.raises(SpecError) as error:
        load(path)
    assert [where for where, _ in problems(error)] == [
        "defaults.ppo.n_step",
        "jobs[10].task",
        "jobs[10].xml",
        'jobs[11].matrix."ppo.gamma"[0]',
        'jobs[11].matrix."ppo.gamma"[1]',
        "jobs[11].n_envs",
        "jobs[11].xml",
        "jobs[12].entry_point",
        "max_parallel",
    ]
    assert f"{path}: defaults.ppo.n_step: " in str(error.value)


def test_a_wrong_default_is_one_problem_not_one_a_job(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            place,
            *(HOPPER | {"name": f"j{number}"} for number in range(5)),
            defaults={"ppo": {"batch_size": 100}},
        )
    assert [where for where, _ in problems(error)] == ["defaults.ppo.batch_size"]


def test_a_combined_fault_is_reported_where_its_last_part_was_written(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            place, HOPPER, HOPPER | {"name": "odd", "n_envs": 7}, defaults={"ppo": {"n_steps": 80}}
        )
    assert [where for where, _ in problems(error)] == ["jobs[1].n_envs"]
    with pytest.raises(SpecError) as error:
        resolve(place, HOPPER, **{"ppo.batch_size": 100})
    assert [where for where, _ in problems(error)] == ["--set ppo.batch_size"]


def test_nothing_is_inferred_from_a_key_that_is_wrong_itself(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            place,
            {"xlm": "../mjcf/hopper.xml"},
            HOPPER | {"ppo": {"n_step": 512, "batch_size": 100}},
        )
    assert [where for where, _ in problems(error)] == ["jobs[0].xlm", "jobs[1].ppo.n_step"]


def test_a_name_may_come_twice_with_other_seeds(place: Path) -> None:
    experiment = resolve(place, HOPPER | {"seeds": [0]}, HOPPER | {"seeds": [1], "n_envs": 4})
    assert [job.job_id for job in experiment.jobs] == ["hopper-s0", "hopper-s1"]


def test_an_unreadable_robot_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, mode: mode != os.R_OK
    )  # root, as in containers, reads everything
    with pytest.raises(SpecError):
        resolve(place, HOPPER)


def test_a_link_to_nothing_is_refused(place: Path) -> None:
    (place / "link.xml").symlink_to("nowhere.xml")
    for pattern in ("link.xml", "li*.xml"):
        with pytest.raises(SpecError):
            resolve(place, {"xml": pattern})


def test_a_robot_whose_file_name_is_no_text_is_refused(place: Path) -> None:
    folder = place / "odd"
    folder.mkdir()
    (folder / os.fsdecode(b"r\xff.xml")).touch()
    (folder / "a\nb.xml").touch()
    with pytest.raises(SpecError) as error:
        resolve(place, {"xml": "odd/*.xml"})
    assert [where for where, _ in problems(error)] == ["jobs[0].xml"] * 2
    str(error.value).encode()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("name = robots", "line 1, column 8"),
        ('name = "a"\nname = "b"\n', "line 2, column 11"),
        ('name = "a', ""),
        (b"# ok\nname = '\xff'", "position 13"),
        ("\0", "line 1, column 1"),
        ("x = " + "9" * 5000, ""),
        ("x = " + "[" * 100_000, ""),
        ("", "jobs"),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_its_line(
    write: Callable[..., Path], text: str | bytes, where: str
) -> None:
    with pytest.raises(SpecError) as error:
        load(write(text))
    assert where in str(error.value.problems[0])


def test_a_byte_order_mark_and_windows_lines_are_accepted(write: Callable[..., Path]) -> None:
    path = write(b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode())
    assert len(load(path).jobs) == 13


def test_a_missing_job_file_is_answered_with_its_neighbour(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(EXAMPLE)
    with pytest.raises(SpecError):
        load(path.with_name("robot.toml"))
    with pytest.raises(SpecError):
        load(tmp_path / "nowhere" / "robots.toml")
    with pytest.raises(SpecError):
        load(path.parent)
