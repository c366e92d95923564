"""`retry` of a failed trial: it is trained again with all of its seeds, and counts; samplers are
told nothing twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from searcher_helpers import make_turns, searcher_of
from trial_helpers import Told, search_run

from orchestrator.client.requests import ask
from orchestrator.core.job import (
    Cancelled,
    Cause,
    Failed,
    Paused,
    State,
    Succeeded,
)
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import search_events
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.ledger import Ledger

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
    ledger.close()
    with search_events.writing(paths) as database:
        database.add(told)
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

    def kinds(self) -> Counter[tuple[str, int | None]]:
        return Counter((event.kind, event.trial) for event in self.events())

    def events(self) -> list[SearchEvent]:
        return search_events.events(self.paths)


def test_a_retried_trial_is_trained_with_all_seeds_and_compared_and_told_once(
    tmp_path: Path,
) -> None:
    paths = failed_run(tmp_path / "run")
    ask(paths.root, "retry", {"names": [ONE]})
    searched = Searched(paths)
    searched.turns()
    assert not searched.trial.is_over
    assert {row.state.name for row in searched.searcher.ledger.jobs()[2:]} == {"PENDING"}

    searched.move(Paused(at_rung=True), 300)
    searched.turns()
    assert searched.trial.goal > 1, "it is the only one there, and goes on"
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


@pytest.mark.parametrize("state", [FAILED, Cancelled()])
def test_a_retried_trial_that_fails_again_has_failed(state: State, tmp_path: Path) -> None:
    paths = failed_run(tmp_path / "run")
    ask(paths.root, "retry", {"names": [ONE, OTHER]})
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


GOES_ON, AT_RUNG = Told(reached=[2.0], is_promoted=True), Told(reached=[2.0])


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
    searched.searcher.close()
    again = Searched(paths)
    again.turns()
    assert again.kinds() - before == Counter({("began", None): 1})
