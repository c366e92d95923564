"""When a search of which nothing comes gives up."""

from __future__ import annotations

import contextlib
from pathlib import Path

import command_helpers as commands
import pytest
from searcher_helpers import make_turns, searcher_of
from supervisor_helpers import ledgers_closed  # noqa: F401 - a fixture
from trial_helpers import Told, search_run

from orchestrator.core.errors import UsageError
from orchestrator.core.job import Cause, Failed, State, Succeeded
from orchestrator.features.search.searcher.searcher import FIRST_FAILURES

OUTSIDE = {"ppo.learning_rate": 5.0, "policy_kwargs.net_arch": [32, 32]}


@pytest.mark.usefixtures("ledgers_closed")
@pytest.mark.parametrize(
    ("end", "gives_up"),
    [(Succeeded(), False), (Failed(cause=Cause.ERROR, message="it fell"), True)],
    ids=["succeeds", "fails"],
)
def test_what_still_trains_is_waited_for(
    end: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, gives_up: bool
) -> None:
    commands.examine_nothing(monkeypatch)
    failed = [Told(why="outside", point=OUTSIDE)] * FIRST_FAILURES
    paths = search_run(
        tmp_path / "run", [Told(), *failed], is_over=False, trials=50, objective="ep_rew_mean"
    )
    searcher = searcher_of(paths, jobs_at_once=2)
    (job,) = [row.job.job_id for row in searcher.ledger.jobs()]

    with contextlib.closing(searcher._examiner):
        make_turns(searcher)
        assert len(searcher.history.asked) == 1 + FIRST_FAILURES, "no other is begun meanwhile"
        searcher.ledger.set_progress([(job, 1000, 5.0, None, None)])
        searcher.ledger.set_state(job, end)
        searcher.ledger.commit()
        if gives_up:
            with pytest.raises(UsageError, match="21 trials"):
                make_turns(searcher)
        else:
            make_turns(searcher)
            assert len(searcher.history.asked) > 1 + FIRST_FAILURES
