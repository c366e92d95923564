"""Jobs that wait for jobs: the loop over a fake executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import (
    FOREVER,
    Experiment,
    ask,
    behaviours,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    once,
    rows,
)

from orchestrator.core.errors import ChangedError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Cause, Failed, Job, Pending, Running
from orchestrator.executors.base import Launch
from orchestrator.executors.fake import Behaviour
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.resuming.declared_changes import OnChange
from orchestrator.experiment.resuming.reconcile import reconcile
from orchestrator.ledger import JobRow
from orchestrator.supervisor.events import View
from orchestrator.supervisor.retry_policy import exit_code
from orchestrator.supervisor.start_policies import FailedFetch, Fetch, FetchedPolicy, UnfitPolicy
from orchestrator.terminal import jobs_table

DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
FAILS = Behaviour(returncode=ExitCode.ERROR)


def waiting(links: dict[str, tuple[str, ...]], **spec: Any) -> list[Job]:
    return [make_job(name, spec={"after": after, **spec}) for name, after in links.items()]


@pytest.mark.parametrize("order", ["abcd", "dcba", "cadb"])
def test_a_diamond_is_trained_in_its_order_however_it_is_listed(order: str, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, waiting({name: DIAMOND[name] for name in order}), cpus=4)
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert (experiment.order[0], sorted(experiment.order[1:3]), experiment.order[3]) == (
        "a",
        ["b", "c"],
        "d",
    )
    assert experiment.fake.time_s == pytest.approx(3.0)


def test_who_waits_for_a_failed_job_is_not_run_and_is_named_at_the_end(tmp_path: Path) -> None:
    experiment = Experiment(
        tmp_path, [*waiting(DIAMOND), make_job("other")], behaviours({"b": FAILS})
    )
    assert experiment.run() == {
        "a": "SUCCEEDED",
        "b": "FAILED",
        "c": "SUCCEEDED",
        "d": "PENDING",
        "other": "SUCCEEDED",
    }
    assert not experiment.supervisor.is_interrupted
    assert exit_code(experiment.supervisor._jobs.states, interrupted=False) == 1
    assert {
        job_id: row["waits_for"] for job_id, row in rows(tmp_path).items() if row["waits_for"]
    } == {"d": "b"}
    (line,) = [
        line for line in jobs_table.of_rows(experiment.ledger.summary()) if line.job_id == "d"
    ]
    assert (line.activity, line.state) == ("waits for b", "PENDING")

    ask(tmp_path, ("retry", "b"))
    again = Experiment(tmp_path, [])
    assert set(again.run().values()) == {"SUCCEEDED"}
    assert again.order == ["b", "d"]


def test_who_waits_for_a_paused_job_is_resumable_and_may_be_paused_itself(tmp_path: Path) -> None:
    experiment = Experiment(
        tmp_path, waiting({"a": (), "b": ("a",), "c": ("a",)}), behaviours({"a": FOREVER})
    )
    asked = once(
        lambda view: view.elapsed_s > 1,
        lambda: ask(tmp_path, ("pause", "a"), ("pause", "b"), ("resume", "b")),
    )
    experiment.reporter.each_turn = asked
    assert experiment.run() == {"a": "PAUSED", "b": "PENDING", "c": "PENDING"}
    assert exit_code(experiment.supervisor._jobs.states, interrupted=False) == 130


class Policies:
    """Fetches one policy in two turns.

    :param failures: how often a fetch for each job fails first.
    """

    def __init__(self, problem: str = "", failures: int = 0) -> None:
        self.problem, self.failures = problem, failures
        self.asked, self.fetched, self._waiting = list[str](), set[str](), list[str]()
        self.not_before: list[float | None] = []

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def needs(self, job: Job) -> bool:
        return job.job_id not in self.fetched

    def request(self, job: Job, *, not_before: float | None = None) -> None:
        if job.job_id not in self._waiting:
            self.asked.append(job.job_id)
            self.not_before.append(not_before)
            self._waiting += [job.job_id, job.job_id]

    def withdraw(self, job_id: str) -> None:
        """It is under way."""

    def take(self) -> Sequence[Fetch]:
        if not self._waiting:
            return ()
        job_id = self._waiting.pop(0)
        if job_id in self._waiting:
            return ()
        if self.problem:
            return [UnfitPolicy(job_id=job_id, problem=self.problem)]
        if self.asked.count(job_id) <= self.failures:
            return [FailedFetch(job_id=job_id, problem="no process could be started")]
        self.fetched.add(job_id)
        return [FetchedPolicy(job_id=job_id, sha256=f"of {job_id}")]


def starting() -> list[Job]:
    return [
        make_job("a"),
        *(make_job(name, spec={"after": ("a",), "init": "job:a"}) for name in "bc"),
    ]


def test_a_policy_is_fetched_when_its_job_has_succeeded_and_recorded_before_the_launch(
    tmp_path: Path,
) -> None:
    policies, launched = Policies(), dict[str, str | None]()

    def behave(launch: Launch) -> Behaviour:
        rows_now = {row.job.job_id: row.job.spec for row in experiment.ledger.jobs()}
        launched[launch.job_id] = rows_now[launch.job_id].init_sha256
        assert set(policies.asked) <= {"b", "c"}
        assert launch.job_id != "a" or not policies.asked
        return Behaviour()

    experiment = Experiment(tmp_path, starting(), behave, policies=policies)
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert launched == {"a": None, "b": "of b", "c": "of c"}
    assert policies.asked == ["b", "c"]


def test_who_cannot_start_from_a_policy_has_failed_and_the_others_go_on(tmp_path: Path) -> None:
    jobs = [*starting(), make_job("d", spec={"after": ("b",)}), make_job("e")]
    experiment = Experiment(tmp_path, jobs, policies=Policies("another network"))
    found = experiment.run()
    assert found == {
        "a": "SUCCEEDED",
        "b": "FAILED",
        "c": "FAILED",
        "d": "PENDING",
        "e": "SUCCEEDED",
    }
    assert experiment.supervisor._jobs.states["b"] == Failed(
        cause=Cause.INVALID, message="another network"
    )


def test_a_policy_that_could_not_be_fetched_is_tried_again_like_a_launch(tmp_path: Path) -> None:
    policies = Policies(failures=2)
    failures: set[int] = set()
    jobs = [make_job("a"), make_job("b", spec={"after": ("a",), "init": "job:a"}, max_retries=2)]
    experiment = Experiment(tmp_path, jobs, policies=policies)

    def each_turn(_: View) -> None:
        state = experiment.supervisor._jobs.states["b"]
        if isinstance(state, Pending | Running):
            failures.add(state.failures)

    experiment.reporter.each_turn = each_turn
    assert experiment.run() == {"a": "SUCCEEDED", "b": "SUCCEEDED"}
    assert failures == {0, 1, 2}, "they count"
    first, second, third = policies.not_before
    assert first is None
    assert second is not None
    assert third is not None
    assert 0.0 < second < third <= experiment.fake.time_s
    assert [row.attempts for row in experiment.ledger.jobs()] == [1, 1]
    assert experiment.reporter.messages().count("no process could be started; retry") == 2


def test_a_stop_does_not_wait_for_policies(tmp_path: Path) -> None:
    class Slow(Policies):
        def take(self) -> Sequence[Fetch]:
            if self.asked:
                experiment.supervisor.request_stop("test")
            return ()

    experiment = Experiment(tmp_path, starting(), policies=Slow())
    assert experiment.run() == {"a": "SUCCEEDED", "b": "PENDING", "c": "PENDING"}
    assert experiment.supervisor.is_interrupted
    assert "not run" not in experiment.reporter.messages()


# -- later runs


def trained(root: Path, *jobs: Job) -> Experiment:
    """An experiment whose jobs have succeeded, each from the policy that it starts from."""
    known = [
        replace(job, spec=replace(job.spec, init_sha256="ab")) if job.spec.init_job else job
        for job in jobs
    ]
    experiment = Experiment(root, known, lambda launch: Behaviour())
    experiment.run()
    for job in jobs:
        paths = experiment.paths.job(job.job_id)
        paths.checkpoints.mkdir(parents=True)
        for path in (
            paths.checkpoints / "checkpoint-000000001000.pt",
            paths.model,
            paths.vecnormalize,
        ):
            path.touch()
    return experiment


def reconciled(experiment: Experiment, on_change: OnChange, *jobs: Job) -> dict[str, JobRow]:
    verdicts, places = (
        {job.job_id: JobVerdict() for job in jobs},
        {job.job_id: n for n, job in enumerate(jobs)},
    )
    paths, ledger, reporter = experiment.paths, experiment.ledger, experiment.reporter
    return {
        row.job.job_id: row
        for row in reconcile(jobs, verdicts, places, on_change, paths, ledger, reporter)
    }


def stages(first: int, second: int = 1000, **spec: Any) -> list[Job]:
    return [
        make_job("a", spec={"total_timesteps": first}),
        make_job("b", spec={"after": ("a",), "init": "job:a", "total_timesteps": second, **spec}),
        make_job("c", spec={"after": ("b",), "init": "job:b"}),
        make_job("d", spec={"after": ("a",)}),
    ]


@pytest.mark.parametrize("second", [1000, 2000])
def test_a_job_has_changed_if_the_one_that_it_starts_from_has(second: int, tmp_path: Path) -> None:
    experiment = trained(tmp_path, *stages(1000))
    for on_change in ("refuse", "extend"):
        with pytest.raises(ChangedError) as error:
            reconciled(experiment, on_change, *stages(2000, second))  # type: ignore[arg-type]
        for parent in "ab":
            assert f"init: job {parent}, which it starts from, is declared differently" in str(
                error.value
            )
        assert "d: " not in str(error.value).replace("declared", "")
    kept = reconciled(experiment, "keep", *stages(2000, second))
    assert {row.state.name for row in kept.values()} == {"SUCCEEDED"}
    again = reconciled(experiment, "restart", *stages(2000, second))
    assert {job_id: row.state.name for job_id, row in again.items()} == {
        **dict.fromkeys("abc", "PENDING"),
        "d": "SUCCEEDED",
    }
    assert again["b"].job.spec.init_sha256 is None
