"""The report of a run directory: correct numbers, a self-contained page, also while the experiment
runs."""

from __future__ import annotations

import fcntl
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from report_helpers import (
    STEPS,
    TIMINGS,
    Page,
    Trained,
    film_strip,
    leave_undrawn,
    made,
    make_run_dir,
)

from orchestrator import report
from orchestrator.analysis import run_reader
from orchestrator.core import feature
from orchestrator.core.errors import UsageError
from orchestrator.core.feature import Feature
from orchestrator.core.job import Cause
from orchestrator.report import (
    drawing,
    experiment_data,
    number_format,
)
from orchestrator.report.document import (
    AddedSections,
    Document,
    Headline,
    Section,
    ShownJobs,
    Table,
    Text,
)
from orchestrator.report.experiment_facts import attempt_outcome

EVIL = "<script>a(1)</script>\"'&$x$|`*"


@dataclass(frozen=True)
class Drawn:
    """A report with its figures; not to be changed."""

    done: report.WrittenReport
    facts: dict[str, Any]
    page: Page

    @property
    def folder(self) -> Path:
        return self.done.page.parent


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    run_dir = tmp_path_factory.mktemp("drawn") / "run"
    jobs = [
        Trained(name="hopper", preview=film_strip),
        Trained(name="hopper", seed=1),
        Trained(name="walker"),
    ]
    done, facts, page = made(run_dir, jobs)
    return Drawn(done, facts, page)


def test_every_file_is_there_and_says_the_same(drawn: Drawn) -> None:
    done, facts, page, folder = drawn.done, drawn.facts, drawn.page, drawn.folder
    names = set(facts["figures"])
    assert names == {"learning-curves", "schedule", "phases"}
    assert {path.name for path in folder.iterdir()} == {"index.html", "report.json"} | {
        f"{name}.{suffix}" for name in names for suffix in ("png", "svg")
    }
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.parse(folder / f"{name}.svg")
        assert facts["figures"][name] in page.text
        assert facts["figures"][name] in re.sub(r"\\(.)", r"\1", done.markdown())


@pytest.mark.usefixtures("undrawn")
def test_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    _, facts, page = made(
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
    _, facts, page = made(tmp_path / "run", [fallen, Trained(seed=1, evaluated=900.0)])
    (finding,) = [one for one in facts["findings"] if one["kind"] == "policy"]
    assert finding["job_ids"] == [fallen.job_id(0)]
    assert "episodes last 5 of 1,000 steps" in page.text


def test_several_seeds_have_an_interval_and_a_single_one_has_none(tmp_path: Path) -> None:
    jobs = [Trained(name="several", seed=seed) for seed in range(3)] + [Trained(name="single")]
    several, single = report.compose(make_run_dir(tmp_path / "run", jobs).root).facts["robots"]
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
    done, facts, page = made(tmp_path / "run", jobs)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "b" not in {tag for tag, _ in page.tags}
    assert page.text.count(EVIL) >= 3
    assert facts["robots"][0]["robot"] == EVIL
    for path in done.page.parent.glob("*.svg"):
        assert "<script" not in path.read_text()
    curves = ElementTree.parse(done.page.parent / "learning-curves.svg")
    assert EVIL in {element.text for element in curves.iter("{http://www.w3.org/2000/svg}text")}
    assert not re.findall(r"(?<!\\)<", done.markdown().replace("](<", ""))


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
    facts = report.compose(make_run_dir(tmp_path / "run", [Trained(state="RUNNING")]).root).facts
    assert facts["jobs"][0]["state"] == "PENDING"
    assert facts["attempts"][0]["ended_at"] is None
    assert attempt_outcome(facts["attempts"][0]) == "interrupted"
    assert facts["attempts"][0]["until"] >= facts["attempts"][0]["started_at"]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_run_without_a_finished_iteration_has_a_report(tmp_path: Path, state: str) -> None:
    make_run_dir(tmp_path / "run", [Trained(state=state, iterations=0)])
    assert report.make(tmp_path / "run").page.exists()


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
    _, facts, page = made(
        tmp_path / "run", [Trained(name="bad", state="FAILED", attempts=2, message="knee & hip")]
    )
    assert [failure["cause"] for failure in facts["jobs"][0]["failures"]] == ["killed", "error"]
    assert facts["totals"]["retries"] == 1
    assert "knee & hip" in page.text


@pytest.mark.parametrize(
    "cause",
    [
        Cause.INTERRUPTED,
    ],
)
def test_stopped_attempts_are_no_failures_and_resuming_is_no_retry(
    tmp_path: Path, cause: Cause
) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained(attempts=3, before=cause)])
    facts = report.compose(paths.root).facts
    assert [attempt["cause"] for attempt in facts["attempts"]] == [cause, cause, None]
    assert (facts["jobs"][0]["failures"], facts["totals"]["retries"]) == ([], 0)


def varied(lr: float, size: str, evaluated: float | None = None) -> Trained:
    point = {"ppo.learning_rate": lr, "model.geom.leg.size": size}
    return Trained(suffix=f"-{lr}-{size}", point=point, evaluated=evaluated)


POINTS = [(lr, size) for lr in (1e-4, 1e-3) for size in ("*0.8", "*1.2")]


def test_varied_parameters_have_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)
    _, facts, _ = made(tmp_path / "run", [varied(*point) for point in POINTS])
    assert facts["varied"] == ["ppo.learning_rate", "model.geom.leg.size"]
    assert facts["figures"]["varied-parameters"].startswith("Last return of training")
    assert facts["robots"][0]["point"] == {"ppo.learning_rate": 1e-4, "model.geom.leg.size": "*0.8"}


@pytest.mark.parametrize(
    ("last", "axis"),
    [
        (400.0, "evaluated return"),
        (None, "return in training"),
    ],
)
def test_varied_parameters_are_rated_by_the_evaluation_where_all_jobs_have_one(
    last: float | None, axis: str, tmp_path: Path
) -> None:
    ratings = [100.0, 200.0, 300.0, last]
    jobs = [varied(*point, rating) for point, rating in zip(POINTS, ratings, strict=True)]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (figure,) = (figure for figure in document.figures() if figure.name == "varied-parameters")
    axes = figure.draw().axes[0]
    assert axes.get_ylabel() == axis
    dots = {float(y) for dot in axes.collections for _, y in dot.get_offsets()}
    assert (dots == set(ratings)) == (last is not None)


def of_program(number: int, **point: Any) -> Trained:
    """A job as a program enters it: each has a name of its own."""
    return Trained(name=f"body-{number}", case=f"body-{number}", point=point)


def test_what_a_program_varies_has_a_figure_over_all_jobs_and_columns(tmp_path: Path) -> None:
    genes = [number / 20 for number in range(30)]
    jobs = [
        of_program(
            number,
            **{"model.leg": gene, "meta.generation": number // 10, "meta.genome": f"g{number}"},
            n_envs=8,
        )
        for number, gene in enumerate(genes)
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (figure,) = (figure for figure in document.figures() if figure.name == "varied-parameters")
    of_gene, of_generation = figure.draw().axes[:2]
    dots = sorted(float(x) for dot in of_gene.collections for x, _ in dot.get_offsets())
    assert dots == genes, "so many numbers are drawn at their values"
    assert not of_gene.lines
    assert [label.get_text() for label in of_generation.get_xticklabels()] == ["0", "1", "2"]
    shown = [axes.get_xlabel() for axes in figure.draw().axes if axes.get_xlabel()]
    assert shown == ["model.leg", "meta.generation"], "neither 30 texts nor a single value"
    (section,) = (section for section in document.sections if section.title == "All jobs")
    (part,) = section.parts
    assert isinstance(part, Table)
    assert {"model.leg", "meta.generation", "meta.genome"} < set(part.columns)
    assert "n_envs" not in part.columns


@pytest.mark.parametrize(
    "amount",
    [
        5,
        12,
    ],
)
def test_labels_of_varied_values_do_not_overlap(amount: int, tmp_path: Path) -> None:
    values = [0.001234567 * (1 + place) for place in range(amount)]
    jobs = [
        Trained(name=name, case=f"{name}-{value}", point={"ppo.learning_rate": value})
        for name in ("ant", "bee", "cow")
        for value in values
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (figure,) = (figure for figure in document.figures() if figure.name == "varied-parameters")
    with mpl.rc_context(drawing.STYLE):
        drawn = figure.draw()
        boxes_of_panels = [
            [label.get_window_extent() for label in axes.get_xticklabels()] for axes in drawn.axes
        ]
    assert all(axes.lines for axes in drawn.axes), "a matrix has a line"
    for boxes in boxes_of_panels:
        assert len(boxes) >= min(3, amount)
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


@pytest.mark.parametrize(
    ("init", "columns"),
    [(None, set()), ("/elsewhere", set()), ("job:parent-s0", {"lineage", "parent"})],
)
def test_jobs_have_a_column_of_their_lineage_where_one_is_known(
    init: str | None, columns: set[str], tmp_path: Path
) -> None:
    jobs = [Trained(case="parent"), Trained(case="child", init=init)]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    for title in ("Robots", "All jobs"):
        (section,) = (section for section in document.sections if section.title == title)
        part = section.parts[0]
        assert isinstance(part, Table)
        assert {"lineage", "parent"} & set(part.columns) == columns, title
    (curves,) = (figure for figure in document.figures() if figure.name == "learning-curves")
    assert ("not comparable at equal env_steps" in curves.caption) == bool(columns)


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


@pytest.mark.usefixtures("undrawn")
def test_markdown_has_every_table_and_leaves_pictures_out(tmp_path: Path) -> None:
    done, _, _ = made(tmp_path / "run", [Trained(name="a|b", preview=film_strip)])
    text = done.markdown()
    assert "data:image" not in text
    assert r"a\|b" in text
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in tables if "a\\|b" in line]
    assert bars == [10, 10], "nine columns in the table of robots, and in that of phases"
    assert f"![Learning curves](<{done.page.parent}/learning-curves.png>)" in text


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
    found = experiment_data._timings(path)
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


def adding(
    monkeypatch: pytest.MonkeyPatch,
    *given: AddedSections,
    make: Callable[[], Document] | None = None,
) -> None:
    """Let features add these to every report, and one of them make it."""
    features = [
        Feature(name=f"hips{place}", about="x.", report_sections=lambda _, __, one=one: one)
        for place, one in enumerate(given)
    ]
    features.append(Feature(name="gait", about="x.", report=lambda _: make))
    monkeypatch.setattr(feature, "features", lambda: tuple(features))


HIPS = AddedSections(
    name="hips",
    facts=1,
    sections=[Section(title="Hips", parts=[Text(sentences=["They are stiff."])])],
    headlines=[Headline(label="hips", value="2")],
    shown_jobs=ShownJobs(job_ids=["j0-s0"], which="the first"),
    lists_points=True,
)


def test_jobs_that_several_features_show_are_all_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knees = AddedSections(
        name="knees",
        facts=2,
        sections=(),
        shown_jobs=ShownJobs(job_ids=["j1-s0"], which="the second"),
    )
    adding(monkeypatch, HIPS, knees)
    jobs = [Trained(name=f"r{number}") for number in range(3)]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    assert [job["job_id"] for job in document.facts["jobs"]] == ["j0-s0", "j1-s0"]
    assert "show 2: the first; the second." in str(document.sections[0].parts)
    titles = [section.title for section in document.sections]
    assert "Robots" not in titles
    assert titles[-2:] == ["Hips", "Machine"]
    assert document.facts["knees"] == 2


MADE = Document(title="Gaits", subtitle="", headlines=[], sections=[])


def test_a_feature_makes_the_report_and_may_say_that_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses() -> Never:
        raise UsageError("nobody has walked yet")

    adding(monkeypatch, make=lambda: MADE)
    assert report.compose(tmp_path).title == "Gaits"
    adding(monkeypatch, make=refuses)
    with pytest.raises(UsageError, match="nobody has walked yet"):
        report.compose(tmp_path)
