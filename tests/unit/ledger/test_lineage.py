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

from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import Ledger, job_figures, summary
from orchestrator.ledger.lineage import Lineages, env_steps_before
from orchestrator.ledger.row_reader import RowReader
from orchestrator.ledger.rows import DeclaredJob
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
        ("job:", None),
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
    assert lineages().parent({"init": init}) == parent


def test_a_run_directory_behind_a_link_has_the_same_jobs(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to("there")
    of_link = Lineages(run_dir=tmp_path / "here", read=lambda _: None)
    for name in ("here", "there"):
        assert of_link.parent({"init": str(tmp_path / name / "jobs/a-s0")}) == "a-s0"


@pytest.mark.parametrize(
    ("spec", "earlier"),
    [
        ({"init": None}, 0),
        ({}, 0),
        ({"init": "/elsewhere", "init_env_steps": 512}, 512),
        ({"init": "job:a", "init_env_steps": 0}, 0),
        ({"init": "/elsewhere"}, None),
        ({"init": "job:gone"}, None),
        ({"init": "job:grandchild"}, 4096 + 256 + 64),
        ({"init": "job:told"}, 8 + 1000),
        ({"init": "job:told", "init_env_steps": True}, 8 + 1000),
        ({"init": "job:told", "init_env_steps": -1}, 8 + 1000),
        ({"init": "job:of-damaged"}, None),
        ({"init": "job:in-a-circle"}, None),
        ({"init": "job:of-nobody-knows"}, None),
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


def test_whether_a_job_went_on_from_a_policy_is_not_said_of_an_unknown_lineage() -> None:
    assert env_steps_before(64, 64) == 0
    assert env_steps_before(64, 64 + 512) == 512
    assert env_steps_before(64, None) is None


def test_figures_of_jobs_have_the_lineage_that_the_summary_has(tmp_path: Path) -> None:
    ledger = Ledger.create(RunPaths(tmp_path).ledger)
    child = make_job("b").with_spec(init="job:a")
    ledger.put_jobs(
        [DeclaredJob(position=0, job=make_job("a")), DeclaredJob(position=1, job=child)]
    )
    ledger.set_progress([("a", 4096, None, None, None)])
    assert job_figures.earlier_env_steps(ledger, ["a", "b"]) == {"a": 0, "b": None}
    ledger.set_progress([("b", 64, None, None, None)])
    assert job_figures.earlier_env_steps(ledger, ["a", "b"]) == {"a": 0, "b": 4096}
    assert ledger.summary_of("b")["lineage_env_steps"] == 4096 + 64
    ledger.close()


@pytest.mark.parametrize(
    "row", [("[]", 8), (b"{}", 8), (None, 8), ("{}", "8"), ("{}", None), ("{}", -1), ("\udcff", 8)]
)
def test_an_ancestor_that_cannot_be_read_is_not_known(row: tuple[object, object]) -> None:
    assert lineages({"a": row}).earlier_env_steps("this", {"init": "job:a"}, 1) is None


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


def test_a_summary_of_the_version_before_is_read(tmp_path: Path) -> None:
    run = make_run_dir(tmp_path / "run", [Trained(case="parent")])
    rows = json.loads(run.summary_json.read_text()) if run.summary_json.exists() else []
    if not rows:
        ledger = Ledger.open(run.ledger)
        summary.write(run, ledger)
        ledger.close()
        rows = json.loads(run.summary_json.read_text())
    for row in rows:
        del row["parent"], row["lineage_env_steps"]
    run.summary_json.write_text(json.dumps(rows))
    (read,), _ = summary.read(run)
    assert (read["parent"], read["lineage_env_steps"]) == (None, None)


def test_a_damaged_declaration_of_an_ancestor_concerns_nobody_else(tmp_path: Path) -> None:
    ledger = Ledger.create(RunPaths(tmp_path).ledger)
    child = make_job("b").with_spec(init="job:a")
    ledger.put_jobs(
        [DeclaredJob(position=0, job=make_job("a")), DeclaredJob(position=1, job=child)]
    )
    ledger.change("UPDATE declared SET spec = ? WHERE job_id = ?", ("{", "a"))
    row = ledger.summary_of("b")
    assert (row["parent"], row["lineage_env_steps"]) == ("a", None)
    ledger.close()


def test_what_a_job_knows_of_its_lineage_changes_neither_fingerprint_nor_files_of_others() -> None:
    spec = make_job("a").spec
    told = make_job("a").with_spec(init_env_steps=512).spec
    assert told.fingerprint() == spec.fingerprint()
    assert "init_env_steps" not in json.loads(spec.to_json())
    assert WorkerSpec.from_json(told.to_json()) == told
