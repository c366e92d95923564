"""``init``: which robots come into the job file, under which entries and names, and what is
refused."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.errors import UsageError
from orchestrator.core.messages import RobotSetting
from orchestrator.examination import training_time
from orchestrator.examination.robot_check import RobotCheck
from orchestrator.features.authoring import init_selection
from orchestrator.jobfile import Experiment, from_mapping, job_file_text

FIGURES = {"timestep_s": 0.005, "steps_per_s": 100_000.0, "control_period_s": 0.04}


def row(path: Path | str, task: str | None = "forward", **more: Any) -> RobotCheck:
    return RobotCheck(
        **{"path": str(path), "verdict": "ok", "task": task, "figures": FIGURES, **more}
    )


def made(
    folder: Path, *names: str, task: str = "forward", others: tuple[str, ...] = (), **more: Any
) -> tuple[init_selection.RobotJobFile, Experiment]:
    """The job file of robots in ``folder``, and what it declares; ``others`` are files that cannot
    be trained."""
    rows = []
    for name in (*names, *others):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        rows.append(
            row(path)
            if name in names
            else row(path, verdict="error", messages=("XML parse error",))
        )
    rows = [row(one.path, task, **more) if one.verdict == "ok" else one for one in rows]
    return drafted(rows, folder)


def drafted(
    rows: list[RobotCheck], folder: Path, **more: Any
) -> tuple[init_selection.RobotJobFile, Experiment]:
    target = folder / "jobs.toml"
    options = {"timesteps": 200_000, "jobs_at_once": 2, **more}
    file = init_selection.draft(rows, [folder], target, **options)
    return file, from_mapping(tomllib.loads(file.text), source="jobs.toml", base=folder)


def trained(experiment: Experiment) -> list[Path]:
    return sorted(job.xml_source for job in experiment.jobs if job.xml_source is not None)


def test_few_robots_get_a_table_each_with_their_task_and_period(tmp_path: Path) -> None:
    file, experiment = made(tmp_path, "b.xml", "a.xml", others=("bad.xml",))
    tables = tomllib.loads(file.text)["jobs"]
    assert tables == [
        {"name": name, "xml": f"{name}.xml", "task": "forward"} for name in ("b", "a")
    ]
    assert "0.04 s" in file.text
    assert "# bad.xml: XML parse error" in file.text
    assert experiment.directory_name == tmp_path.name


def test_what_is_chosen_for_a_robot_is_in_its_table_with_the_reason(tmp_path: Path) -> None:
    for name in ("v1", "v2", "v3", "arm"):
        (tmp_path / f"{name}.urdf").touch()
    legs = RobotSetting(key="base", value="floating", reason="guessed: 4 legs")
    meshes = RobotSetting(
        key="asset_paths", value=[str(tmp_path)], reason="its meshes lie there", is_folders=True
    )
    rows = [
        row(tmp_path / f"{name}.urdf", chosen_settings=(legs, meshes))
        for name in ("v1", "v2", "v3")
    ]
    rows += [row(tmp_path / "arm.urdf", "reach")]
    file, _ = drafted(rows, tmp_path, settings={"urdf.effort": 2.0})
    declared = tomllib.loads(file.text)
    assert declared["defaults"]["urdf"] == {"effort": 2.0}
    variants, arm = declared["jobs"]
    assert variants["xml"] == "v*.urdf"
    assert variants["urdf"] == {"base": "floating", "asset_paths": ["."]}
    assert "# guessed: 4 legs" in file.text
    assert "urdf" not in arm


def test_a_folder_of_variants_is_one_entry(tmp_path: Path) -> None:
    file, experiment = made(
        tmp_path / "my [odd] robots", *(f"v{number:03}.xml" for number in range(300))
    )
    (table,) = tomllib.loads(file.text)["jobs"]
    assert "name" not in table
    assert len(experiment.jobs) == 300


def test_a_series_beside_other_files_is_one_entry(tmp_path: Path) -> None:
    file, experiment = made(
        tmp_path, *(f"{name}.xml" for name in ("c_1", "c_2", "c_long", "w9", "w8", "w10", "cow"))
    )
    assert [table["xml"] for table in tomllib.loads(file.text)["jobs"]] == ["*.xml"]
    file, experiment = made(
        tmp_path, "c_1.xml", "c_2.xml", "c_long.xml", "w9.xml", "w8.xml", others=("c.xml", "w.xml")
    )
    assert [table["xml"] for table in tomllib.loads(file.text)["jobs"]] == [
        "c_*.xml",
        "w9.xml",
        "w8.xml",
    ]
    assert len(experiment.jobs) == 5


def test_patterns_never_take_robots_of_another_task(tmp_path: Path) -> None:
    rows = []
    for number in range(20):
        path = tmp_path / f"v{number:02}.xml"
        path.touch()
        rows.append(row(path, "reach" if number % 7 == 3 else "forward"))
    _, experiment = drafted(rows, tmp_path)
    assert {job.xml_source: job.spec.task for job in experiment.jobs} == {
        Path(one.path): one.task for one in rows
    }


ODD = st.text(st.sampled_from("ab01*?[]!-^'\"\\ #é…}{"), min_size=1, max_size=4)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    names=st.sets(ODD, min_size=1, max_size=25), bad=st.sets(ODD, max_size=4), inner=st.booleans()
)
def test_every_robot_is_trained_once_whatever_it_is_called(
    names: set[str], bad: set[str], inner: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    files = {f"{'c/' * (inner and len(name) > 2)}{name}.xml" for name in names}
    others = {f"{name}.xml" for name in bad} - files
    _, experiment = made(folder, *sorted(files), others=tuple(sorted(others)))
    assert trained(experiment) == sorted(folder / name for name in files)
    assert len({job.job_id.lower() for job in experiment.jobs}) == len(files)


def test_a_part_is_not_trained_beside_the_robot_that_includes_it_unless_it_is_named(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / name for name in ("body.xml", "scene.xml")]
    for path in paths:
        path.touch()
    rows = [row(paths[0], included_by=str(paths[1])), row(paths[1])]
    file, experiment = drafted(rows, tmp_path)
    assert trained(experiment) == [paths[1]]
    assert f"# body.xml: a part of {paths[1]}" in file.text
    broken = [rows[0], row(paths[1], verdict="error", messages=("no scene",))]
    assert trained(drafted(broken, tmp_path)[1]) == [paths[0]]
    named = init_selection.draft(
        rows, paths, tmp_path / "jobs.toml", timesteps=1000, jobs_at_once=1
    )
    assert len(named.robots) == 2


def test_permission_for_files_elsewhere_is_written_where_it_is_needed(tmp_path: Path) -> None:
    rows = [
        row(tmp_path / "a.xml", outside="leads to /etc", verdict="warning"),
        row(tmp_path / "b.xml"),
    ]
    for one in "ab":
        (tmp_path / f"{one}.xml").touch()
    _, experiment = drafted(rows, tmp_path)
    assert [job.allow_outside for job in experiment.jobs] == [True, False]


def test_the_preset_decides_what_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.xml").touch()
    file, experiment = drafted([row(tmp_path / "a.xml")], tmp_path, timesteps=None)
    written = {"preset": "quick", "seeds": [0], "video": False}
    assert tomllib.loads(file.text)["defaults"] == written
    (job,) = experiment.jobs
    assert file.time == training_time.estimate([row("a.xml")], job.spec.total_timesteps, 2)


def test_the_estimate_adds_physics_and_the_rest_and_divides_by_the_jobs_at_once() -> None:
    robots = [row(str(number)) for number in range(8)]
    one, all_on_two = (training_time.estimate(part, 100_000, 2) for part in (robots[:1], robots))
    assert one.seconds == pytest.approx(
        110_000 * 8e-5 + 100_000 * training_time.STEP_S + training_time.JOB_S
    )
    assert all_on_two.seconds == pytest.approx(4 * one.seconds)
    assert one.physics_share == pytest.approx(8.8 / one.seconds)
    unmeasured = training_time.estimate([row("x", figures={})], 100_000, 2)
    assert 0 < unmeasured.seconds < one.seconds


def test_a_job_file_is_replaced_only_when_that_is_asked_for(tmp_path: Path) -> None:
    target = tmp_path / "jobs.toml"
    text = 'name = "x"\n[[jobs]]\nenv = "CartPole-v1"\n'
    job_file_text.write(target, text, force=False)
    with pytest.raises(UsageError, match="--force"):
        job_file_text.write(target, text + "#", force=False)
    assert target.read_text() == text
    job_file_text.write(target, text + "#", force=True)
    assert target.read_text() == text + "#"
    assert os.listdir(tmp_path) == ["jobs.toml"]
