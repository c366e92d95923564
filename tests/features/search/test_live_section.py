"""What a page shows of a search while it goes on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Never

import pytest
from search_helpers import RUNGS, make_search_dir
from trial_helpers import Told, point_of, search_run

from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside.run_watch import LiveSection, LiveTable, RunWatches
from orchestrator.features.search import live_section, search_events, search_watch
from orchestrator.features.search.history import Trial
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.trials import TrialReader
from orchestrator.ledger import job_figures


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


def test_the_leaderboard_has_lineages_and_parents(tmp_path: Path) -> None:
    root = tmp_path / "run"
    told = [Told(values=[3.0]), Told(values=[8.0], parent=0)]
    job = "hopper-t00000-s0"
    (_, best) = shown(search_run(root, told, start="best", starts_from=job)).tables
    assert column(best, "trial") == ["1", "0"]
    assert column(best, "parent") == [0, None]
    assert column(best, "lineage") == [2000, 1000]


def test_at_a_rung_the_best_return_is_shown_whatever_direction_another_objective_has(
    tmp_path: Path,
) -> None:
    told = [Told(reached=[1.0]), Told(reached=[3.0])]
    for objective, best in (("wall_s", 3.0), ("eval_mean", 1.0)):
        paths = search_run(
            tmp_path / objective, told, is_over=False, objective=objective, direction="minimize"
        )
        assert column(shown(paths).tables[0], "best")[0] == best


def test_trials_without_a_value_at_a_rung_are_counted(tmp_path: Path) -> None:
    told = [Told(reached=[1.0]), Told(reached=[None]), Told(reached=[None]), Told(reached=[4.0])]
    rungs = shown(search_run(tmp_path / "run", told, is_over=False)).tables[0]
    assert column(rungs, "reached")[0] == 4
    assert column(rungs, "no value")[0] == 2
    known = shown(search_run(tmp_path / "known", told[:1], is_over=False)).tables[0]
    assert "no value" not in [one.name for one in known.columns]


def test_its_chart_has_the_finished_trials_and_the_best_so_far(tmp_path: Path) -> None:
    told = [Told(values=[value]) for value in (3.0, 1.0, 5.0, 5.0, 4.0)]
    (chart,) = shown(search_run(tmp_path / "run", told)).charts
    trials, best = chart.series
    assert list(trials.points) == [(0, 3.0), (1, 1.0), (2, 5.0), (3, 5.0), (4, 4.0)]
    assert list(best.points) == [(0, 3.0), (2, 5.0), (4, 5.0)]
    (chart,) = shown(search_run(tmp_path / "least", told, direction="minimize")).charts
    assert list(chart.series[1].points) == [(0, 3.0), (1, 1.0), (4, 1.0)]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_best_so_far_of_a_race_is_what_was_known_then(tmp_path: Path, sign: float) -> None:
    """The first seeds are 3, 9 and 8; then trial 1 has 1, too, and trial 2 has 7."""
    told = [
        *(Told(values=[sign * value]) for value in (3.0, 9.0, 8.0)),
        Told(values=[sign * 1.0], reevaluates=1, role="race"),
        Told(values=[sign * 7.0], reevaluates=2, role="race"),
        Told(values=[sign * 2.0], reevaluates=1, role="race", seed=1001),
    ]
    direction = "maximize" if sign > 0 else "minimize"
    (chart,) = shown(search_run(tmp_path / "run", told, race=3, direction=direction)).charts
    trials, best = [
        [(number, sign * (value or 0.0)) for number, value in one.points] for one in chart.series
    ]
    assert trials == [(0, 3.0), (1, 2.0), (2, 7.5)]
    assert best == [(0, 3.0), (1, 9.0), (3, 8.0), (4, 7.5), (5, 7.5)]


def test_a_race_shows_what_it_believes_of_its_leaders_where_it_ranks_by_that(
    tmp_path: Path,
) -> None:
    """One lucky seed is less than three good ones."""
    told = [
        Told(values=[930.0]),
        Told(values=[945.0]),
        Told(values=[500.0]),
        Told(values=[935.0], reevaluates=0, role="race"),
        Told(values=[925.0], reevaluates=0, role="race", seed=1001),
        Told(values=[700.0], reevaluates=1, role="race"),
        Told(values=[1150.0], reevaluates=1, role="race", seed=1001),
    ]
    paths = search_run(tmp_path / "run", told, race=3)
    _, best = shown(paths).tables
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
    worth = reader.believed
    assert column(best, "believed") == [str(worth[int(one)]) for one in column(best, "trial")]
    assert all(" ± " in text for text in column(best, "believed"))
    (leader,) = reader.front
    news = search_watch._news(reader, leader)
    assert f", believed {worth[leader.number]} (" in news


def test_of_many_trials_some_are_drawn_and_all_that_were_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_section, "MOST_DRAWN", 40)
    paths = make_search_dir(tmp_path / "run", 3 * live_section.MOST_DRAWN)
    (chart,) = shown(paths).charts
    trials, best = chart.series
    assert len(trials.points) <= live_section.MOST_DRAWN + len(best.points)
    assert set(best.points[:-1]) <= set(trials.points)


def test_a_search_that_has_found_nothing_yet_is_a_line(tmp_path: Path) -> None:
    section = shown(search_run(tmp_path / "run", [Told()], is_over=False))
    assert not section.charts
    assert [table.title for table in section.tables] == ["Rungs"]


def test_many_keys_of_the_space_are_one_column(tmp_path: Path) -> None:
    keys = [f"key{number}" for number in range(live_section.MOST_COLUMNS + 1)]
    trial = Trial(number=3, index=3, point=dict.fromkeys(keys, 0.5), jobs=[], values=[1.0])

    def cells(shown: Sequence[str]) -> list[Any]:
        return [one.cell(trial) for one in live_section._columns_of_point(shown)]

    assert cells(keys) == [", ".join(f"{key} = 0.5" for key in keys)]
    assert cells(keys[:2]) == ["0.5", "0.5"]


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


def test_a_best_trial_with_surplus_keys_harms_no_other(tmp_path: Path) -> None:
    surplus = {**point_of(1), "gone.key": 3}
    told = [Told(values=[1.0]), Told(values=[2.0], point=surplus)]
    (best,) = shown(search_run(tmp_path / "run", told)).tables[-1:]
    assert column(best, "trial") == ["1", "0"]
    assert "gone.key" not in [column.name for column in best.columns]


def test_a_withdrawn_search_that_begins_again_has_no_old_news(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0])])
    with run_directory.opened_ledger(paths) as ledger:
        search_events.withdraw(ledger)
        ledger.commit()
    watches = RunWatches(paths)
    assert (watches.look(), watches.notes) == ([], [])
    with run_directory.opened_ledger(paths) as ledger:
        search_events.add(ledger, [SearchEvent(kind="began", content={"lanes": 2})])
        ledger.commit()
    assert watches.look() == []
    assert len(watches.notes) == 1


def rename(new: Path, old: Path) -> None:
    new.rename(old)


def overwrite(new: Path, old: Path) -> None:
    """The file keeps its inode, as one that is made where another was removed often has its."""
    old.write_bytes(new.read_bytes())


@pytest.mark.parametrize("replace", [rename, overwrite])
def test_another_ledger_is_read_from_its_beginning_and_has_no_news(
    tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[value]) for value in (1.0, 2.0, 3.0)])
    watches = RunWatches(paths)
    watches.look()
    fresh = search_run(tmp_path / "fresh", [Told(values=[value]) for value in (7.0, 8.0)])
    replace(fresh.ledger, paths.ledger)
    assert watches.look() == []
    (section,) = watches.sections()
    assert section.text == watches.notes[0].text
    assert section.text.startswith("search: 2 of ")
    assert "best eval_mean 8.0 (trial 1)" in section.text


def test_nothing_is_said_of_a_search_while_its_run_directory_is_made_anew(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[1.0])])
    watches = RunWatches(paths)
    watches.look()
    paths.ledger.unlink()
    assert (watches.look(), watches.notes, watches.sections()) == ([], [], [])
    SearchPaths(paths.root).declaration.unlink()
    assert (watches.look(), watches.notes, watches.sections()) == ([], [], [])


def test_a_ledger_that_is_locked_midway_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Told(values=[1.0])
    paths = search_run(tmp_path / "run", [first, Told()], is_over=False)
    watches = RunWatches(paths)
    watches.look()
    (before,) = watches.notes
    (section,) = watches.sections()
    later = search_run(tmp_path / "later", [first, Told(values=[2.0])])
    with run_directory.opened_ledger(paths) as ledger:
        began_at = search_events.began_at(ledger)
    # As if the same search had gone on.
    with sqlite3.connect(later.ledger) as connection:
        connection.execute("UPDATE search SET at = ? WHERE id = 1", (began_at,))
    connection.close()
    overwrite(later.ledger, paths.ledger)
    with monkeypatch.context() as patched:
        patched.setattr(job_figures, "totals", busy)
        assert watches.look() == []
    assert (watches.notes, watches.sections()) == ([before], [section])
    (news,) = watches.look()
    assert news.message.startswith("new best: trial 1")
    assert watches.sections() == [shown(paths)]


def busy(*_: object) -> Never:
    raise LedgerBusyError("it is locked")


def test_nothing_is_shown_where_there_is_no_search(tmp_path: Path) -> None:
    watches = RunWatches(RunPaths(tmp_path))
    watches.look()
    assert (watches.notes, watches.sections()) == ([], [])
