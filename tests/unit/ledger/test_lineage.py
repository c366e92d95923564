"""Which job a job started from, and how far its policy had been trained by then."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from report_helpers import Trained, make_run_dir
from supervisor_helpers import make_job

from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import Ledger, job_figures, lineage, summary
from orchestrator.ledger.lineage import env_steps_before
from orchestrator.ledger.row_reader import RowReader
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.terminal import jobs_table

RUN = Path("/runs/evolve")


@pytest.mark.parametrize(
    ("init", "parent"),
    [
        (None, None),
        ("job:a-s0", "a-s0"),
        (str(RUN / "jobs/a-s0"), "a-s0"),
        (str(RUN / "jobs/a-s0/model.zip"), "a-s0"),
        (str(RUN / "jobs/../jobs/a-s0/"), "a-s0"),
        (str(RUN / "jobs/a-s0/checkpoints/64.pt"), None),
        (str(RUN / "jobs"), None),
        (str(RUN.parent / "other/jobs/a-s0"), None),
        ("model.zip", None),
        (7, None),
    ],
)
def test_the_parent_is_a_job_of_the_same_run_directory(init: object, parent: str | None) -> None:
    assert lineage.parent(RUN, {"init": init}) == parent


def test_a_run_directory_behind_a_link_has_the_same_jobs(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to("there")
    for name in ("here", "there"):
        spec = {"init": str(tmp_path / name / "jobs/a-s0")}
        assert lineage.parent(tmp_path / "here", spec) == "a-s0"


def test_whether_a_job_went_on_from_a_policy_is_not_said_of_an_unknown_lineage() -> None:
    assert env_steps_before(64, 64) == 0
    assert env_steps_before(64, 64 + 512) == 512
    assert env_steps_before(64, None) is None


def test_figures_of_jobs_have_the_lineage_that_the_summary_has(tmp_path: Path) -> None:
    ledger = Ledger.create(RunPaths(tmp_path).ledger)
    child = make_job("b").with_spec(init="job:a", init_env_steps=4096)
    unknown = make_job("c").with_spec(init="/elsewhere/model.zip")
    ledger.put_jobs(
        DeclaredJob(position=place, job=job)
        for place, job in enumerate([make_job("a"), child, unknown])
    )
    ledger.set_progress([("b", 64, None, None, None)])
    found = job_figures.earlier_env_steps(ledger, ["a", "b", "c"])
    assert found == {"a": 0, "b": 4096, "c": None}
    assert ledger.summary_of("b")["lineage_env_steps"] == 4096 + 64
    ledger.close()


def test_summary_table_and_reader_have_parent_and_env_steps_of_the_lineage(tmp_path: Path) -> None:
    run = make_run_dir(
        tmp_path / "run",
        [
            Trained(case="parent"),
            Trained(case="child", init="job:parent-s0"),
            Trained(case="of-path", init=str(tmp_path / "run/jobs/child-s0")),
            Trained(case="of-stranger", init="/elsewhere/model.zip"),
        ],
    )
    steps = 5 * 2048
    expected = {
        "parent-s0": (None, steps),
        "child-s0": ("parent-s0", 2 * steps),
        "of-path-s0": ("child-s0", None),
        "of-stranger-s0": (None, None),
    }
    with_told = 1000
    ledger = Ledger.open(run.ledger)
    reader = RowReader()
    reader.update(ledger)
    row = ledger.job_row("child-s0")
    assert row is not None
    for found in (ledger.summary(), list(reader.rows.values())):
        assert {
            one["job_id"]: (one["parent"], one["lineage_env_steps"]) for one in found
        } == expected
    ledger.set_progress([("parent-s0", steps + 7, None, None, None)])
    ledger.commit()
    reader.update(ledger)
    assert reader.rows["parent-s0"]["lineage_env_steps"] == steps + 7

    ledger.update_spec(row.job.with_spec(init_env_steps=with_told))
    ledger.commit()
    summary.write(run, ledger)
    ledger.close()
    with run.summary_csv.open() as file:
        table = {line["job_id"]: line for line in csv.DictReader(file)}
    assert table["child-s0"]["lineage_env_steps"] == str(steps + with_told), "as it knows itself"
    assert table["of-path-s0"]["parent"] == "child-s0"
    assert table["of-stranger-s0"]["lineage_env_steps"] == ""
    rows, _ = summary.read(run)
    lines = {line.job_id: line for line in jobs_table.of_rows(rows)}
    assert lines["of-stranger-s0"].lineage_env_steps is None
    shown = jobs_table.jobs_table(list(lines.values()), 200)
    assert [str(column.header) for column in shown.columns].count("lineage") == 1


def test_a_page_learns_how_far_the_policy_of_a_waiting_job_is_when_it_is_fetched(
    tmp_path: Path,
) -> None:
    run = make_run_dir(tmp_path / "run", [Trained(case="child", init="/elsewhere/model.zip")])
    ledger = Ledger.open(run.ledger)
    ledger.set_progress([("child-s0", 0, None, None, None)])
    reader = RowReader()
    reader.update(ledger)
    before = reader.rows["child-s0"]
    assert before["lineage_env_steps"] is None
    reader.update(ledger)
    assert reader.rows["child-s0"] is before, "nothing is known of it yet"
    row = ledger.job_row("child-s0")
    assert row is not None
    ledger.update_spec(row.job.with_spec(init_env_steps=1000))
    reader.update(ledger)
    assert reader.rows["child-s0"]["lineage_env_steps"] == 1000
    ledger.close()


def test_what_a_job_knows_of_its_lineage_is_no_part_of_its_fingerprint() -> None:
    spec = make_job("a").spec
    told = make_job("a").with_spec(init_env_steps=512).spec
    assert told.fingerprint() == spec.fingerprint()
    assert WorkerSpec.from_json(told.to_json()) == told
