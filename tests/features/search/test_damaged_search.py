"""A ledger whose rows about a search are damaged: one line says which, and the jobs are shown all
the same."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from damaged_search_helpers import DAMAGES, TRIALS, damage, each_damage
from fuzz_helpers import NUMBERS, TEXT, VALUES, fuzz, mutated
from hypothesis import example, given
from hypothesis import strategies as st
from searcher_helpers import searcher_of
from trial_helpers import search_run

from orchestrator.core.errors import LedgerDamagedError, OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory, run_index
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.experiment.from_outside.run_watch import RunWatches, annotated_snapshots
from orchestrator.features.search import (
    event_contents,
    ranking,
    report_data,
    search_events,
    search_time,
)
from orchestrator.features.search.search_watch import SearchWatch
from orchestrator.features.search.trials import TrialReader
from orchestrator.ledger import Ledger
from orchestrator.report import compose
from orchestrator.terminal import status_view


@each_damage
def test_who_reads_a_damaged_search_says_which_row_it_is(
    statement: str, fact: str, tmp_path: Path
) -> None:
    paths = search_run(tmp_path / "run", TRIALS)
    damage(paths, statement)
    for reader in readers_of_trials(paths):
        with pytest.raises(LedgerDamagedError) as refused:
            reader()
        message = str(refused.value)
        assert "\n" not in message
        for known in (str(paths.ledger), "table search", fact, "run --fresh"):
            assert known in message
        assert "--rebuild-ledger" not in message, "a search cannot be rebuilt"


def readers_of_trials(paths: RunPaths) -> list[Callable[[], object]]:
    return [
        lambda: ranking.read(paths.root, 5),
        lambda: compose(paths.root),
        lambda: searching(paths),
    ]


def searching(paths: RunPaths) -> None:
    """A searcher that goes on with what the ledger has."""
    searcher_of(paths).ledger.close()


@each_damage
def test_who_is_refused_a_damaged_search_leaves_its_ledger_to_others(
    statement: str, fact: str, tmp_path: Path
) -> None:
    paths = search_run(tmp_path / "run", TRIALS)
    damage(paths, statement)
    for reader in readers_of_trials(paths):
        with pytest.raises(LedgerDamagedError, match=re.escape(fact)) as refused:
            reader()
        with contextlib.closing(sqlite3.connect(paths.ledger, timeout=0)) as alone:
            # SQLite changes this only where nobody else has the file open.
            assert alone.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
        assert refused.tb is not None, "the error still refers to all that its frames have made"


@each_damage
def test_the_jobs_of_a_damaged_search_are_shown_with_a_line_about_it(
    statement: str, fact: str, tmp_path: Path
) -> None:
    paths = search_run(tmp_path / "run", TRIALS)
    damage(paths, statement)
    sound = [row["job_id"] for row in run_snapshot.status(paths.root).rows]
    for _ in range(2):  # it does not heal
        (snapshot,) = annotated_snapshots(iter([run_snapshot.status(paths.root)]))
        assert [row["job_id"] for row in snapshot.rows] == sound
        (note,) = snapshot.notes
        assert note.text.startswith("search: ")
        assert fact in note.text
    watch = SearchWatch(paths=paths)
    assert [watch.look(), watch.look()] == [(), ()]
    section = watch.section()
    assert section is not None
    assert fact in section.text
    assert section.tables == ()


def test_status_and_best_of_a_damaged_search_as_commands(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", TRIALS)
    damage(paths, *DAMAGES["a trial that is not there"][:1])
    status = commands.invoke("status", paths.root, cwd=tmp_path)
    assert status.returncode == 0
    assert "hopper-t00001-s0" in status.stdout
    assert "there is no trial 7" in " ".join(status.stdout.split())
    best = commands.invoke("best", paths.root, cwd=tmp_path)
    assert best.returncode == 2
    assert "there is no trial 7" in " ".join(best.stderr.split())
    assert "Traceback" not in best.stderr


def test_a_job_of_a_trial_that_the_ledger_does_not_have_is_left_out_of_the_sums(
    tmp_path: Path,
) -> None:
    paths = search_run(tmp_path / "run", TRIALS)
    """What is copied of a trial that was trained again are the jobs of that training."""
    lost = "('hopper-t00000-s0', 'hopper-t00001-s0', 'hopper-t00003-s0')"
    for table in ("declared", "jobs"):
        damage(paths, f"DELETE FROM {table} WHERE job_id IN {lost}")
    watch = SearchWatch(paths=paths)
    watch.look()
    note = watch.note()
    assert note is not None
    assert "best eval_mean 3.0 (trial 0)" in note.text
    with pytest.raises(LedgerDamagedError, match="hopper-t00003-s0"):
        ranking.read(paths.root, 5).copy(tmp_path / "copied")


CONTENTS = [
    {"lanes": 2},
    {
        "point": {"ppo.learning_rate": 0.001, "policy_kwargs.net_arch": [32, 32]},
        "jobs": ["hopper-t00000-s0"],
    },
    {"point": {"ppo.learning_rate": 0.001}, "jobs": [], "parent": 0, "reevaluates": 1},
    {"value": 1.0, "env_steps": 100},
    {"goal": 1},
    {"values": [3.0], "measures": None, "env_steps": 1000, "why": "", "failed": []},
    {"is_withdrawn": True},
]
CELLS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(
        st.just("content"),
        st.sampled_from(CONTENTS).flatmap(mutated).map(lambda text: text.decode()),
    ),
    st.tuples(
        st.just("content"), st.sampled_from(CONTENTS).map(json.dumps) | VALUES.map(json.dumps)
    ),
    st.tuples(st.just("trial"), st.none() | st.integers(-2, 6) | NUMBERS | TEXT),
    st.tuples(st.just("kind"), st.sampled_from(list(event_contents.CONTENTS)) | TEXT),
    st.tuples(st.just("at"), NUMBERS | TEXT),
    st.tuples(st.just("id"), st.integers(-5, 50)),
)


@contextlib.contextmanager
def ledger_of(paths: RunPaths) -> Iterator[Ledger]:
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        yield ledger


def read_everything(paths: RunPaths) -> None:
    """Every reader of a search; each ends in an error of ours at worst."""

    def of_ledger(read: Callable[[Ledger], object]) -> Callable[[], None]:
        def reader() -> None:
            with ledger_of(paths) as ledger:
                read(ledger)

        return reader

    def trials(ledger: Ledger) -> None:
        reader = TrialReader.of(paths)
        assert reader is not None
        reader.update(ledger)
        assert reader.saved_share is None or reader.saved_share <= 1.0

    for reader in (
        *readers_of_trials(paths),
        of_ledger(trials),
        of_ledger(lambda ledger: report_data.gather(paths, ledger)),
        of_ledger(search_time.done_so_far),
        of_ledger(search_events.has_value),
        lambda: run_snapshot.exit_code_of(run_snapshot.status(paths.root)),
        run_index.listed_runs,
        lambda: watched(paths),
        lambda: exported(paths),
    ):
        with contextlib.suppress(OrchestratorError):
            reader()
    status_view.show(annotated_snapshots(iter([run_snapshot.status(paths.root)])), in_place=False)


def watched(paths: RunPaths) -> None:
    """What pages show of it."""
    watches = RunWatches(paths)
    watches.look()
    watches.sections()


def exported(paths: RunPaths) -> None:
    journal = pytest.importorskip(
        "orchestrator.features.search.optuna_journal", reason="the extra search is not installed"
    )
    journal.export(paths.root)


def test_any_row_about_a_search_is_read_or_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "XDG_STATE_HOME", str(tmp_path / "state")
    )  # runs of other tests may be on Slurm, which is asked
    paths = search_run(tmp_path / "run", TRIALS)
    sound = paths.ledger.read_bytes()

    @fuzz(6)
    @example(rows=[(3, "content", '{"value": 1.0, "env_steps": 1}'), (3, "kind", "over")])
    @given(
        rows=st.lists(
            st.builds(lambda row, cell: (row, *cell), st.integers(1, 20), CELLS),
            min_size=1,
            max_size=2,
        )
    )
    def check(rows: list[tuple[int, str, Any]]) -> None:
        # A file of its own for each example: none waits for a connection that is not collected yet.
        for name in ("", "-wal", "-shm"):
            paths.ledger.with_name(f"{paths.ledger.name}{name}").unlink(missing_ok=True)
        paths.ledger.write_bytes(sound)
        shutil.rmtree(paths.entering, ignore_errors=True)
        for row, column, value in rows:
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                damage(
                    paths, f"UPDATE OR REPLACE search SET {column} = ? WHERE id = ?", (value, row)
                )
        read_everything(paths)

    check()
