"""Which job a job started from, and how far its policy had been trained by then."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from report_helpers import Trained, make_run_dir
from supervisor_helpers import make_job

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import Ledger, lineage, summary
from orchestrator.ledger.row_reader import RowReader
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
    lines = {line["job_id"]: line for line in jobs_table.of_rows(rows)}
    assert lines["of-stranger-s0"]["lineage_env_steps"] is None
    shown = jobs_table.jobs_table(list(lines.values()), 200)
    assert [str(column.header) for column in shown.columns].count("lineage") == 1


def test_what_a_job_knows_of_its_lineage_is_no_part_of_its_fingerprint() -> None:
    spec = make_job("a").spec
    told = make_job("a").with_spec(init_env_steps=512).spec
    assert told.fingerprint() == spec.fingerprint()
    assert WorkerSpec.from_json(told.to_json()) == told
