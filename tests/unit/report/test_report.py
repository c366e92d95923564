"""The report of a run directory: correct numbers, a self-contained page, also while the experiment
runs."""

from __future__ import annotations

import fcntl
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never
from xml.etree import ElementTree

import pytest
from report_helpers import (
    STEPS,
    TIMINGS,
    Page,
    Trained,
    film_strip,
    made,
    make_run_dir,
    rows,
)

from orchestrator import report
from orchestrator.analysis import run_reader
from orchestrator.core import feature
from orchestrator.core.errors import UsageError
from orchestrator.core.feature import Feature
from orchestrator.core.job import Cause
from orchestrator.report import experiment, number_format
from orchestrator.report.document import Headline, Section, Table, Text

EVIL = "<script>a(1)</script>\"'&$x$|`*"


@dataclass(frozen=True)
class Drawn:
    """A report with its figures; not to be changed."""

    folder: Path
    facts: dict[str, Any]
    page: Page


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    run_dir = tmp_path_factory.mktemp("drawn") / "run"
    jobs = [
        Trained(name="hopper", preview=film_strip),
        Trained(name="hopper", seed=1),
        Trained(name="walker"),
    ]
    facts, page = made(run_dir, jobs)
    return Drawn(run_dir / "report", facts, page)


def test_every_file_is_there_and_says_the_same(drawn: Drawn) -> None:
    facts, page, folder = drawn.facts, drawn.page, drawn.folder
    names = set(facts["figures"])
    assert names == {"learning-curves", "schedule", "phases"}
    assert {path.name for path in folder.iterdir()} == {"index.html", "report.json"} | {
        f"{name}.{suffix}" for name in names for suffix in ("png", "svg")
    }
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.parse(folder / f"{name}.svg")
        assert facts["figures"][name] in page.text


@pytest.mark.usefixtures("undrawn")
def test_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    facts, page = made(
        tmp_path / "run", [Trained(iterations=5), Trained(seed=1, iterations=5, attempts=2)]
    )
    assert facts["totals"]["states"] == {"SUCCEEDED": 2}
    assert facts["totals"]["retries"] == 1
    assert facts["totals"]["env_steps"] == 2 * 5 * STEPS
    assert facts["totals"]["core_hours"] == pytest.approx(3 * 15 / 3600)
    assert facts["totals"]["busy_s"] == pytest.approx(30.0)
    assert facts["totals"]["env_steps_per_s"] == pytest.approx(10 * STEPS / 30)
    (robot,) = facts["robots"]
    assert robot["seeds"] == [0, 1]
    assert robot["attempts"] == 3
    assert robot["env_steps_per_s"]["value"] == pytest.approx(STEPS)
    assert robot["phases"]["env_s"] == pytest.approx(2 * 5 * 0.3)
    assert robot["phases"]["rest_s"] == pytest.approx(2 * 5 * (1.0 - 0.3 - 0.2 - 0.01 - 0.2 - 0.1))
    assert robot["run_delay_s"] == pytest.approx(1.0)
    assert f"{10 * STEPS:,}" in page.text


def test_what_is_wrong_with_a_policy_is_a_finding(tmp_path: Path) -> None:
    fallen = Trained(evaluated=4.2, eval_length=5.0, eval_finding="episodes last 5 of 1,000 steps")
    facts, page = made(tmp_path / "run", [fallen, Trained(seed=1, evaluated=900.0)])
    (finding,) = [one for one in facts["findings"] if one["kind"] == "policy"]
    assert finding["job_ids"] == [fallen.job_id(0)]
    assert "episodes last 5 of 1,000 steps" in page.text


def test_several_seeds_have_an_interval_and_a_single_one_has_none(tmp_path: Path) -> None:
    jobs = [Trained(name="several", seed=seed) for seed in range(3)] + [Trained(name="single")]
    several, single = report.compose(make_run_dir(tmp_path / "run", jobs).root).numbers["robots"]
    assert several["last"]["low"] < several["last"]["value"] < several["last"]["high"]
    assert single["last"]["low"] is single["last"]["high"] is None


def test_page_needs_nothing_but_itself(drawn: Drawn) -> None:
    page = drawn.page
    assert not {tag for tag, _ in page.tags} & {
        "script",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, name, value)
    text = (drawn.folder / "index.html").read_text()
    assert not re.findall(r"url\((?!#)|@import", text)
    assert "default-src 'none'" in text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.nightly
def test_names_are_shown_as_they_are_whatever_they_hold(tmp_path: Path) -> None:
    jobs = [
        Trained(name=EVIL, state="FAILED", message=EVIL),
        Trained(name="_grüße 🦿 \x0b夢", point={"<b>": EVIL}),
    ]
    jobs.append(Trained(name="_grüße 🦿 \x0b夢", suffix="-b", point={"<b>": "2"}))
    facts, page = made(tmp_path / "run", jobs)
    folder = tmp_path / "run/report"
    assert "script" not in {tag for tag, _ in page.tags}
    assert "b" not in {tag for tag, _ in page.tags}
    assert page.text.count(EVIL) >= 2
    assert facts["robots"][0]["robot"] == EVIL
    for path in folder.glob("*.svg"):
        assert "<script" not in path.read_text()
    curves = ElementTree.parse(folder / "learning-curves.svg")
    assert EVIL in {element.text for element in curves.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.usefixtures("undrawn")
def test_a_running_experiment_is_reported_so_far(tmp_path: Path) -> None:
    jobs = [
        Trained(name="done"),
        Trained(name="going", state="RUNNING"),
        Trained(name="waiting", state="PENDING"),
    ]
    paths = make_run_dir(tmp_path / "run", jobs)
    going = paths.job("j1-s0")
    with going.progress_csv.open("a") as file:
        file.write(f"6,{6 * STEPS},77.5,0.1,0.1\n7,{7 * STEPS},7")
    with going.timings_csv.open("a") as file:
        file.write(f"6,12288,1.0,0.6{',' * (len(TIMINGS) - 4)}\n7,")
    with paths.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report.make(tmp_path / "run")
    facts = json.loads((tmp_path / "run/report/report.json").read_text())
    assert facts["running"] is True
    assert [job["state"] for job in facts["jobs"]] == ["SUCCEEDED", "RUNNING", "PENDING"]
    assert facts["jobs"][1]["ep_rew_mean"] == 77.5
    assert facts["jobs"][1]["env_steps"] == 6 * STEPS
    assert facts["jobs"][2]["curve"] == []
    assert "so far" in Page(tmp_path / "run/report/index.html").text


def test_a_job_whose_supervisor_died_waits_to_be_resumed(tmp_path: Path) -> None:
    facts = report.compose(make_run_dir(tmp_path / "run", [Trained(state="RUNNING")]).root).numbers
    assert facts["jobs"][0]["state"] == "PENDING"
    assert facts["attempts"][0]["ended_at"] is None
    assert facts["attempts"][0]["outcome"] == "interrupted"
    assert facts["attempts"][0]["until"] >= facts["attempts"][0]["started_at"]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_run_without_a_finished_iteration_has_a_report(tmp_path: Path, state: str) -> None:
    make_run_dir(tmp_path / "run", [Trained(state=state, iterations=0)])
    assert report.make(tmp_path / "run").exists()


def test_robots_under_examination_have_a_report(tmp_path: Path) -> None:
    lock = tmp_path / "supervisor.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        report.make(tmp_path)
    assert "being examined" in Page(tmp_path / "report/index.html").text


def test_missing_files_leave_gaps_and_no_error(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained(name="whole"), Trained(name="torn")])
    torn = paths.job("j1-s0")
    torn.progress_csv.unlink()
    torn.timings_csv.write_bytes(b"\xff\xfe\0 not,a\ntable\n")
    torn.eval.write_text('{"deterministic": {"mean": NaN, "measures": 3}, "stoch')
    torn.preview.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    paths.provenance.unlink()
    report.make(tmp_path / "run")
    facts = json.loads((tmp_path / "run/report/report.json").read_text())
    assert facts["jobs"][1]["timings"]["wall_s"] is None
    assert facts["jobs"][1]["evaluation"] is None
    assert facts["machine"] == {}


@pytest.mark.usefixtures("undrawn")
def test_failures_are_reported_with_their_causes(tmp_path: Path) -> None:
    facts, page = made(
        tmp_path / "run", [Trained(name="bad", state="FAILED", attempts=2, message="knee & hip")]
    )
    assert [attempt["cause"] for attempt in facts["attempts"]] == ["killed", "error"]
    assert facts["totals"]["retries"] == 1
    assert "knee & hip" in page.text


def test_stopped_attempts_are_no_failures_and_resuming_is_no_retry(tmp_path: Path) -> None:
    cause = Cause.INTERRUPTED
    paths = make_run_dir(tmp_path / "run", [Trained(attempts=3, before=cause)])
    facts = report.compose(paths.root).numbers
    assert [attempt["cause"] for attempt in facts["attempts"]] == [cause, cause, None]
    assert {attempt["outcome"] for attempt in facts["attempts"]} == {"interrupted", "succeeded"}
    assert facts["totals"]["retries"] == 0


@pytest.mark.parametrize(
    ("init", "columns"),
    [(None, set()), ("/elsewhere", set()), ("job:parent-s0", {"lineage", "parent"})],
)
def test_jobs_have_a_column_of_their_lineage_where_one_is_known(
    init: str | None, columns: set[str], tmp_path: Path
) -> None:
    jobs = [Trained(case="parent"), Trained(case="child", init=init)]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (section,) = (section for section in document.sections if section.title == "All jobs")
    part = section.parts[0]
    assert isinstance(part, Table)
    assert {"lineage", "parent"} & set(part.columns) == columns
    assert ("not comparable at equal env_steps" in part.caption) == bool(columns)


@pytest.mark.nightly
def test_same_run_gives_the_same_figures(drawn: Drawn) -> None:
    first = {path.name: path.read_bytes() for path in drawn.folder.glob("*.svg")}
    report.make(drawn.folder.parent)
    assert first == {path.name: path.read_bytes() for path in drawn.folder.glob("*.svg")}


def test_not_a_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        report.make(tmp_path)
    assert not (tmp_path / "report").exists()


@pytest.mark.usefixtures("undrawn")
def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    make_run_dir(tmp_path / "run", [Trained()])
    (tmp_path / "run/report").write_text("in the way")
    with pytest.raises(UsageError):
        report.make(tmp_path / "run")


def test_curve_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    rows = "".join(f"{step},{step}.5\n" for step in range(1, 1001))
    path.write_text(f"time/total_timesteps,rollout/ep_rew_mean\n0,\n{rows}5000,nan\n")
    found = run_reader.learning_curve(path)
    assert len(found) <= run_reader.CURVE_POINTS + 1
    assert found[0] == (1.0, 1.5)
    assert found[-1] == (1000.0, 1000.5)


def test_timings_of_another_system_have_gaps_that_are_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "timings.csv"
    path.write_text("iteration,env_steps,wall_s,run_delay_s\n1,100,2.0,\n2,200,2.5,\n")
    found = experiment._sums(run_reader.iterations(path))
    assert (found["iterations"], found["env_steps"], found["wall_s"]) == (2, 200.0, 4.5)
    assert found["run_delay_s"] is found["cpu_s"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (1234567.0, "1,234,567"),
        (12.3456, "12.35"),
        (0.00123456, "0.00123"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number_format.number(value) == text


def test_what_a_learner_does_not_measure_is_empty_and_not_zero(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained()])
    head = "iteration,env_steps,wall_s,rollout_s,train_s"
    paths.job("j0-s0").timings_csv.write_text(f"{head}\n1,100,2,1,1\n2,200,2,1,1\n")
    document = report.compose(paths.root)
    [robot] = document.numbers["robots"]
    assert robot["phases"]["backward_s"] is robot["phases"]["env_s"] is None
    assert robot["phases"]["rest_s"] == 4.0


def test_measures_have_a_table_of_their_own(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained(name="a"), Trained(name="b")])
    measures = {"distance_m": {"mean": 3.5}, "energy_j": {"mean": 20.0}}
    evaluation = {"deterministic": {"mean": 5.0, "measures": measures}}
    paths.job("j0-s0").eval.write_text(json.dumps(evaluation))
    document = report.compose(paths.root)
    assert rows(document, "Measures") == ["a | 3.50 | 20"]
    assert "3.50" not in rows(document, "Robots")[0]


def test_of_many_jobs_the_best_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "MOST_JOBS", 3)
    ratings = [1.0, 9.0, 8.0, 2.0, 3.0, 4.0, 5.0]
    jobs = [
        Trained(name=f"r{place}", case=f"r{place}", evaluated=rating)
        for place, rating in enumerate(ratings)
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs, cpus=1).root)
    assert [job["name"] for job in document.numbers["jobs"]] == ["r1", "r2", "r6"]
    assert document.numbers["totals"]["jobs"] == 7
    assert "Of 7 jobs, the 3 with" in str(document.sections[0].parts)


def test_the_best_of_robots_that_a_program_varies_comes_first(tmp_path: Path) -> None:
    ratings = {"low": 1.0, "high": 9.0}
    jobs = [Trained(name=name, case=name, point={"meta.generation": 2}) for name in ratings]
    paths = make_run_dir(tmp_path / "run", jobs)
    for name, rating in ratings.items():
        evaluation = {"deterministic": {"mean": rating}}
        paths.job(f"{name}-s0").eval.write_text(json.dumps(evaluation))
    first, second = rows(report.compose(paths.root), "Robots")
    assert first.startswith("high | meta.generation 2")
    assert second.startswith("low")


def adding(monkeypatch: pytest.MonkeyPatch, *sections: Section) -> None:
    """Let a feature add these to every report."""
    added = Feature(name="hips", about="x.", report_sections=lambda _: sections)
    monkeypatch.setattr(feature, "features", lambda: (added,))


def test_sections_of_features_have_their_place_numbers_and_headlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stiff = [Text(sentences=["They are stiff."])]
    first = Section(
        title="Knees", parts=stiff, is_first=True, headlines=[Headline(label="x", value="1")]
    )
    last = Section(title="Hips", parts=stiff, numbers={"hips": 2})
    adding(monkeypatch, last, first, Section(title="Empty"))
    document = report.compose(make_run_dir(tmp_path / "run", [Trained()]).root)
    titles = [section.title for section in document.sections]
    assert titles[:2] == ["About", "Knees"]
    assert titles[-2:] == ["Hips", "Machine"]
    assert "Empty" not in titles
    assert document.numbers["hips"] == 2
    assert [one.label for one in document.headlines].count("x") == 1


def test_a_directory_that_is_no_experiment_has_the_sections_of_features_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adding(monkeypatch, Section(title="Gaits", parts=[Text(sentences=["None."])]))
    (tmp_path / "supervisor.lock").touch()  # as a benchmark has one
    assert [section.title for section in report.compose(tmp_path).sections] == ["Gaits"]

    def refuses(_: Path) -> Never:
        raise UsageError("nobody has walked yet")

    gait = Feature(name="gait", about="x.", report_sections=refuses)
    monkeypatch.setattr(feature, "features", lambda: (gait,))
    with pytest.raises(UsageError, match="nobody has walked yet"):
        report.compose(tmp_path)
