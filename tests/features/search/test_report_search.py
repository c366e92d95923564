"""The report of a search: its facts, what of them is on the page, and that a large one stays
small."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from search_helpers import RUNGS, TOTAL, make_search_dir

from orchestrator import report
from orchestrator.analysis import run_reader
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import (
    report_data,
    shown_trials,
)
from orchestrator.features.search.declaration.spec import ArchiveAxis, SearchSpec
from orchestrator.features.search.history import Trial
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.report import experiment
from orchestrator.report.document import Document, Section, Table

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
    facts = document.numbers["search"]
    values = finished(facts)
    ranked = sorted(values, key=values.__getitem__, reverse=True)
    assert facts["best"] == ranked
    found = table(document, "Search")
    assert column(found, "trial") == [f"trial {number}" for number in ranked]
    best = facts["trials"][ranked[0]]
    cells = dict(zip(found.columns, (cell.text for cell in found.rows[0]), strict=True))
    assert cells["jobs"] == f"walker-t{ranked[0]:05d}-s0"
    assert cells["policy_kwargs.net_arch"] == json.dumps(best["point"]["policy_kwargs.net_arch"])
    assert float(cells["model.geom.thigh.size"]) == pytest.approx(
        best["point"]["model.geom.thigh.size"], rel=1e-3
    )


def test_the_best_so_far_rises_with_env_steps_and_time(document: Document) -> None:
    facts = document.numbers["search"]
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


def test_a_dimension_that_matters_is_told_from_one_that_does_not(document: Document) -> None:
    first, *others = table(document, "Space").rows
    assert first[0].text == "model.geom.thigh.size"
    dimensions = {one["key"]: one["effects"] for one in document.numbers["search"]["dimensions"]}
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
    facts = document.numbers["search"]
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


def test_files_of_a_large_search_are_read_for_a_part_of_its_jobs(
    searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "MOST_JOBS", 40)
    opened: list[Path] = []
    read = run_reader.iterations
    monkeypatch.setattr(run_reader, "iterations", lambda path: opened.append(path) or read(path))
    document = report.compose(searched)
    facts = document.numbers
    assert len(facts["search"]["trials"]) == TRIALS
    assert facts["totals"]["jobs"] == JOBS
    assert len(facts["jobs"]) <= 40
    assert {path.parent.name for path in opened} == {job["job_id"] for job in facts["jobs"]}
    returns = {job["job_id"]: job["eval_mean"] or 0.0 for job in facts["jobs"]}
    assert max(returns.values()) == max(finished(facts["search"]).values())


def test_several_objectives_have_a_pareto_front(tmp_path: Path) -> None:
    table_of = {
        "objective": ["eval_mean", "cost"],
        "direction": ["maximize", "minimize"],
        "sampler": "nsga2",
    }
    document = report.compose(make_search_dir(tmp_path / "run", 60, search=table_of).root)
    facts = document.numbers["search"]
    values = {one["trial"]: one["values"] for one in facts["trials"] if one["values"]}
    front = {
        number
        for number, (mean, cost) in values.items()
        if not any(m >= mean and c <= cost and (m, c) != (mean, cost) for m, c in values.values())
    }
    assert set(facts["front"]) == front
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
    assert len(document.numbers["jobs"]) == JOBS


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
