"""The report of a search: its facts, what of them is on the page, and that a large one stays
small."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report_helpers import Page, Trained, film_strip, make_run_dir
from search_helpers import RUNGS, TOTAL, make_search_dir
from trial_helpers import Told, search_run

from orchestrator import report
from orchestrator.analysis import run_reader
from orchestrator.core import feature
from orchestrator.core.errors import LedgerError, UsageError
from orchestrator.core.feature import Feature
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import (
    report_data,
    report_figures,
    report_page,
    report_sections,
    search_events,
    shown_trials,
)
from orchestrator.features.search.declaration.spec import ArchiveAxis, SearchSpec
from orchestrator.features.search.history import Trial
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.trials import TrialReader
from orchestrator.report import drawing
from orchestrator.report.document import AddedSections, Document, Section, Table
from orchestrator.report.number_format import number

TRIALS = 160
JOBS = TRIALS - TRIALS // 20
"""Those of trials whose values fit together."""


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_search_dir(tmp_path_factory.mktemp("searched") / "run", TRIALS).root


@pytest.fixture(scope="module")
def document(searched: Path) -> Document:
    return report.compose(searched)


def section(document: Document, title: str) -> Section:
    return next(one for one in document.sections if one.title == title)


def table(document: Document, title: str) -> Table:
    return next(part for part in section(document, title).parts if isinstance(part, Table))


def column(found: Table, name: str) -> list[str]:
    place = list(found.columns).index(name)
    return [row[place].text for row in found.rows]


def finished(facts: dict[str, Any]) -> dict[int, float]:
    return {one["trial"]: one["values"][0] for one in facts["trials"] if one["values"]}


def test_the_best_come_first_with_their_points_and_jobs(document: Document) -> None:
    facts = document.facts["search"]
    values = finished(facts)
    ranked = sorted(values, key=values.__getitem__, reverse=True)
    assert facts["best"] == ranked
    found = table(document, "Search")
    assert "the best one had luck, too" in found.caption
    assert column(found, "trial") == [f"trial {number}" for number in ranked]
    best = facts["trials"][ranked[0]]
    cells = dict(zip(found.columns, (cell.text for cell in found.rows[0]), strict=True))
    assert cells["jobs"] == f"walker-t{ranked[0]:05d}-s0"
    assert cells["policy_kwargs.net_arch"] == json.dumps(best["point"]["policy_kwargs.net_arch"])
    assert float(cells["model.geom.thigh.size"]) == pytest.approx(
        best["point"]["model.geom.thigh.size"], rel=1e-3
    )
    headlines = {one.label: one for one in document.headlines}
    assert headlines["best"].note == f"eval_mean of trial {ranked[0]}"
    assert headlines["trials"].value == str(TRIALS)


def test_the_best_so_far_rises_with_env_steps_and_time(document: Document) -> None:
    facts = document.facts["search"]
    steps = facts["improvements"]["eval_mean"]
    for name in ("value", "env_steps", "elapsed_s"):
        assert [one[name] for one in steps] == sorted({one[name] for one in steps})
    values = finished(facts)
    assert steps[0]["trial"] == min(values)
    assert steps[-1]["value"] == max(values.values())
    assert list(facts["spent"]) == sorted(values)
    assert list(facts["spent"].values())[-1].env_steps <= sum(
        one["env_steps"] for one in facts["trials"]
    )


@pytest.fixture(scope="module")
def of_seeds(searched: Path) -> list[Path]:
    return [
        make_search_dir(searched.with_name(f"run{seed}"), 60, search={"seed": seed}).root
        for seed in (1, 2)
    ]


def test_of_several_search_seeds_the_best_so_far_has_an_interval(
    searched: Path, of_seeds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = report.compose(searched, of_seeds)
    facts = document.facts["search"]
    assert [(one["run_dir"], one["seed"]) for one in facts["seeds"]] == list(
        zip(map(str, [searched, *of_seeds]), [0, 1, 2], strict=True)
    )
    assert facts["seeds"][0]["improvements"] == facts["improvements"]
    bands: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.fill_between", lambda *arguments, **_: bands.append(arguments[1:])
    )
    figures = {figure.name: figure for figure in document.figures()}
    figures["search-best-so-far-of-seeds"].draw()
    by_steps, by_time = bands
    for at, low, high in bands:
        assert at == sorted(at)
        assert all(one <= other for one, other in zip(low, high, strict=True))
    assert by_steps[0][-1] == min(one["env_steps"] for one in facts["seeds"])
    last = [one["improvements"]["eval_mean"][-1]["value"] for one in facts["seeds"]]
    assert by_time[1][-1] <= sorted(last)[1] <= by_time[2][-1]
    found = table(document, "Search")
    assert column(found, "search seed") == ["0", "1", "2"]
    assert column(found, "best eval_mean") == [number(value) for value in last]


def test_only_the_same_search_with_another_seed_is_drawn_over_a_search(
    searched: Path, of_seeds: list[Path], tmp_path: Path
) -> None:
    other = make_search_dir(tmp_path / "other", 20, search={"seed": 3, "sampler": "sobol"}).root
    matrix = make_search_dir(tmp_path / "matrix", 20).root
    plain = make_run_dir(tmp_path / "plain", [Trained()]).root
    for same, message in (
        ([other], r'not the search of .*\n    search.sampler: "random" → "sobol"'),
        ([of_seeds[0], of_seeds[0]], "both have the search seed 1; set another `seed`"),
        ([matrix], "both have the search seed 0"),
        ([plain], "plain: there is no search here"),
        ([tmp_path], "not a run directory"),
    ):
        with pytest.raises(UsageError, match=message):
            report.compose(searched, same)
    with pytest.raises(UsageError, match="plain: no installed feature compares it"):
        report.compose(plain, of_seeds)
    with pytest.raises(UsageError, match="not a run directory"):
        report.compose(tmp_path, of_seeds)


def test_a_dimension_that_matters_is_told_from_one_that_does_not(document: Document) -> None:
    first, *others = table(document, "Space").rows
    assert first[0].text == "model.geom.thigh.size"
    dimensions = {one["key"]: one["effects"] for one in document.facts["search"]["dimensions"]}
    rung = {
        key: effects[f"return{report_data.AT_FIRST_RUNG}"] for key, effects in dimensions.items()
    }
    assert rung["model.geom.thigh.size"]["share"] > 0.7
    assert rung["ppo.learning_rate"]["share"] < 0.2
    assert (
        rung["model.geom.thigh.size"]["n"] > dimensions["model.geom.thigh.size"]["eval_mean"]["n"]
    )
    assert len(others) == 2


def test_rungs_count_who_reached_them_and_who_went_on(document: Document) -> None:
    facts = document.facts["search"]
    found = table(document, "Rungs")
    assert column(found, "rung") == [f"{rung:,}" for rung in RUNGS]
    reached = [sum(len(one["rungs"]) > rung for one in facts["trials"]) for rung in (0, 1)]
    ended = len(finished(facts))
    assert column(found, "reached") == [str(number) for number in reached]
    assert column(found, "went on") == [str(reached[1]), str(ended)]
    assert column(found, "wait here") == [str(reached[0] - reached[1]), str(reached[1] - ended)]
    left = (reached[0] - reached[1]) * (TOTAL - RUNGS[0]) + (reached[1] - ended) * (
        TOTAL - RUNGS[1]
    )
    assert facts["saved"] == pytest.approx(left / (reached[0] * TOTAL))
    assert column(table(document, "Failed trials"), "trials") == [str(TRIALS // 10)]


def test_reasons_of_failed_trials_that_differ_only_in_numbers_are_one(tmp_path: Path) -> None:
    whys = [
        "no legs",
        "leg of 0.5 too long",
        "it fell",
        "leg of 0.71 too long",
        "it fell",
        "it fell",
    ]
    told = [Told(values=[3.0]), *(Told(why=why) for why in whys)]
    found = table(report.compose(search_run(tmp_path / "run", told).root), "Failed trials")
    assert column(found, "reason") == ["it fell", "leg of 0.5 too long", "no legs"]
    assert column(found, "trials") == ["3", "2", "1"]
    assert column(found, "the first") == ["3", "2", "1"]


def test_trials_without_a_value_at_a_rung_are_counted(document: Document, tmp_path: Path) -> None:
    told = [Told(reached=[1.0]), Told(reached=[None]), Told(reached=[None]), Told(reached=[4.0])]
    found = table(report.compose(search_run(tmp_path / "run", told).root), "Rungs")
    assert column(found, "reached")[0] == "4"
    assert column(found, "no value")[0] == "2"
    assert "as where no episode had ended" in found.caption
    assert "no value" not in table(document, "Rungs").columns


def test_files_of_a_large_search_are_read_for_a_part_of_its_jobs(
    searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (shown_trials, report_data):
        monkeypatch.setattr(module, "MOST_REPORTED", 20)
    opened: list[Path] = []
    read = run_reader.iterations
    monkeypatch.setattr(run_reader, "iterations", lambda path: opened.append(path) or read(path))
    facts = report.compose(searched).facts
    assert len(facts["search"]["trials"]) == TRIALS
    assert facts["totals"]["jobs"] == JOBS
    assert len(facts["jobs"]) <= 40
    assert {path.parent.name for path in opened} == {job["job_id"] for job in facts["jobs"]}
    best = {f"walker-t{number:05d}-s0" for number in facts["search"]["best"][:20]}
    assert best <= {job["job_id"] for job in facts["jobs"]}


def test_film_strips_stand_beside_the_trials(
    searched: Path, document: Document, tmp_path: Path
) -> None:
    paths = RunPaths(shutil.copytree(searched, tmp_path / "run"))
    best = document.facts["search"]["best"][0]
    paths.job(f"walker-t{best:05d}-s0").preview.write_bytes(film_strip())
    found = table(report.compose(paths.root), "Search")
    place = list(found.columns).index("preview")
    images = [row[place].image for row in found.rows]
    assert images[0] is not None
    assert not any(images[1:])


def test_a_trial_of_several_seeds_has_the_picture_of_its_best_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_search_dir(tmp_path / "run", 30, seeds=(0, 1, 2))
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        rows = {row["job_id"]: row for row in ledger.summary()}
        facts = report_data.gather(paths, ledger)
    assert facts is not None
    for job_id in rows:
        paths.job(job_id).preview.touch()
    made: list[str] = []

    def pictures(previews: Mapping[str, Path]) -> dict[str, str]:
        made.extend(previews)
        return {}

    monkeypatch.setattr(report_sections, "thumbnails", pictures)
    report.compose(paths.root)
    listed = [one for one in facts["trials"] if one["state"] == "finished"]
    returns = {job_id: row["ep_rew_mean"] or 0.0 for job_id, row in rows.items()}
    assert sorted(made) == sorted(max(one["jobs"], key=returns.__getitem__) for one in listed)
    assert {job_id[-1] for job_id in made} == {"0", "1", "2"}


def test_a_withdrawn_search_leaves_the_report_of_its_jobs(searched: Path, tmp_path: Path) -> None:
    paths = RunPaths(shutil.copytree(searched, tmp_path / "run"))
    with run_directory.opened_ledger(paths) as ledger:
        search_events.withdraw(ledger)
        ledger.commit()
    document = report.compose(paths.root)
    assert "search" not in document.facts
    assert len(document.facts["jobs"]) == JOBS
    assert "Robots" in [section.title for section in document.sections]


def test_a_search_without_jobs_says_only_how_far_it_is(tmp_path: Path) -> None:
    document = report.compose(make_search_dir(tmp_path / "run", 0, is_over=False).root)
    assert [section.title for section in document.sections] == ["About", "Search", "Machine"]


@pytest.mark.parametrize("is_raced", [False, True])
def test_the_best_have_the_estimate_of_a_model_or_the_belief_of_a_race(
    tmp_path: Path, is_raced: bool
) -> None:
    told = [Told(values=[float(value)]) for value in range(9)]
    race: dict[str, Any] = {"race": {"seeds": 5}} if is_raced else {}
    paths = search_run(tmp_path / "run", told, **race)
    document = report.compose(paths.root)
    trials = document.facts["search"]["trials"]
    assert all((one["estimate"] is None) == is_raced for one in trials)
    assert all((one["believed"] is None) != is_raced for one in trials)
    shown = table(document, "Search")
    assert (report_page.OF_MODEL in shown.columns) != is_raced
    assert (report_page.ESTIMATE in shown.caption) != is_raced
    if not is_raced:
        of_best = next(one["estimate"] for one in trials if one["trial"] == 8)
        texts = (number(of_best["mean"]), number(of_best["error"]))
        assert column(shown, report_page.OF_MODEL)[0] == " ± ".join(texts)


def test_other_features_may_compare_what_is_no_search(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(run_dir: Path, others: Sequence[Path]) -> AddedSections:
        return AddedSections(name="hips", facts=len(others), sections=(), has_compared=True)

    hips = Feature(name="hips", about="x.", report_sections=compared)
    known = feature.features()
    monkeypatch.setattr(feature, "features", lambda: (*known, hips))
    plain = make_run_dir(tmp_path / "plain", [Trained()]).root
    assert report.compose(plain, [searched]).facts["hips"] == 1


def test_several_objectives_have_a_pareto_front(tmp_path: Path) -> None:
    table_of = {
        "objective": ["eval_mean", "cost"],
        "direction": ["maximize", "minimize"],
        "sampler": "nsga2",
    }
    document = report.compose(make_search_dir(tmp_path / "run", 60, search=table_of).root)
    facts = document.facts["search"]
    values = {one["trial"]: one["values"] for one in facts["trials"] if one["values"]}
    front = {
        number
        for number, (mean, cost) in values.items()
        if not any(m >= mean and c <= cost and (m, c) != (mean, cost) for m, c in values.values())
    }
    assert set(facts["front"]) == front
    assert report_page.LUCKY not in table(document, "Search").caption
    assert report_page.OF_MODEL not in table(document, "Search").columns
    assert column(table(document, "Search"), "trial") == [
        f"trial {number}" for number in facts["ranked"]
    ]
    assert {"search-pareto-front", "search-slices-1", "search-slices-2"} <= {
        figure.name for figure in document.figures()
    }
    assert facts["improvements"]["cost"][-1]["value"] == min(cost for _, cost in values.values())


def test_the_jobs_of_a_matrix_that_are_compared_have_rungs_and_all_else(
    searched: Path, tmp_path: Path
) -> None:
    paths = RunPaths(shutil.copytree(searched, tmp_path / "run"))
    declared = json.loads(SearchPaths(paths.root).declaration.read_text())
    declared["data"]["scheduler"] = declared["data"].pop("search")["scheduler"]
    SearchPaths(paths.root).declaration.write_text(json.dumps(declared))
    document = report.compose(paths.root)
    titles = [section.title for section in document.sections]
    assert {"Rungs", "Robots"} <= set(titles)
    assert not {"Search", "Space"} & set(titles)
    assert len(document.facts["jobs"]) == JOBS


def test_an_experiment_without_a_search_has_none(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained()])
    assert "search" not in report.compose(paths.root).facts
    with pytest.raises(UsageError, match="no installed feature compares it"):
        report.compose(paths.root, [paths.root])


def test_a_retried_trial_counts_when_it_has_ended_at_last(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[1.0]), Told(why="it fell")], is_over=False)
    over = {"values": [3.0], "measures": None, "env_steps": 1000, "why": ""}
    with run_directory.opened_ledger(paths) as ledger:
        retried = [
            SearchEvent(kind="retried", trial=1, content={}),
            SearchEvent(kind="over", trial=1, content=over),
            SearchEvent(kind="ended", content={}),
        ]
        search_events.add(ledger, retried)
        facts = report_data.gather(paths, ledger)
    assert facts is not None
    assert list(facts["spent"]) == facts["best"][::-1] == [0, 1]
    assert facts["spent"][1][0] == sum(trial["env_steps"] for trial in facts["trials"])


def test_a_declaration_that_cannot_be_read_is_named(searched: Path, tmp_path: Path) -> None:
    paths = RunPaths(shutil.copytree(searched, tmp_path / "run"))
    SearchPaths(paths.root).declaration.write_text("{")
    with pytest.raises(LedgerError, match="search/declared"):
        report.compose(paths.root)


def test_a_search_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    for trials in (0, 1, 2):
        document = report.compose(
            make_search_dir(tmp_path / f"run{trials}", trials, is_over=False).root
        )
        assert document.facts["search"]["best"] == []


# -- effects and archives


def test_effects_on_more_outcomes_than_there_are_colours_are_drawn() -> None:
    outcomes = [f"objective {number}" for number in range(len(drawing.SERIES) + 1)]
    effect = {"share": 0.5, "correlation": None, "n": 20}
    dimension: Any = {"key": "ppo.gamma", "effects": dict.fromkeys(outcomes, effect)}
    axes = report_figures.effects([dimension], outcomes).axes[0]
    assert len(axes.patches) == len(outcomes)


def test_the_tenth_with_the_best_values_is_by_the_values_that_are_drawn() -> None:
    """The order of the table is another one where trials were trained again."""
    trials = [{"trial": number, "values": [float(number)]} for number in range(4)]
    facts: Any = {"directions": ["maximize"], "best": [1, 0, 3, 2], "trials": trials}
    assert report_page._by_first_value(facts) == [3, 2, 1, 0]
    facts["directions"] = ["minimize"]
    assert report_page._by_first_value(facts) == [0, 1, 2, 3]


AXES = (
    ArchiveAxis(name="a", low=0.0, high=2.0, cells=4),
    ArchiveAxis(name="b", low=-1.0, high=1.0, cells=5),
)


def spec(direction: Any = "maximize") -> SearchSpec:
    return SearchSpec(
        space=(), sampler="map-elites", objectives=("m",), directions=(direction,), measures=AXES
    )


def trial(number: int, value: float, *measures: float) -> Trial:
    return Trial(number=number, point={}, jobs=(), values=[value], measures=measures, is_over=True)


def test_an_archive_keeps_the_best_of_each_cell() -> None:
    trials = [
        trial(0, 1.0, 0.1, 0.0),
        trial(1, 2.0, 0.2, 0.1),
        trial(2, 2.0, 0.3, 0.1),
        trial(3, 0.5, 9.0, -9.0),
    ]
    assert [(one["cell"], one["trial"]) for one in shown_trials.archive(trials, spec())] == [
        ((0, 2), 1),
        ((3, 0), 3),
    ]
    smallest = shown_trials.archive(trials, spec("minimize"))
    assert [(one["cell"], one["trial"]) for one in smallest] == [((3, 0), 3), ((0, 2), 0)]


def test_what_lies_beyond_the_ends_of_an_axis_is_said() -> None:
    of_trials = [{"measures": [0.1, 0.5]}, {"measures": [9.0, -9.0]}, {"measures": None}]
    axes = [{"name": "speed", "low": 0, "high": 4}, {"name": "height", "low": -9, "high": 1}]
    facts: Any = {"axes": axes, "trials": of_trials}
    said = report_page._beyond_axes(facts)
    assert said.endswith("in its outermost cells: speed of 1 trial, as far as 9.")
    assert report_page._beyond_axes({**facts, "trials": of_trials[:1]}) == ""
    trials: Any = dict(enumerate(of_trials))
    cells: Any = {"axes": [{**axes[0], "cells": 2}]}
    within: Any = {"trial": 0, "cell": (0,), "value": 1.0}
    beyond: Any = {"trial": 1, "cell": (1,), "value": 1.0}
    assert report_page._range(cells, trials, 0, within) == "0 to 2"
    assert report_page._range(cells, trials, 0, beyond) == "2 to 4 (measured: 9)"


def test_previews_are_drawn_of_the_finished_trials_that_a_report_shows(
    searched: Path, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (shown_trials, report_data):
        monkeypatch.setattr(module, "MOST_REPORTED", 7)
    reader = TrialReader.of(RunPaths(searched))
    assert reader is not None
    with run_directory.opened_ledger(RunPaths(searched), read_only=True) as ledger:
        reader.update(ledger)
    assert reader.search is not None
    drawn = shown_trials.jobs_to_show(reader.history.trials, reader.search)
    facts: Any = document.facts["search"]
    ended = {
        job_id for one in facts["trials"] if one["state"] == "finished" for job_id in one["jobs"]
    }
    assert len(drawn) == 7
    assert set(drawn) == report_data.reported_jobs(facts) & ended


@pytest.mark.nightly
def test_every_figure_of_a_search_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "search-best-so-far",
        "search-best-so-far-of-seeds",
        "search-importance",
        "search-slices",
        "search-parallel-coordinates",
        "search-rungs",
        "search-archive",
    }
    empty = drawing.Rendered(png=b"", svg=b"<svg/>", inline="<svg/>")
    render = drawing.render
    monkeypatch.setattr(
        drawing, "render", lambda figure: render(figure) if figure.name in names else empty
    )
    measures = {
        "speed": {"low": 0, "high": 6, "cells": 6},
        "height": {"low": 0, "high": 4, "cells": 4},
    }
    search = {"measures": measures, "sampler": "map-elites", "inherit": "nearest"}
    run = make_search_dir(tmp_path / "run", 60, search=search, seeds=(0, 1))
    other = make_search_dir(tmp_path / "other", 60, search={**search, "seed": 1}, seeds=(0, 1))
    done = report.make(run.root, [other.root])
    facts = json.loads((run.root / "report/report.json").read_text())
    assert names <= set(facts["figures"])
    page = Page(done.page)
    for name in names:
        assert facts["figures"][name] in page.text
        assert len(list(ElementTree.parse(run.root / f"report/{name}.svg").iter())) > 50
    assert len(facts["search"]["archive"]) > 3
    assert "besides those of the trials whose policies they began with" in page.text
    markdown = done.markdown()
    assert "## Archive" in markdown
    assert "| lineage | parent |" in markdown
    of_trial = {one["trial"]: one for one in facts["search"]["trials"]}
    child = next(
        one for one in facts["search"]["trials"] if one["parent"] is not None and one["jobs"]
    )
    parent = of_trial[child["parent"]]
    assert child["lineage_env_steps"] == child["env_steps"] + sum(
        job["env_steps"] for job in facts["jobs"] if job["job_id"] in parent["jobs"]
    )


def test_choices_that_look_alike_have_places_of_their_own() -> None:
    choices = [0.12345, 0.12347, 1, "1", True]
    dimension: Any = {"key": "params.a", "choices": choices}
    trials: Any = [{"point": {"params.a": choice}} for choice in [*choices, 1.0]]
    assert report_figures._along(dimension, trials) == [0.0, 1.0, 2.0, 3.0, 4.0, 2.0]


def test_where_no_trial_is_the_best_a_figure_is_of_all_parts_of_the_search() -> None:
    trials: Any = [{"trial": number} for number in range(3 * report_page.MOST_DRAWN)]
    facts: Any = {"front": [], "best": []}
    shown, sentence = report_page._drawn_trials(facts, trials)
    gaps = [after["trial"] - before["trial"] for before, after in itertools.pairwise(shown)]
    assert (len(shown), set(gaps)) == (report_page.MOST_DRAWN, {3})
    assert "the best" not in sentence
