"""The report of a run directory: correct numbers, a self-contained page, also while the experiment
runs."""

from __future__ import annotations

import fcntl
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from orchestrator.analysis.statistics import MEDIAN_INTERVALS
from orchestrator.core import feature
from orchestrator.core.errors import UsageError
from orchestrator.core.feature import Feature
from orchestrator.core.job import Cause
from orchestrator.core.paths import RunPaths
from orchestrator.report import (
    drawing,
    experiment_data,
    experiment_figures,
    experiment_tables,
    number_format,
    thumbnails,
)
from orchestrator.report.document import (
    AddedSections,
    Document,
    Figure,
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
    assert robot["env_steps_per_s"]["median"] == pytest.approx(STEPS)
    assert robot["phases"]["env_s"] == pytest.approx(2 * 5 * 0.3)
    assert robot["phases"]["rest_s"] == pytest.approx(2 * 5 * (1.0 - 0.3 - 0.2 - 0.01 - 0.2 - 0.1))
    assert robot["run_delay_s"] == pytest.approx(1.0)
    assert f"{10 * STEPS:,}" in page.text


def test_several_seeds_have_an_interval_and_a_single_one_has_none(tmp_path: Path) -> None:
    jobs = [Trained(name="several", seed=seed) for seed in range(3)] + [Trained(name="single")]
    several, single = report.compose(make_run_dir(tmp_path / "run", jobs).root).facts["robots"]
    assert several["last"]["low"] < several["last"]["median"] < several["last"]["high"]
    assert single["last"]["low"] is single["last"]["high"] is None
    assert (several["last"]["method"], single["last"]["method"]) == ("Student's t", None)


@pytest.mark.usefixtures("undrawn")
def test_seeds_that_were_trained_otherwise_are_named(tmp_path: Path) -> None:
    """As where a job file was changed, and then got further seeds."""
    jobs = [Trained(seed=seed, iterations=9) for seed in range(3)]
    alike = report.compose(make_run_dir(tmp_path / "alike", jobs).root)
    unlike = [*jobs, Trained(seed=3, iterations=7), Trained(seed=4, iterations=7)]
    mixed = report.compose(make_run_dir(tmp_path / "mixed", unlike).root)
    for page, seeds in ((alike, []), (mixed, [3, 4])):
        (robot,) = page.facts["robots"]
        assert robot["unlike_seeds"] == seeds
        (table,) = (
            part
            for section in page.sections
            if section.title == "Robots"
            for part in section.parts
            if isinstance(part, Table)
        )
        assert ("(3, 4). Figures over seeds" in table.caption) is bool(seeds)


def test_whatever_speaks_of_intervals_names_their_method(tmp_path: Path) -> None:
    jobs = [
        Trained(case=f"of-{ranks}", seed=seed, ranks=ranks) for ranks in (1, 2) for seed in range(3)
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    captions = {
        part.caption
        for section in document.sections
        for part in section.parts
        if isinstance(part, Table | Figure)
    }
    of_intervals = {caption for caption in captions if "95 %" in caption}
    assert len(of_intervals) == 4, "learning curves, robots, a figure and a table of ranks"
    assert all(MEDIAN_INTERVALS in caption for caption in of_intervals)


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


def test_figures_have_the_colours_of_the_page(drawn: Drawn) -> None:
    page = (drawn.folder / "index.html").read_text()
    assert "prefers-color-scheme: dark" in page
    drawings = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(drawings) == 3
    for svg in drawings:
        assert "var(--ink)" in svg
        styles = " ".join(re.findall(r'style="([^"]*)"', svg))
        assert set(re.findall(r"#[0-9a-f]{6}", styles)) == set()
    assert drawing.COLOURS["ink"][0] in (drawn.folder / "phases.svg").read_text()


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
    report.make(tmp_path / "run")
    page = Page(tmp_path / "run/report/index.html")
    assert "No job has finished an episode." in page.text
    assert "There are no findings:" in page.text  # rather than that nothing took time


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
def test_robots_without_a_learning_curve_are_counted_and_a_single_value_is_a_dot(
    tmp_path: Path,
) -> None:
    jobs = [Trained(name="ant", iterations=1), Trained(name="bee"), Trained(name="cow")]
    run = make_run_dir(tmp_path / "run", jobs)
    run.job(jobs[2].job_id(2)).progress_csv.unlink()
    (figure,) = (one for one in report.compose(run.root).figures() if one.name == "learning-curves")
    assert (
        "1 of 3 robots has no panel, as no training episode of theirs has ended." in figure.caption
    )
    of_ant, of_bee = figure.draw().axes
    assert [line.get_marker() for line in of_ant.lines] == ["o"]
    assert [line.get_marker() for line in of_bee.lines] == ["None"]


def test_missing_previews_are_reported_once(tmp_path: Path) -> None:
    jobs = [
        Trained(name=f"r{number}", preview=film_strip if number == 0 else None)
        for number in range(4)
    ]
    _, _, page = made(tmp_path / "run", jobs)
    assert page.text.count("preview:") == 1
    assert "3 of 4 robots have no preview" in page.text
    assert "`" not in page.text
    assert sum(tag == "img" for tag, _ in page.tags) == 1


@pytest.mark.usefixtures("undrawn")
def test_how_workers_were_started_is_reported_with_the_reasons(tmp_path: Path) -> None:
    hangs = "the template process has ended or hangs"
    starts: list[Trained] = [
        *(Trained(name=f"forked-{number}", start="fork") for number in range(3)),
        Trained(name="lost", start="exec", why_exec=hangs),
        Trained(name="other", start="exec"),
        Trained(name="not known"),
    ]
    _, facts, page = made(tmp_path / "run", starts)
    text = (
        "Of 5 workers that have ended, 3 forked from a process that "
        "had imported their packages and 2 started as new "
    )
    assert (
        f"{text}Python processes: {hangs} (1); fewer than 3 jobs that can be forked are due (1)"
        in page.text
    )
    assert [attempt["start"] for attempt in facts["attempts"]].count("fork") == 3
    assert hangs in [attempt["why_exec"] for attempt in facts["attempts"]]


@pytest.mark.usefixtures("undrawn")
def test_failures_are_reported_with_their_causes(tmp_path: Path) -> None:
    _, facts, page = made(
        tmp_path / "run", [Trained(name="bad", state="FAILED", attempts=2, message="knee & hip")]
    )
    assert [failure["cause"] for failure in facts["jobs"][0]["failures"]] == ["killed", "error"]
    assert facts["totals"]["retries"] == 1
    assert "knee & hip" in page.text


@pytest.mark.parametrize(
    "cause", [Cause.INTERRUPTED, Cause.SUPERVISOR_DIED, Cause.PAUSED, Cause.CANCELLED]
)
def test_stopped_attempts_are_no_failures_and_resuming_is_no_retry(
    tmp_path: Path, cause: Cause
) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained(attempts=3, before=cause)])
    facts = report.compose(paths.root).facts
    assert [attempt["cause"] for attempt in facts["attempts"]] == [cause, cause, None]
    assert (facts["jobs"][0]["failures"], facts["totals"]["retries"]) == ([], 0)


def test_the_preview_of_a_robot_is_that_of_its_highest_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_tables, "thumbnails", dict)
    returns = {"none": None, "low": -1.5, "zero": 0.0}
    jobs: Any = [
        {"group": "g", "job_id": job, "ep_rew_mean": it, "preview": True}
        for job, it in returns.items()
    ]
    assert experiment_tables.previews(jobs, RunPaths(tmp_path)) == {
        "g": RunPaths(tmp_path).job("zero").preview
    }


@pytest.mark.nightly
def test_hundreds_of_jobs_stay_readable_and_small(tmp_path: Path) -> None:
    strip = film_strip()
    jobs = [
        Trained(name=f"robot {number}", iterations=3, preview=lambda: strip)
        for number in range(200)
    ]
    done, facts, page = made(tmp_path / "run", jobs)
    assert done.page.stat().st_size < 10e6
    assert len(facts["robots"]) == 200
    assert sum(tag == "img" for tag, _ in page.tags) == 200
    assert (
        "12 robots with the highest and the 12 with the lowest"
        in facts["figures"]["learning-curves"]
    )
    assert "160 more rows" in page.text


def held(begin_s: float, end_s: float, cpus: Sequence[int], node: str | None = None) -> Any:
    """An attempt."""
    return {
        "job_id": "a-s0",
        "started_at": begin_s,
        "until": end_s,
        "ended_at": end_s,
        "cause": None,
        "cpu_s": 0.5,
        "wall_s": 1.0,
        "cpus": list(cpus),
        "cpu_spans": [{"since": begin_s, "cpus": list(cpus)}],
        "node": node,
    }


@pytest.mark.parametrize(
    ("attempts", "given"),
    [
        ([held(0, 9, [0, 1]), held(10, 20, [0, 1])], 2),
        ([held(0, 9, [0, 1], "m"), held(0, 9, [0, 1], "n")], 4),
        ([held(0, 9, [0, 1, 0, 1], "m, n"), held(9, 20, [4, 5, 6], "n, o")], 4),
        ([held(0, 9, [0, 1, 0, 1], "m, n"), held(8, 20, [4, 5, 6], "n, o")], 7),
        ([held(0, 9, []), held(5, 20, []), held(9, 30, [])], 2),
    ],
)
def test_the_dashed_line_is_at_the_number_of_cpus_also_where_lanes_are_slots(
    attempts: Sequence[Any], given: int
) -> None:
    _, lower = experiment_figures.schedule(attempts, {}).axes
    (dashed,) = (line for line in lower.lines if line.get_linestyle() == "--")
    assert list(dashed.get_ydata()) == [given, given]


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
    ("last", "axis"), [(400.0, "evaluated return"), (None, "return in training")]
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
    assert "Without meta.genome, with more than 24 values that are no numbers." in figure.caption


@pytest.mark.parametrize(
    ("evaluated", "first"),
    [((1.0, 3.0, 2.0), "the highest evaluation"), ((None,) * 3, "the highest last return of")],
)
def test_robots_of_a_program_have_their_meta_and_the_highest_return_comes_first(
    evaluated: Sequence[float | None], first: str, tmp_path: Path
) -> None:
    jobs = [
        replace(of_program(number, **{"meta.genome": f"g{number}"}), evaluated=value)
        for number, value in enumerate(evaluated)
    ]
    jobs += [replace(jobs[0], seed=1, point={"meta.genome": "other"}), of_program(3)]
    jobs[-1] = replace(jobs[-1], state="PENDING", iterations=0)
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (section,) = (section for section in document.sections if section.title == "Robots")
    found = section.parts[0]
    assert isinstance(found, Table)
    assert f"Robots with {first}" in found.caption
    texts = [(row[0].text, row[list(found.columns).index("meta")].text) for row in found.rows]
    assert ("body-0 (2 seeds)", "genome g0 or other") in texts
    assert texts[-1] == ("body-3", number_format.DASH)
    if evaluated[0] is not None:
        assert texts[:2] == [("body-1", "genome g1"), ("body-2", "genome g2")]
    assert document.facts["robots"][0]["robot"] == "body-0", "report.json keeps their order"
    of_matrix = report.compose(
        make_run_dir(tmp_path / "matrix", [varied(*point) for point in POINTS]).root
    )
    assert not any("come first" in str(one.parts) for one in of_matrix.sections)


def test_numbers_of_which_each_robot_has_its_own_are_drawn_at_their_values(tmp_path: Path) -> None:
    lengths = [0.2 + 0.013579 * number for number in range(10)]
    jobs = [
        replace(
            of_program(number, **{"meta.length": length, "meta.generation": number // 5}), seed=seed
        )
        for number, length in enumerate(lengths)
        for seed in (0, 1)
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (figure,) = (figure for figure in document.figures() if figure.name == "varied-parameters")
    of_length, of_generation = figure.draw().axes
    dots = {float(x) for dot in of_length.collections for x, _ in dot.get_offsets()}
    assert dots == set(lengths)
    assert not of_length.lines
    assert [label.get_text() for label in of_generation.get_xticklabels()] == ["0", "1"]
    assert of_generation.lines, "five robots of each"


@pytest.mark.parametrize("amount", [2, 5, 9, 12])
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


def test_what_tells_all_robots_apart_has_an_importance(tmp_path: Path) -> None:
    jobs = [
        replace(
            of_program(number, **{"meta.side": "lr"[number % 2], "model.leg": number / 20}),
            evaluated=-float(number),
        )
        for number in range(30)
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (section,) = (one for one in document.sections if one.title == "Varied parameters")
    (_, effects) = section.parts
    assert isinstance(effects, Table)
    assert list(effects.columns) == ["parameter", "importance", "correlation", "robots"]
    shown = [[cell.text for cell in row] for row in effects.rows]
    assert [row[0] for row in shown] == ["model.leg", "meta.side"]
    assert float(shown[0][1].rstrip("%").strip()) > 90
    assert shown[0][2:] == ["−1.00", "30"]
    assert shown[1][2:] == ["–", "30"]


def test_seeds_of_few_robots_are_no_robots_of_their_own(tmp_path: Path) -> None:
    jobs = [
        replace(of_program(number, **{"model.leg": number / 20}), seed=seed, evaluated=number + 0.1)
        for number in range(6)
        for seed in range(5)
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (section,) = (one for one in document.sections if one.title == "Varied parameters")
    assert len(section.parts) == 1, "six robots are too few for an importance"


def test_a_matrix_of_which_most_is_to_come_has_a_panel_for_each_robot(tmp_path: Path) -> None:
    jobs = [
        Trained(
            name=name,
            suffix=f"-{name}-{lr}",
            point={"ppo.learning_rate": lr},
            state="SUCCEEDED" if name == "ant" or lr == 1e-4 else "PENDING",
        )
        for name in ("ant", "bee", "cow")
        for lr in (1e-4, 1e-3)
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (figure,) = (figure for figure in document.figures() if figure.name == "varied-parameters")
    assert [axes.get_title() for axes in figure.draw().axes if axes.get_title()] == ["ant"]


def test_bodies_that_a_program_trains_again_do_not_hide_what_tells_all_apart(
    tmp_path: Path,
) -> None:
    jobs = [
        of_program(number, **{"ppo.learning_rate": 0.001 * number, "meta.generation": number // 10})
        for number in range(30)
    ]
    elites = [
        replace(one, seed=1, point={**one.point, "meta.generation": 7, "ppo.learning_rate": 0.5})
        for one in jobs[3:15]
    ]
    document = report.compose(make_run_dir(tmp_path / "run", [*jobs, *elites]).root)
    (figure,) = (figure for figure in document.figures() if figure.name == "varied-parameters")
    shown = [(axes.get_title(), axes.get_xlabel()) for axes in figure.draw().axes if axes.axison]
    assert shown == [("all jobs", "ppo.learning_rate"), ("all jobs", "meta.generation")]
    (section,) = (section for section in document.sections if section.title == "All jobs")
    (part,) = section.parts
    assert isinstance(part, Table)
    assert {"ppo.learning_rate", "meta.generation"} < set(part.columns)


def test_returns_against_parameters_are_those_of_jobs_that_have_succeeded(tmp_path: Path) -> None:
    jobs = [varied(*point, 1.0) for point in POINTS]
    jobs[0] = replace(jobs[0], evaluated=None)
    jobs[1] = replace(jobs[1], state="FAILED")
    jobs.append(replace(varied(*POINTS[1]), seed=5, state="RUNNING"))
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (figure,) = (figure for figure in document.figures() if figure.name == "varied-parameters")
    assert figure.caption.startswith("Last return of training (not all were evaluated)")
    (first, *_) = figure.draw().axes
    dots = sum(len(dots.get_offsets()) for dots in first.collections)
    assert dots == len(POINTS) - 1


def test_captions_say_where_a_policy_before_is_of_unknown_length(tmp_path: Path) -> None:
    jobs = [Trained(case="parent"), Trained(case="child", init="/elsewhere")]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (curves,) = (figure for figure in document.figures() if figure.name == "learning-curves")
    assert "may not be comparable at equal env_steps" in curves.caption


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


def test_a_robot_has_the_lineages_and_parents_of_all_of_its_seeds(tmp_path: Path) -> None:
    jobs = [
        *(Trained(case="parent", seed=seed, iterations=4 + seed) for seed in (0, 1)),
        *(
            Trained(case="child", seed=seed, init=f"job:parent-s{seed}", iterations=4)
            for seed in (0, 1)
        ),
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (section,) = (section for section in document.sections if section.title == "Robots")
    robots = section.parts[0]
    assert isinstance(robots, Table)
    places = [list(robots.columns).index(name) for name in ("env_steps", "lineage", "parent")]
    texts = [[row[place].text for place in places] for row in robots.rows]
    own = 4 * STEPS, 5 * STEPS
    assert texts == [
        [f"{own[0]:,} to {own[1]:,}", f"{own[0]:,} to {own[1]:,}", number_format.DASH],
        [f"{own[0]:,}", f"{2 * own[0]:,} to {own[0] + own[1]:,}", "parent-s0, parent-s1"],
    ]


@pytest.mark.parametrize("values", [([64, 64], [32]), ({"pi": [64]}, {"pi": [32]})])
def test_varied_lists_and_tables_have_a_figure(values: tuple[Any, Any], tmp_path: Path) -> None:
    points = [{"policy_kwargs.net_arch": value} for value in values]
    jobs = [
        Trained(suffix=f"-{number}", point=points[number], seed=seed)
        for number in (0, 1)
        for seed in (0, 1)
    ]
    document = report.compose(make_run_dir(tmp_path / "run", jobs).root)
    (figure,) = (figure for figure in document.figures() if figure.name == "varied-parameters")
    labels = [label.get_text() for label in figure.draw().axes[0].get_xticklabels()]
    assert labels == [number_format.one_line(value, 14) for value in values]


def test_a_run_directory_that_is_only_numbered_is_titled_with_its_folder(tmp_path: Path) -> None:
    assert report.compose(make_run_dir(tmp_path / "evolve/0", [Trained()]).root).title == "evolve/0"
    assert report.compose(make_run_dir(tmp_path / "evolve/0b", [Trained()]).root).title == "0b"


@pytest.mark.usefixtures("undrawn")
def test_old_figures_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    done, _, _ = made(tmp_path / "run", [Trained()])
    folder = done.page.parent
    facts = json.loads((folder / "report.json").read_text())
    facts["figures"] |= {"old-figure": "", "../../outside": ""}
    (folder / "report.json").write_text(json.dumps(facts))
    for name in ("old-figure.png", "old-figure.svg", "notes.png"):
        (folder / name).write_text("x")
    (tmp_path / "outside.png").write_text("x")
    report.make(tmp_path / "run")
    assert not list(folder.glob("old-figure.*"))
    assert (folder / "notes.png").exists()
    assert (tmp_path / "outside.png").exists()


def test_same_run_gives_the_same_figures(drawn: Drawn) -> None:
    first = {path.name: path.read_bytes() for path in drawn.folder.glob("*.svg")}
    report.make(drawn.folder.parent)
    assert first == {path.name: path.read_bytes() for path in drawn.folder.glob("*.svg")}


def test_not_a_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        report.make(tmp_path)
    assert not (tmp_path / "report").exists()


@pytest.mark.usefixtures("undrawn")
def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    make_run_dir(tmp_path / "run", [Trained()])
    (tmp_path / "run/report").write_text("in the way")
    with pytest.raises(UsageError, match=r"run/report: cannot be written"):
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


# -- parts


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


@pytest.mark.nightly
def test_thumbnails_keep_within_their_budget(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(film_strip())
    found = thumbnails.thumbnails({str(number): tmp_path / "a.png" for number in range(200)})
    assert sum(map(len, found.values())) < thumbnails.BUDGET_BYTES * 4 / 3 + 200 * 30


def test_covered_time_counts_overlaps_once_and_gaps_not_at_all(tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run", [Trained(name=f"r{number}", iterations=0) for number in range(4)], cpus=2
    )
    assert experiment_data.gather(paths.root)["totals"]["busy_s"] == pytest.approx(20.0)


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


def test_long_names_lose_their_middle() -> None:
    assert number_format.one_line("quadruped-with-a-long-name-s0", 16) == "quadruped-…me-s0"
    assert number_format.one_line("a\x00b\nc") == "ab c"


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


def test_without_shown_jobs_no_robot_is_said_to_be_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = ShownJobs(job_ids=(), which="none of them")
    adding(monkeypatch, replace(HIPS, shown_jobs=none))
    document = report.compose(make_run_dir(tmp_path / "run", [Trained()]).root)
    assert [section.title for section in document.sections] == ["About", "Hips", "Machine"]


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


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_the_report_of_a_feature_may_have_any_number_of_sections(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = ["About", "Middle", "Machine"][:number]
    own = [Section(title=title, parts=[]) for title in titles]
    made = Document(title="Hips", subtitle="", headlines=[], sections=own)
    adding(monkeypatch, HIPS, make=lambda: made)
    found = [section.title for section in report.compose(tmp_path).sections]
    assert sorted(found) == sorted([*titles, "Hips"])
    assert found[0] == (titles or ["Hips"])[0]
