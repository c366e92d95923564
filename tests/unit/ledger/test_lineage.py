"""Which job a job started from, and how far its policy had been trained by then."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from report_helpers import Trained, make_run_dir
from supervisor_helpers import make_job

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import Ledger, summary
from orchestrator.ledger.lineage import Lineages
from orchestrator.ledger.row_reader import RowReader
from orchestrator.terminal import jobs_table

RUN = Path("/runs/evolve")


def lineages(jobs: Mapping[str, tuple[object, object]] | None = None) -> Lineages:
    """:param jobs: what a ledger has of each job: text of its declaration, and env_steps."""
    return Lineages(run_dir=RUN, read=(jobs or {}).get)


def declared(env_steps: int, init: str | None = None, told: Any = None) -> tuple[str, int]:
    values = {"init": init} if told is None else {"init": init, "init_env_steps": told}
    return json.dumps(values), env_steps


@pytest.mark.parametrize(
    ("init", "parent"),
    [
        (None, None),
        ("job:a-s0", "a-s0"),
        (str(RUN / "jobs/a-s0"), "a-s0"),
        (str(RUN / "jobs/a-s0/model.zip"), "a-s0"),
        (str(RUN / "jobs/a-s0/checkpoints/64.pt"), None),
        (str(RUN.parent / "other/jobs/a-s0"), None),
    ],
)
def test_the_parent_is_a_job_of_the_same_run_directory(init: object, parent: str | None) -> None:
    assert lineages().parent({"init": init}) == parent


@pytest.mark.parametrize(
    ("spec", "earlier"),
    [
        ({"init": None}, 0),
        ({"init": "/elsewhere", "init_env_steps": 512}, 512),
        ({"init": "/elsewhere"}, None),
        ({"init": "job:gone"}, None),
        ({"init": "job:grandchild"}, 4096 + 256 + 64),
        ({"init": "job:told"}, 8 + 1000),
        ({"init": "job:in-a-circle"}, None),
    ],
)
def test_env_steps_of_all_ancestors_count_as_far_as_they_are_known(
    spec: dict[str, Any], earlier: int | None
) -> None:
    jobs: dict[str, tuple[object, object]] = {
        "a": declared(4096),
        "child": declared(256, "job:a"),
        "grandchild": declared(64, str(RUN / "jobs/child/model.zip")),
        "told": declared(8, "/elsewhere", 1000),
        "of-damaged": declared(8, "job:damaged"),
        "damaged": ("{", 8),
        "in-a-circle": declared(8, "job:in-a-circle-too"),
        "in-a-circle-too": declared(8, "job:in-a-circle"),
        "of-nobody-knows": declared(8, "/elsewhere"),
    }
    of_run = lineages(jobs)
    for _ in range(2):  # what was found is kept
        assert of_run.earlier_env_steps("this", spec, 1) == earlier


def test_a_job_that_has_not_begun_has_only_the_lineage_that_its_declaration_tells() -> None:
    of_run = lineages({"a": declared(4096)})
    assert of_run.earlier_env_steps("this", {"init": "job:a"}, 0) is None
    assert of_run.earlier_env_steps("this", {"init": "job:a", "init_env_steps": 512}, 0) == 512
    assert of_run.earlier_env_steps("this", {"init": None}, 0) == 0
    assert of_run.earlier_env_steps("this", {"init": "job:a"}, 1) == 4096, "once it has begun"


def test_each_ancestor_of_a_thousand_generations_is_read_once() -> None:
    asked: list[str] = []
    jobs = {"0": declared(10)} | {
        str(one): declared(10, f"job:{one - 1}") for one in range(1, 1000)
    }

    def read(job_id: str) -> tuple[object, object]:
        asked.append(job_id)
        return jobs[job_id]

    of_run = Lineages(run_dir=RUN, read=read)
    found = [
        of_run.earlier_env_steps(job_id, json.loads(text), env_steps)
        for job_id, (text, env_steps) in reversed(jobs.items())
    ]
    assert found == [10 * one for one in reversed(range(1000))]
    assert len(asked) == len(set(asked)) == 999


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
        "of-path-s0": ("child-s0", 3 * steps),
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
    assert lines["of-path-s0"].lineage_env_steps == 2 * steps + with_told
    assert lines["of-stranger-s0"].lineage_env_steps is None
    shown = jobs_table.jobs_table(list(lines.values()), 200)
    assert [str(column.header) for column in shown.columns].count("lineage") == 1


def test_what_a_job_knows_of_its_lineage_changes_neither_fingerprint_nor_files_of_others() -> None:
    spec = make_job("a").spec
    told = make_job("a").with_spec(init_env_steps=512).spec
    assert told.fingerprint() == spec.fingerprint()
    assert "init_env_steps" not in json.loads(spec.to_json())
    assert WorkerSpec.from_json(told.to_json()) == told
