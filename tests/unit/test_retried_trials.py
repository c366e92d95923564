"""`retry` of a failed trial: it is trained again with all of its seeds, and counts; samplers are told nothing twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from supervisor_helpers import ledgers_closed  # noqa: F401 - a fixture
from trial_helpers import Told, search_run

from orchestrator.core.job import Cancelled, Cause, Failed, Paused, State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import control, recovery, resume
from orchestrator.ledger import Ledger, search_events
from orchestrator.ledger.search_events import SearchEvent
from orchestrator.report.search_data import _spent
from orchestrator.search.history import Trial
from orchestrator.search.searcher import Searcher
from orchestrator.search.trials import TrialReader
from orchestrator.search.watchdog import Watchdog

FAILED = Failed(cause=Cause.ERROR, message="it fell")
ONE, OTHER = "hopper-t00001-s0", "hopper-t00001-s1"


def failed_run(root: Path) -> RunPaths:
    """A search that is over. Its second trial has failed at the second rung; the sampler was told that."""
    trials = [Told(values=[1.0]), Told(reached=[2.0], is_promoted=True, why="it fell")]
    paths = search_run(root, trials, seeds=(0, 1), objective="ep_rew_mean", scheduler={"min_env_steps": 100})
    ledger = Ledger.open(paths.ledger)
    ledger.set_state(ONE, FAILED)
    ledger.set_state(OTHER, Cancelled())
    outcome = {"measures": None, "env_steps": 100}
    told = [
        SearchEvent(kind="told", trial=number, content={"values": values, **outcome})
        for number, values in enumerate(([1.0], None))
    ]
    search_events.add(ledger, told)
    ledger.close()
    return paths


class Searched:
    """A searcher whose turns a test makes, in the place of a process."""

    def __init__(self, paths: RunPaths) -> None:
        experiment = resume.declared_search(paths)
        self.searcher = Searcher(paths=paths, experiment=experiment, holder="me", watchdog=Watchdog())
        self.searcher._record([SearchEvent(kind="began", content={"lanes": 2})])
        self.paths, self.trial = paths, self.searcher.history.trials[1]

    def turns(self) -> None:
        """All turns until there is nothing more to be done."""
        while not self.searcher.history.is_over and self.searcher._turn():
            continue

    def move(self, state: State, env_steps: int = 0) -> None:
        """Both jobs of the trial come to ``state``."""
        for job_id in self.trial.jobs:
            self.searcher.ledger.set_progress([(job_id, env_steps, 5.0, None, None)])
            self.searcher.ledger.set_state(job_id, state)
        self.searcher.ledger.commit()

    def kinds(self) -> Counter[tuple[str, int | None]]:
        return Counter((event.kind, event.trial) for event in self.events())

    def events(self) -> list[SearchEvent]:
        return search_events.events(self.searcher.ledger)


def test_a_retried_trial_is_trained_with_all_seeds_and_compared_and_told_once(tmp_path: Path) -> None:
    paths = failed_run(tmp_path / "run")
    assert "queued 1 job" in control.ask(paths.root, [ONE], "retry")
    searched = Searched(paths)
    searched.turns()
    assert not searched.trial.is_over
    assert search_events.is_requested(searched.searcher.ledger, "retry", OTHER)
    recovery.apply_late_requests(searched.searcher.ledger, "me")
    assert {row.state.name for row in searched.searcher.ledger.jobs()[2:]} == {"PENDING"}

    searched.move(Paused(at_rung=True), 300)
    searched.turns()
    assert searched.trial.goal > 1, "it is the only one there, and goes on"
    recovery.apply_late_requests(searched.searcher.ledger, "me")
    searched.move(Succeeded(), 1000)
    searched.turns()
    assert (searched.trial.values, searched.searcher.history.is_over) == ([5.0], True)
    kinds = searched.kinds()
    assert (kinds["retried", 1], kinds["over", 1], kinds["told", 1], kinds["ended", None]) == (1, 2, 1, 2)


def test_what_is_shown_of_a_search_counts_a_retried_trial_as_what_it_is_now(tmp_path: Path) -> None:
    searched = Searched(failed_run(tmp_path / "run"))
    reader, late = TrialReader.of(searched.paths), TrialReader.of(searched.paths)
    assert reader is not None
    assert late is not None
    shown: list[tuple[int, str, list[Trial]]] = []

    def look() -> None:
        reader.update(searched.searcher.ledger)
        shown.append((reader.failed, reader.state(reader.asked[1]), reader.best(1)))

    look()
    control.ask(searched.paths.root, ["*t00001*"], "retry")
    searched.turns()
    look()
    searched.move(Succeeded(), 1000)
    searched.turns()
    look()
    first, second = reader.asked
    assert shown == [(1, "failed", [first]), (0, "training", [first]), (0, "finished", [second])]
    late.update(searched.searcher.ledger)  # all of it at once
    assert (late.failed, late.best(), late.front, late.saved_share) == (0, reader.best(), reader.front, 0.0)
    assert list(_spent(searched.events(), {0, 1})) == [0, 1]


@pytest.mark.parametrize("state", [FAILED, Cancelled()])
def test_a_retried_trial_that_fails_again_has_failed(state: State, tmp_path: Path) -> None:
    paths = failed_run(tmp_path / "run")
    control.ask(paths.root, ["*t00001*"], "retry")
    searched = Searched(paths)
    searched.turns()
    searched.move(state)
    searched.turns()
    assert (searched.trial.is_over, searched.trial.values, searched.searcher.history.is_over) == (True, None, True)


def test_failed_trials_that_nobody_retries_stay_as_they_are(tmp_path: Path) -> None:
    searched = Searched(failed_run(tmp_path / "run"))
    searched.turns()
    assert searched.searcher.history.is_over
    assert searched.kinds()["retried", 1] == 0
