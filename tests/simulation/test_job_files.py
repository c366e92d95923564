"""What the simulated world has of changing job files, searches and policies of other jobs comes
about, and faults there are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.experiment.resuming import extension, reconcile
from orchestrator.experiment.start_policy_fetcher import StartPolicyFetcher
from tests.simulation.mutations import Mutation, planted
from tests.simulation.play import Outcome, play
from tests.simulation.scenario import STEPS, Behaviour, Scenario, SimulatedJob, Trouble

JOB = SimulatedJob(name="j0", iterations=2)
SLOW = SimulatedJob(name="j0", behaviours=(Behaviour(iteration_s=1.5),))


def edited(what: str, *others: Trouble, at_s: float = 4.0) -> Scenario:
    """One job that has ended when it is edited, or that goes on."""
    edit = Trouble(kind="edit", at_s=at_s, job=JOB.job_id, what=what, number=2)
    return Scenario(jobs=(JOB,), troubles=(edit, *others))


def begun(what: str) -> Trouble:
    return Trouble(kind="begin", at_s=3.0, what=what)


EXTENDED = edited("longer", begun("extend"))
RESTARTED = edited("other", begun("restart"))
CLEANED = edited(
    "other",
    begun("restart"),
    Trouble(kind="clean", at_s=7.0),
    Trouble(kind="edit", at_s=8.0, job=JOB.job_id, what="retries", number=3),
)
KEPT = edited("other", begun("keep"))
INVALID = Trouble(kind="edit", at_s=4.0, job=JOB.job_id, what="validity")
ADDED = Scenario(
    jobs=(SLOW, SimulatedJob(name="j1", is_declared=False)),
    troubles=(
        Trouble(kind="edit", at_s=1.0, job="j1-s0", what="add"),
        Trouble(kind="reload", at_s=1.0),
    ),
)
PROMOTED = Scenario(jobs=(SimulatedJob(name="j0", pause_at=STEPS, promotions=2),), searcher_s=0.5)
STARTED = Scenario(
    jobs=(JOB, SimulatedJob(name="j1", after=(JOB.job_id,), starts=True)),
)
SOURCE_CHANGED = replace(
    STARTED,
    troubles=(
        Trouble(kind="begin", at_s=7.0, what="restart"),
        Trouble(kind="edit", at_s=8.0, job=JOB.job_id, what="other"),
    ),
)
"""Another job has started from the one that is edited."""


def with_cores(number: int, at_s: float) -> Trouble:
    return Trouble(kind="edit", at_s=at_s, job=SLOW.job_id, what="cores", number=number)


TOO_LARGE = Scenario(
    jobs=(SLOW,),
    troubles=(
        with_cores(64, at_s=1.0),
        Trouble(kind="stop", at_s=3.0),
        with_cores(65, at_s=20.0),
        with_cores(1, at_s=40.0),
    ),
)
REMOVED = Scenario(
    jobs=(SLOW, SimulatedJob(name="j1")),
    troubles=(
        Trouble(kind="edit", at_s=1.0, job=SLOW.job_id, what="remove"),
        Trouble(kind="stop", at_s=1.2),
    ),
)


EXAMINERS_DIE = replace(
    STARTED,
    troubles=tuple(Trouble(kind="examiner", at_s=round(0.2 * number, 1)) for number in range(20)),
)


def starts(outcome: Outcome, job_id: str) -> int:
    return sum(f"submit {job_id}/" in line for line in outcome.trace)


def has(outcome: Outcome, text: str) -> bool:
    return any(text in line for line in outcome.trace)


def test_a_job_whose_policy_cannot_be_examined_is_tried_again_and_trained_at_last() -> None:
    outcome = play(EXAMINERS_DIE)
    assert not outcome.violation
    assert has(outcome, "event retrying: j1-s0 could not be launched")
    assert starts(outcome, "j1-s0") == 1


@pytest.mark.parametrize(
    ("scenario", "event", "attempts"),
    [
        (EXTENDED, "event extended", 2),
        (RESTARTED, "event restarted", 2),
        (KEPT, "but kept as before", 1),
        (edited("other"), "refused: /run", 1),
        (edited("other", INVALID), "refused: /run", 1),
        (edited("other", INVALID, begun("restart")), "as they are invalid now", 1),
        (edited("retries"), "run: refuse", 1),
        (edited("other", begun("fresh")), "event fresh", 2),
        (edited("retries", begun("directory")), "run: the directory as it is", 1),
        (edited("retries", Trouble(kind="damage", at_s=4.0)), "refuse is_rebuilding", 1),
        (CLEANED, "removed 1: replaced job directories", 2),
        (ADDED, "event reloaded: 1 new job", 1),
        (PROMOTED, "event promoted", 3),
        (STARTED, "j1-s0: RUNNING -> SUCCEEDED", 1),
        (SOURCE_CHANGED, "event restarted", 2),
        (REMOVED, "is no longer in the job file: it is CANCELLED", 1),
        (TOO_LARGE, "j0-s0: PENDING -> FAILED", 2),
        (TOO_LARGE, "there is room now for these jobs", 2),
    ],
)
def test_what_changes_comes_about(scenario: Scenario, event: str, attempts: int) -> None:
    outcome = play(scenario)
    assert outcome.violation == ""
    assert has(outcome, event)
    assert starts(outcome, JOB.job_id) == attempts


@pytest.mark.parametrize(
    ("scenario", "mutation"),
    [
        (
            RESTARTED,
            Mutation(
                name="what starts over is not set aside",
                function=reconcile._Declaration.start_over,
                before="run_directory.set_aside(self.paths.job(job_id).root, self.paths.replaced)",
                after="self.paths.root",
            ),
        ),
        (
            KEPT,
            Mutation(
                name="what is kept is declared otherwise",
                function=reconcile._Declaration.take_begun,
                before="if job.job_id not in self.changed:",
                after="if job.job_id not in self.changed or self.on_change == 'keep':",
            ),
        ),
        (
            EXTENDED,
            Mutation(
                name="what is extended is not queued",
                function=extension.extend,
                before="if isinstance(row.state, Succeeded):",
                after="if False:",
            ),
        ),
        (
            EXTENDED,
            Mutation(
                name="what is extended does not know its checkpoints",
                function=extension.extend,
                before="totals = (*before.extended_from, before.total_timesteps)",
                after="totals = before.extended_from",
            ),
        ),
        (
            REMOVED,
            Mutation(
                name="a job that has begun is forgotten when it is not declared",
                function=reconcile._drop_undeclared,
                before="if row.attempts == 0:",
                after="if True:",
            ),
        ),
        (
            STARTED,
            Mutation(
                name="the policy of another job is not fetched",
                function=StartPolicyFetcher.needs,
                before="return not job_directory",
                after="return False and not job_directory",
            ),
        ),
    ],
    ids=lambda value: value.name.replace(" ", "-") if isinstance(value, Mutation) else "",
)
def test_a_planted_fault_is_found(scenario: Scenario, mutation: Mutation) -> None:
    with planted(mutation):
        assert play(scenario).violation
