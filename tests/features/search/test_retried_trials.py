"""`retry` of a failed trial: it is trained again with all of its seeds, and counts; samplers are
told nothing twice."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from searcher_helpers import make_turns, searcher_of
from supervisor_helpers import ledgers_closed  # noqa: F401 - a fixture
from trial_helpers import Told, search_run

from orchestrator.core.errors import LedgerBusyError
from orchestrator.core.job import (
    Attempt,
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    Running,
    State,
    Succeeded,
)
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.from_outside import additions, control
from orchestrator.experiment.resuming import recovery
from orchestrator.features.search import search_events
from orchestrator.features.search.history import Trial
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher.searcher import Searcher
from orchestrator.features.search.trials import TrialReader
from orchestrator.ledger import Ledger, job_figures

FAILED = Failed(cause=Cause.ERROR, message="it fell")
ONE, OTHER = "hopper-t00001-s0", "hopper-t00001-s1"


def failed_run(root: Path) -> RunPaths:
    """A search that is over. Its second trial has failed at the second rung; the sampler was told
    that."""
    trials = [Told(values=[1.0]), Told(reached=[2.0], is_promoted=True, why="it fell")]
    paths = search_run(
        root, trials, seeds=(0, 1), objective="ep_rew_mean", scheduler={"min_env_steps": 100}
    )
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
        self.searcher = searcher_of(paths)
        self.searcher._record([SearchEvent(kind="began", content={"lanes": 2})])
        self.paths, self.trial = paths, self.searcher.history.trials[1]

    def turns(self) -> None:
        """All turns until there is nothing more to be done."""
        make_turns(self.searcher)

    def move(self, state: State, env_steps: int = 0) -> None:
        """Both jobs of the trial come to ``state``."""
        for job_id in self.trial.jobs:
            self.searcher.ledger.set_progress([(job_id, env_steps, 5.0, None, None)])
            self.searcher.ledger.set_state(job_id, state)
        self.searcher.ledger.commit()

    def set(self, **states: State) -> None:
        """Jobs come to these states."""
        for job_id, state in states.items():
            if isinstance(state, Running):
                self.searcher.ledger.start_attempt(state.attempt, queue_s=0.0)
            self.searcher.ledger.set_state(job_id, state)
        self.searcher.ledger.commit()

    def supervise(self) -> None:
        """Do what is requested."""
        ledger = Ledger.open(self.paths.ledger)
        recovery.apply_late_requests(ledger, "me")
        ledger.abandon()

    def states(self) -> list[str]:
        """Of the jobs of the trial."""
        return [row.state.name for row in self.searcher.ledger.jobs()[2:]]

    def pauses(self) -> list[int | None]:
        """To how many env_steps its jobs are trained."""
        return [row.job.spec.pause_at for row in self.searcher.ledger.jobs()[2:]]

    def kinds(self) -> Counter[tuple[str, int | None]]:
        return Counter((event.kind, event.trial) for event in self.events())

    def events(self) -> list[SearchEvent]:
        return search_events.events(self.searcher.ledger)


def test_a_retried_trial_is_trained_with_all_seeds_and_compared_and_told_once(
    tmp_path: Path,
) -> None:
    paths = failed_run(tmp_path / "run")
    assert "queued 1 job" in control.ask(paths.root, [ONE], "retry")
    searched = Searched(paths)
    searched.turns()
    assert not searched.trial.is_over
    assert OTHER in job_figures.requested_jobs(searched.searcher.ledger, "retry")
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
    assert (kinds["retried", 1], kinds["over", 1], kinds["told", 1], kinds["ended", None]) == (
        1,
        2,
        1,
        2,
    )


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
    assert (late.failed, late.best(), late.front, late.saved_share) == (
        0,
        reader.best(),
        reader.front,
        0.0,
    )


def test_what_other_seeds_of_a_failed_trial_train_until_they_are_cancelled_is_counted(
    tmp_path: Path,
) -> None:
    search = searched(tmp_path / "run", GOES_ON)
    reader = TrialReader.of(search.paths)
    assert reader is not None
    search.move(RUNNING, 150)
    search.set(**{ONE: FAILED})
    search.turns()
    reader.update(search.searcher.ledger)
    counted = [reader.asked[1].env_steps]
    search.searcher.ledger.set_progress([(OTHER, 250, None, None, None)])
    search.set(**{OTHER: Cancelled()})
    for _ in range(2):
        reader.update(search.searcher.ledger)
        counted.append(reader.asked[1].env_steps)
    assert counted == [300, 400, 400]


@pytest.mark.parametrize("state", [FAILED, Cancelled()])
def test_a_retried_trial_that_fails_again_has_failed(state: State, tmp_path: Path) -> None:
    paths = failed_run(tmp_path / "run")
    control.ask(paths.root, ["*t00001*"], "retry")
    searched = Searched(paths)
    searched.turns()
    assert not searched.trial.is_over
    searched.move(state)
    searched.turns()
    assert (searched.trial.is_over, searched.trial.values, searched.searcher.history.is_over) == (
        True,
        None,
        True,
    )
    kinds = searched.kinds()
    assert (kinds["retried", 1], kinds["over", 1], kinds["told", 1]) == (1, 2, 1)


def searched(root: Path, trial: Told) -> Searched:
    """A search that goes on: its first trial is finished, the second one is this."""
    settings = {"objective": "ep_rew_mean", "scheduler": {"min_env_steps": 100}}
    return Searched(
        search_run(root, [Told(values=[1.0]), trial], seeds=(0, 1), is_over=False, **settings)
    )


RUNNING = Running(attempt=Attempt(job_id=OTHER, number=0, cpus=(), gpus=(), started_at=0.0))
GOES_ON, AT_RUNG = Told(reached=[2.0], is_promoted=True), Told(reached=[2.0])


def test_a_trial_has_failed_as_soon_as_one_of_its_jobs_is_cancelled_at_its_rung(
    tmp_path: Path,
) -> None:
    search = searched(tmp_path / "run", AT_RUNG)
    search.set(**{ONE: Cancelled()})
    search.turns()
    assert (search.trial.is_over, search.trial.why) == (True, f"{ONE} is CANCELLED")
    search.supervise()
    assert search.states() == ["CANCELLED", "CANCELLED"]

    search.set(**{ONE: Pending()})
    search.turns()
    assert search.trial.goal == 1, "it is the only one at its rung"
    search.supervise()
    assert (search.states(), search.pauses()) == (["PENDING", "PENDING"], [300, 300])


def test_a_retried_job_trains_to_where_its_trial_was_promoted_while_it_was_cancelled(
    tmp_path: Path,
) -> None:
    search = searched(tmp_path / "run", AT_RUNG)
    search.searcher._turn()  # it is promoted
    search.set(**{ONE: Cancelled()})
    search.supervise()
    search.turns()
    search.supervise()
    assert (search.trial.is_over, search.states()) == (True, ["CANCELLED", "CANCELLED"])
    search.set(**{ONE: Pending(), OTHER: Pending()})
    search.turns()
    assert search.pauses() == [300, 300]
    search.move(Paused(at_rung=True), 300)
    search.turns()
    assert search.trial.goal == 2


@pytest.mark.parametrize("now", [Pending(), Succeeded(), Paused(at_rung=True)])
def test_a_job_that_is_retried_and_ends_before_anybody_looks_takes_the_other_seeds_with_it(
    now: State, tmp_path: Path
) -> None:
    search = searched(tmp_path / "run", GOES_ON)
    search.set(**{ONE: FAILED})
    search.turns()
    search.supervise()
    assert (search.trial.is_over, search.states()) == (True, ["FAILED", "CANCELLED"])
    search.set(**{ONE: now})
    search.turns()
    assert not search.trial.is_over
    search.supervise()
    assert search.states() == [now.name, "PENDING"]


def test_a_retry_while_other_seeds_are_being_cancelled_is_not_undone(tmp_path: Path) -> None:
    search = searched(tmp_path / "run", GOES_ON)
    search.set(**{ONE: FAILED})
    search.turns()
    search.set(
        **{ONE: Pending()}
    )  # the user retries it, while a request to cancel the other one is unread
    search.turns()
    assert search.states() == ["PENDING", "PENDING"]
    search.set(**{OTHER: RUNNING})
    search.supervise()  # its worker saves a checkpoint
    search.turns()
    assert not search.searcher.history.is_over
    search.set(**{OTHER: Cancelled()})
    search.turns()
    search.supervise()
    assert (search.trial.is_over, search.states()) == (False, ["PENDING", "PENDING"])


def test_a_seed_that_succeeds_while_it_is_being_cancelled_is_no_retry(tmp_path: Path) -> None:
    search = searched(tmp_path / "run", GOES_ON)
    search.set(**{ONE: FAILED})
    search.turns()
    search.set(**{OTHER: RUNNING})
    search.supervise()
    search.set(**{OTHER: Succeeded()})
    search.turns()
    assert search.searcher.history.is_over
    assert search.kinds()["retried", 1] == 0


def test_what_was_entered_is_not_entered_again_if_the_ledger_is_locked_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, written, read = (
        searched(tmp_path / "run", GOES_ON),
        additions.write_change,
        search_events.events,
    )
    search.move(Succeeded(), 1000)
    locked = list[LedgerBusyError]()

    def enter(*arguments: Any) -> Ledger:
        locked.append(LedgerBusyError("locked"))
        return written(*arguments)

    def events(*arguments: Any, **settings: Any) -> list[SearchEvent]:
        if locked:
            raise locked.pop()
        return read(*arguments, **settings)

    monkeypatch.setattr(additions, "write_change", enter)
    monkeypatch.setattr(search_events, "events", events)
    for _ in range(20):
        with contextlib.suppress(LedgerBusyError):
            if not search.searcher._turn():
                break
    kinds = search.kinds()
    assert (kinds["over", 0], kinds["over", 1], kinds["told", 0], kinds["told", 1]) == (1, 1, 1, 1)


def test_where_the_trial_that_has_gone_on_fails_the_next_best_goes_on_and_so_after_a_kill(
    tmp_path: Path,
) -> None:
    trials = [Told(reached=[1.0]), Told(reached=[2.0], is_promoted=True), Told(reached=[1.5])]
    paths = search_run(
        tmp_path / "run", trials, is_over=False, scheduler={"min_env_steps": 100, "factor": 10}
    )
    searched = Searched(paths)
    searched.move(FAILED, 200)
    searched.turns()
    assert [one.trial for one in searched.events() if one.kind == "promoted"] == [1, 2]
    before = searched.kinds()
    searched.searcher.ledger.abandon()
    again = Searched(paths)
    again.turns()
    assert again.kinds() - before == Counter({("began", None): 1})


@pytest.mark.parametrize(("failed_jobs", "promoted"), [((ONE,), [1, 0]), ((), [1])])
def test_a_search_that_ended_without_a_finished_trial_goes_on_with_the_next_best(
    failed_jobs: Sequence[str], promoted: Sequence[int], tmp_path: Path
) -> None:
    """Where a trial was trained, and has no value of the objective, the next one would have none
    either."""
    failing = Told(reached=[2.0], is_promoted=True, why="it fell", failed_jobs=failed_jobs)
    paths = search_run(
        tmp_path / "run",
        [Told(reached=[1.0]), failing],
        scheduler={"min_env_steps": 100, "factor": 10},
    )
    searched = Searched(paths)
    searched.set(**{ONE: FAILED})
    searched.turns()
    assert [one.trial for one in searched.events() if one.kind == "promoted"] == promoted


def test_failed_trials_that_nobody_retries_stay_as_they_are(tmp_path: Path) -> None:
    searched = Searched(failed_run(tmp_path / "run"))
    searched.turns()
    assert searched.searcher.history.is_over
    assert searched.kinds()["retried", 1] == 0


def test_a_repeated_trial_that_the_user_pauses_beyond_a_rung_is_compared_with_none(
    tmp_path: Path,
) -> None:
    trials = [Told(values=[1.0]), Told(reevaluates=0)]
    searched = Searched(
        search_run(tmp_path / "run", trials, seeds=(0, 1), is_over=False, max_env_steps=1)
    )
    searched.move(Paused(), 500)
    searched.turns()
    assert searched.searcher._waits_for_user()
    searched.move(Succeeded(), 1000)
    searched.turns()
    assert (searched.kinds()["reached", 1], searched.kinds()["over", 1]) == (0, 1)


def test_the_pareto_front_is_trained_again_with_seeds_that_no_trial_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ([5.0, 9.0], [4.0, 9.5], [3.0, 1.0])  # the second is surpassed by the first
    goals = {
        "sampler": "nsga2",
        "objective": ["eval_mean", "wall_s"],
        "direction": ["maximize", "minimize"],
    }
    trials = [Told(values=each) for each in values]
    search = Searched(
        search_run(tmp_path / "run", trials, seeds=(0, 1000), is_over=False, reevaluate=2, **goals)
    )
    entered: list[tuple[int, list[int]]] = []

    def enter(_: Searcher, point: Any, jobs: Sequence[Job], *, others: Any) -> None:
        entered.append((others["reevaluates"], [job.spec.seed for job in jobs]))

    monkeypatch.setattr(Searcher, "_enter", enter)
    search.searcher._turn()
    assert entered == [(0, [1001, 1002]), (2, [1001, 1002])]
