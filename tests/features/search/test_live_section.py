"""What a page shows of a search while it goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from search_helpers import RUNGS, make_search_dir
from trial_helpers import Told, search_run

from orchestrator.client.run_watch import LiveSection, LiveTable, RunWatches
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import live_section
from orchestrator.features.search.search_paths import SearchPaths


def shown(paths: RunPaths) -> LiveSection:
    watches = RunWatches(paths)
    watches.look()
    (section,) = watches.sections()
    assert section.text == watches.notes[0].text
    return section


def column(table: LiveTable, name: str) -> Sequence[Any]:
    place = [column.name for column in table.columns].index(name)
    return [row[place] for row in table.rows]


def test_a_search_has_its_leaderboard_and_rungs(tmp_path: Path) -> None:
    paths = make_search_dir(tmp_path / "run", 80)
    rungs, best = shown(paths).tables
    assert (rungs.title, best.title) == ("Rungs", "Best trials")
    assert column(rungs, "rung (env_steps)") == list(RUNGS)
    reached, went_on = column(rungs, "reached"), column(rungs, "went on")
    assert reached[0] >= went_on[0] >= reached[1] > 0
    values = column(best, "eval_mean")
    assert values == sorted(values, reverse=True)
    assert len(values) == live_section.LEADERS
    assert column(best, "jobs")[0] == [f"walker-t{int(column(best, 'trial')[0]):05}-s0"]
    assert column(best, "policy_kwargs.net_arch")[0] in ("[32]", "[64, 64]")


def test_its_chart_has_the_finished_trials_and_the_best_so_far(tmp_path: Path) -> None:
    told = [Told(values=[value]) for value in (3.0, 1.0, 5.0, 5.0, 4.0)]
    (chart,) = shown(search_run(tmp_path / "run", told)).charts
    trials, best = chart.series
    assert list(trials.points) == [(0, 3.0), (1, 1.0), (2, 5.0), (3, 5.0), (4, 4.0)]
    assert list(best.points) == [(0, 3.0), (2, 5.0), (4, 5.0)]
    (chart,) = shown(search_run(tmp_path / "least", told, direction="minimize")).charts
    assert list(chart.series[1].points) == [(0, 3.0), (1, 1.0), (4, 1.0)]


def test_a_search_that_has_found_nothing_yet_is_a_line(tmp_path: Path) -> None:
    section = shown(search_run(tmp_path / "run", [Told()], is_over=False))
    assert not section.charts
    assert [table.title for table in section.tables] == ["Rungs"]


def test_jobs_of_a_matrix_at_rungs_have_a_section_without_a_chart(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0], reached=[1.0, 2.0]), Told()])
    content = json.loads(SearchPaths(paths.root).declaration.read_text())
    table = content["data"].pop("search")
    content["data"]["scheduler"] = table["scheduler"]
    SearchPaths(paths.root).declaration.write_text(json.dumps(content))
    section = shown(paths)
    assert section.text.startswith("rungs: 2 trials")
    assert not section.charts
    assert section.tables[0].title == "Rungs"


def test_nothing_is_shown_where_there_is_no_search(tmp_path: Path) -> None:
    watches = RunWatches(RunPaths(tmp_path))
    watches.look()
    assert (watches.notes, watches.sections()) == ([], [])
