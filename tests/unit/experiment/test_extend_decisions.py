"""``--on-change=extend``: which jobs are trained further, what becomes of their states, and what is
refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import Run, ledgers_closed, make_job  # noqa: F401 - a fixture

from orchestrator.core.errors import ChangedError
from orchestrator.core.exit_record import ExitRecord
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
from orchestrator.examination.preflight import JobVerdict
from orchestrator.ledger import JobRow
from orchestrator.server.differences import OnChange

ATTEMPT = Attempt(job_id="a", number=0, cpus=(0,), gpus=(), started_at=0.0)
ROWS = "checkpoints/replay/rows-000000000000-000000000500.npz"


def job(total_timesteps: int = 1000, **spec: Any) -> Job:
    return make_job("a", spec={"total_timesteps": total_timesteps, **spec})


def after(root: Path, before: Job, state: State) -> Run:
    """An experiment whose one job has had an attempt and is in ``state``."""
    experiment = Run(root, [before])
    experiment.begin("a", state)
    experiment.ledger.commit()
    checkpoint = experiment.paths.job("a").checkpoints / "checkpoint-000000001000.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    for path in (experiment.paths.job("a").model, experiment.paths.job("a").vecnormalize):
        path.touch()
    return experiment


def reconciled(
    experiment: Run, now: Job, on_change: OnChange = "extend", robot: str | None = None
) -> JobRow:
    verdicts = {"a": JobVerdict(robot_hash=robot)}
    answer = experiment.enter([now], verdicts, on_change=on_change)
    if answer.error:
        raise ChangedError(answer.error)
    (row,) = experiment.ledger.jobs()
    return row


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (Succeeded(), Pending()),
        (Pending(failures=1), Pending(failures=1)),
        (Paused(), Paused()),
        (Cancelled(), Cancelled()),
        (Failed(cause=Cause.ERROR, message="why"), Failed(cause=Cause.ERROR, message="why")),
    ],
)
def test_only_a_job_that_has_succeeded_is_queued_again(
    state: State, expected: State, tmp_path: Path
) -> None:
    experiment = after(tmp_path, job(), state)
    row = reconciled(experiment, job(2000))
    assert (row.state, row.attempts) == (expected, 1)
    assert (row.job.spec.total_timesteps, row.job.spec.extended_from) == (2000, (1000,))
    assert row.fingerprint == job(2000).spec.fingerprint()
    is_dead = state.name in ("FAILED", "CANCELLED")
    assert ("from 1,000 to 2,000 env_steps: a" in experiment.messages()) == (not is_dead)
    assert ("a: " in experiment.messages() and "`retry`" in experiment.messages()) == is_dead


def test_a_job_that_finished_as_its_supervisor_died_is_queued_again(tmp_path: Path) -> None:
    experiment = after(tmp_path, job(), Running(attempt=ATTEMPT))
    exit_record = experiment.paths.job("a").attempt(0).exit
    exit_record.parent.mkdir(parents=True)
    exit_record.write_text(ExitRecord(code=0, message="", env_steps=1000).to_json())
    assert reconciled(experiment, job(2000)).state == Pending()
    assert [attempt["cause"] for attempt in experiment.ledger.attempts()] == [None]


def test_later_runs_know_every_earlier_total(tmp_path: Path) -> None:
    experiment = after(tmp_path, job(), Succeeded())
    reconciled(experiment, job(2000))
    assert reconciled(experiment, job(2000), "refuse").job.spec.extended_from == (1000,)
    assert reconciled(experiment, job(3000)).job.spec.extended_from == (1000, 2000)


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_a_job_that_has_its_replay_buffer_is_trained_further(algo: str, tmp_path: Path) -> None:
    experiment = after(tmp_path, job(algo=algo, n_envs=2), Succeeded())
    rows = experiment.paths.job("a").root / ROWS
    rows.parent.mkdir()
    rows.touch()
    assert reconciled(experiment, job(2000, algo=algo, n_envs=2)).state == Pending()


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "fewer steps": (
        {},
        {"total_timesteps": 500},
        ["total_timesteps: 1000 → 500", "more than 1000"],
    ),
    "other changes": (
        {},
        {"total_timesteps": 2000, "seed": 1, "hyperparameters": {"gamma": 0.9}},
        ["total_timesteps: 1000 → 2000", "seed: 0 → 1", "ppo.gamma: not set → 0.9"],
    ),
    "ranks": ({}, {"total_timesteps": 2000, "ranks": 2}, ["resources.ranks: 1 → 2"]),
    "no replay buffer": (
        {"algo": "sac", "n_envs": 2},
        {"total_timesteps": 2000},
        [
            "checkpoints/replay",
            "replay buffer is gone",
            "keep_replay_buffer = true",
            "--on-change=restart",
        ],
    ),
    "no replay buffer of rank 1": (
        {"algo": "sac", "n_envs": 2, "ranks": 2},
        {"total_timesteps": 2000},
        ["replay buffer is gone"],
    ),
}


@pytest.mark.parametrize(("spec", "changes", "said"), REFUSED.values(), ids=REFUSED)
def test_whatever_else_has_changed_is_refused_with_every_reason(
    spec: dict[str, Any], changes: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    experiment = after(tmp_path, job(**spec), Succeeded())
    if spec.get("ranks") == 2:
        (experiment.paths.job("a").root / ROWS).parent.mkdir()
        (experiment.paths.job("a").root / ROWS).touch()
    before = experiment.ledger.jobs()
    with pytest.raises(ChangedError) as caught:
        reconciled(experiment, job(**spec | changes))
    assert [text for text in said if text not in str(caught.value)] == []
    with pytest.raises(ChangedError) as caught:
        reconciled(experiment, job(**spec | changes), "refuse")
    assert "extend" not in str(caught.value), "it is named only where it helps"
    assert experiment.ledger.jobs() == before
    assert {event.kind for event in experiment.ledger.events_after(0)} == {"answer"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"hyperparameters": {"learning_rate": "linear(1e-3, 0)"}},
            'ppo.learning_rate = "linear(1e-3, 0)"',
        ),
        ({"algo": "sac", "ranks": 2, "normalize": True, "n_envs": 2}, "ranks merged"),
        ({"hyperparameters": {"learning_rate": 1e-3}}, ""),
        (
            {"randomize": {"push.speed": "uniform(0, linear(0, 1))"}},
            'randomize."push.speed" = "uniform(0, linear(0, 1))"',
        ),
        ({"randomize": {"push.speed": "uniform(0, 1)"}}, ""),
    ],
)
def test_what_makes_other_weights_than_one_longer_training_is_said(
    spec: dict[str, Any], said: str, tmp_path: Path
) -> None:
    experiment = after(tmp_path, job(**spec), Succeeded())
    for rank in range(2):
        (experiment.paths.job("a").replay(rank)).mkdir()
        (experiment.paths.job("a").replay(rank) / Path(ROWS).name).touch()
    reconciled(experiment, job(2000, **spec))
    warnings = [event.message for event in experiment.events("warning")]
    assert (len(warnings), said in "".join(warnings)) == (bool(said), True)
    assert all("2,000 env_steps" in text and "weights will differ" in text for text in warnings)
