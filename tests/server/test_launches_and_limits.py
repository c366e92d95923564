"""When jobs are launched, what ends them, and what follows: a supervisor whose executor and clock are
simulated."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from fake_launcher import NEVER, Behaviour
from supervisor_helpers import (
    FOREVER,
    Run,
    behaviours,
    edit_robot,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
    staged_robot,
)

from orchestrator.core.errors import DiskFullError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Cause
from orchestrator.core.messages import Progress
from orchestrator.core.robot_hash import hash_of_copy
from orchestrator.executors.launcher import Launch
from orchestrator.ledger import summary
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.server.start_policies import (
    FailedFetch,
    Fetch,
    FetchedPolicy,
    UnfitPolicy,
)


def test_jobs_are_launched_in_order_and_never_more_than_run_at_once(tmp_path: Path) -> None:
    most: list[int] = []

    def behave(launch: Launch) -> Behaviour:
        most.append(run.fake.running)
        return Behaviour()

    run = Run(tmp_path, [make_job(name) for name in names(20)], behave, cpus=3)
    assert set(run.go().values()) == {"SUCCEEDED"}
    assert run.order == names(20)
    assert max(most) == 2  # besides the new one
    assert run.exit_code == 0
    assert [row["state"] for row in summary.read(run.paths)[0]] == ["SUCCEEDED"] * 20


def test_a_large_job_is_overtaken_but_not_starved(tmp_path: Path) -> None:
    small = [make_job(name) for name in names(60)]
    jobs = [small[0], make_job("large", cores=2), *small[1:]]
    times = {f"j{number:04}": Behaviour(after_s=1.0 + 0.013 * number) for number in range(60)}
    run = Run(tmp_path, jobs, behaviours(times), cpus=2)
    assert set(run.go().values()) == {"SUCCEEDED"}
    assert 10 < run.order.index("large") < 30


def test_who_waits_for_a_gpu_holds_nobody_up_that_needs_none(tmp_path: Path) -> None:
    gpu_jobs = [make_job(f"gpu{number}", gpus=1) for number in range(2)]
    times = {"gpu0": Behaviour(after_s=100.0)}
    run = Run(
        tmp_path,
        [*gpu_jobs, *map(make_job, names(60))],
        behaviours(times),
        cpus=2,
        gpus=1,
    )
    assert set(run.go().values()) == {"SUCCEEDED"}
    assert run.order[-1] == "gpu1"


def test_what_no_machine_can_hold_fails_and_a_machine_with_room_trains_it(tmp_path: Path) -> None:
    jobs = [make_job("large", cores=4), make_job("small")]
    run = Run(tmp_path, jobs, cpus=2)
    assert run.go() == {"large": "FAILED", "small": "SUCCEEDED"}
    assert run.ledger.job_row("large").state.cause is Cause.TOO_LARGE  # type: ignore[union-attr]
    run.end()
    again = Run(tmp_path, cpus=4, awaits_jobs=True)
    again.add(as_it_is=True)
    assert again.go() == {"large": "SUCCEEDED", "small": "SUCCEEDED"}


def test_memory_delays_a_launch_until_there_is_room(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a", memory_mib=600), make_job("b", memory_mib=600)])
    run.executor.memory_mib = 1000
    assert run.go() == {"a": "SUCCEEDED", "b": "SUCCEEDED"}
    assert [row["started_at"] for row in run.attempts("a")]
    assert run.fake.now() >= 2.0  # one after the other


@pytest.mark.parametrize(
    ("behaviour", "limits", "cause", "attempts"),
    [
        (Behaviour(after_s=NEVER, rss_mib=[(1.0, 50), (2.0, 900)]), {}, Cause.MEMORY, 1),
        (Behaviour(after_s=NEVER, progress_every_s=1.0), {"timeout_s": 5.0}, Cause.TIMEOUT, 1),
        (
            Behaviour(after_s=NEVER, progress_every_s=1.0, exits_within_s=NEVER),
            {"timeout_s": 5.0},
            Cause.TIMEOUT,
            1,
        ),
        (
            Behaviour(after_s=NEVER, progress_every_s=1.0, hangs_after_s=3.0),
            {"stall_timeout_s": 10.0},
            Cause.STALLED,
            3,
        ),
        (Behaviour(returncode=-9), {}, Cause.SIGNAL, 3),
        (Behaviour(returncode=-9, oom_killed=True), {}, Cause.OUT_OF_MEMORY, 3),
        (Behaviour(returncode=ExitCode.ERROR), {}, Cause.ERROR, 1),
        (Behaviour(returncode=ExitCode.DIVERGED), {}, Cause.DIVERGED, 1),
    ],
)
def test_a_job_that_ends_badly_is_retried_if_that_may_help_and_the_others_go_on(
    tmp_path: Path, behaviour: Behaviour, limits: dict[str, float], cause: Cause, attempts: int
) -> None:
    jobs = [make_job("bad", max_retries=2, **limits), make_job("good")]
    run = Run(tmp_path, jobs, behaviours({"bad": behaviour}), grace_s=5.0)
    assert run.go() == {"bad": "FAILED", "good": "SUCCEEDED"}
    assert {row["cause"] for row in run.attempts("bad")} == {cause}
    assert len(run.attempts("bad")) == attempts
    assert run.exit_code == 1


def test_retries_wait_longer_each_time(tmp_path: Path) -> None:
    run = Run(
        tmp_path,
        [make_job("a", max_retries=3)],
        behaviours({"a": Behaviour(after_s=0.0, returncode=-9)}),
    )
    run.go()
    assert 7.0 <= run.fake.now() < 8.5  # 1 + 2 + 4 s


def test_an_exit_code_of_zero_without_a_record_is_no_success(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a")])
    run.fake.writes_records = False
    assert run.go() == {"a": "FAILED"}


def test_time_in_which_the_supervisor_was_stopped_is_nobodys_silence(tmp_path: Path) -> None:
    behaviour = Behaviour(after_s=5000.0, progress_every_s=1.0)
    run = Run(
        tmp_path,
        [make_job("a", stall_timeout_s=60.0, timeout_s=3000.0)],
        behaviours({"a": behaviour}),
    )

    def sleep() -> None:
        run.fake.time_s += 4000.0  # no message is delivered meanwhile
        run.fake._agenda = [(when + 4000.0, *rest) for when, *rest in run.fake._agenda]  # type: ignore[misc]
        run.fake._reports = {when + 4000.0: who for when, who in run.fake._reports.items()}

    run.at(100.0, sleep)
    run.at(4200.0, lambda: run.ask("stop"))
    assert run.go() == {"a": "PENDING"}
    assert run.attempts("a")[0]["cause"] == Cause.INTERRUPTED


def test_a_stop_that_comes_with_the_awakening_has_its_own_grace_time(tmp_path: Path) -> None:
    deaf = Behaviour(after_s=NEVER, exits_within_s=NEVER)
    run = Run(tmp_path, [make_job("a")], behaviours({"a": deaf}), grace_s=10.0)

    def sleep() -> None:
        run.fake.time_s += 4000.0
        run.supervisor.request_stop("SIGINT")

    run.at(5.0, sleep)
    run.go()
    assert run.fake.now() < 4050.0


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    wall = iter(range(2_000_000_000, 0, -100_000))
    monkeypatch.setattr(time, "time", lambda: float(next(wall)))
    run = Run(tmp_path, [make_job("a", max_retries=1, timeout_s=100.0)])
    assert run.go() == {"a": "SUCCEEDED"}


# -- launches that fail


def test_an_attempt_that_cannot_be_started_gives_its_room_back_and_is_tried_again(
    tmp_path: Path,
) -> None:
    def behave(launch: Launch) -> Behaviour:
        if launch.job_id == "a" and launch.number < 2:
            raise OSError(errno.EAGAIN, "no more processes")
        return Behaviour()

    run = Run(tmp_path, [make_job("a", max_retries=2), make_job("b")], behave, cpus=1)
    assert run.go() == {"a": "SUCCEEDED", "b": "SUCCEEDED"}
    assert [row["cause"] for row in run.attempts("a")] == [Cause.LAUNCH, Cause.LAUNCH, None]


def test_an_altered_robot_fails_its_job_alone_and_leaves_its_room_to_others(
    tmp_path: Path,
) -> None:
    staged = staged_robot(tmp_path / "staged")
    run = Run(tmp_path / "run", cpus=1)
    jobs = [make_job("a", spec={"xml": "robot/hopper.xml"}), make_job("b")]
    digest = hash_of_copy(staged, "hopper.xml")
    run.ledger.put_jobs(
        DeclaredJob(position=place, job=job, robot_hash=digest) for place, job in enumerate(jobs)
    )
    run.supervisor.jobs.load(run.ledger.jobs())
    run.paths.job("a").root.mkdir(parents=True)
    staged.rename(run.paths.job("a").robot)
    edit_robot(run.paths.job("a").robot)
    assert run.go() == {"a": "FAILED", "b": "SUCCEEDED"}


def test_a_launch_onto_a_full_disk_stops_everything_at_once_and_resumably(tmp_path: Path) -> None:
    def behave(launch: Launch) -> Behaviour:
        if launch.job_id == "b":
            raise OSError(errno.ENOSPC, "no space left on device")
        return Behaviour(after_s=100.0)

    run = Run(tmp_path, [make_job(name) for name in "abc"], behave, cpus=3)
    with pytest.raises(DiskFullError):
        run.go()
    assert run.fake.now() < 5.0  # nobody waits for what was never started
    run.end()
    assert set(Run(tmp_path).go().values()) == {"SUCCEEDED"}


def test_workers_that_find_the_disk_full_together_are_all_recorded(tmp_path: Path) -> None:
    full = Behaviour(returncode=ExitCode.DISK_FULL)
    run = Run(tmp_path, [make_job(name) for name in "abc"], lambda _: full, cpus=3)
    run.fake.gather_s = 1.0
    with pytest.raises(DiskFullError):
        run.go()
    assert run.fake.now() < 5.0
    assert set(run.states().values()) == {"PENDING"}
    causes = {run.attempts(name)[0]["cause"] for name in "abc"}
    assert causes == {Cause.DISK_FULL}


def test_a_disk_with_too_little_space_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.server import disk_admission

    monkeypatch.setattr(disk_admission, "free_mib", lambda _: 100 if run.fake.now() < 50 else 900)
    jobs = [make_job("a", min_free_disk_mib=500), make_job("b", min_free_disk_mib=50)]
    run = Run(tmp_path, jobs)
    assert run.go() == {"a": "SUCCEEDED", "b": "SUCCEEDED"}
    assert run.order == ["b", "a"]
    assert len(run.events("waiting")) == 1


# -- stops


def test_a_stop_lets_workers_leave_and_the_same_jobs_go_on_in_the_next_run(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job(name) for name in "abc"], lambda _: FOREVER)
    run.at(5.0, lambda: run.supervisor.request_stop("SIGINT"))
    assert set(run.go().values()) == {"PENDING"}
    assert run.exit_code == 130
    run.end()
    again = Run(tmp_path)
    assert set(again.go().values()) == {"SUCCEEDED"}
    assert len(again.attempts("a")) == 2


@pytest.mark.parametrize(("stops", "after_s"), [(1, 10.0), (2, 0.0)])
def test_workers_that_do_not_leave_are_killed_at_the_deadline_or_by_a_second_stop(
    tmp_path: Path, stops: int, after_s: float
) -> None:
    deaf = Behaviour(after_s=NEVER, exits_within_s=NEVER)
    run = Run(tmp_path, [make_job("a"), make_job("b")], lambda _: deaf, grace_s=10.0)
    for _ in range(stops):
        run.at(5.0, lambda: run.supervisor.request_stop("SIGINT"))
    assert set(run.go().values()) == {"PENDING"}
    assert 5.0 + after_s <= run.fake.now() < 6.0 + after_s
    assert {row["returncode"] for row in run.attempts("a")} == {-9}


def test_a_worker_that_outlives_its_kill_is_reported_once(tmp_path: Path) -> None:
    stuck = Behaviour(after_s=NEVER, exits_within_s=NEVER, dies_within_s=100.0)
    run = Run(tmp_path, [make_job("a")], lambda _: stuck, grace_s=1.0)
    run.at(1.0, lambda: run.supervisor.request_stop("SIGINT"))
    run.go()
    assert len([event for event in run.events("warning") if event.job_id == "a"]) == 1


def test_checkpoints_are_asked_of_all_that_run_and_end_none(tmp_path: Path) -> None:
    run = Run(tmp_path, [make_job("a"), make_job("b")], lambda _: Behaviour(after_s=9.0))
    run.at(5.0, run.supervisor.ask_for_checkpoints)
    assert set(run.go().values()) == {"SUCCEEDED"}
    assert len(run.fake.checkpoints) == 2


def test_iterations_longer_than_the_grace_time_are_warned_of_once(tmp_path: Path) -> None:
    def slow(after_s: float) -> Progress:
        return Progress(phase="training", iteration=int(after_s // 20))

    behaviour = Behaviour(after_s=100.0, progress_every_s=10.0, progress=slow)
    run = Run(tmp_path, [make_job("a")], lambda _: behaviour, grace_s=5.0)
    run.go()
    assert len(run.events("warning")) == 1


# -- jobs that wait for jobs


class Policies:
    """Policies that are fetched in two turns, with what comes of each."""

    def __init__(self, *results: Fetch) -> None:
        self.results = list(results)
        self.requested: list[str] = []
        self.ready: set[str] = set()

    @property
    def is_busy(self) -> bool:
        return bool(self.requested)

    def needs(self, job: object) -> bool:
        return job.job_id not in self.ready  # type: ignore[attr-defined]

    def request(self, job: object) -> None:
        if job.job_id not in self.requested:  # type: ignore[attr-defined]
            self.requested.append(job.job_id)  # type: ignore[attr-defined]

    def take(self) -> list[Fetch]:
        taken = [self.results.pop(0) for _ in self.requested if self.results]
        self.requested.clear()
        self.ready |= {fetch.job_id for fetch in taken if isinstance(fetch, FetchedPolicy)}
        return taken


def test_a_diamond_is_trained_in_its_order_however_it_is_listed(tmp_path: Path) -> None:
    jobs = [
        make_job("end", spec={"after": ("left", "right")}),
        make_job("left", spec={"after": ("begin",)}),
        make_job("right", spec={"after": ("begin",)}),
        make_job("begin"),
        *map(make_job, names(6)),
    ]
    run = Run(tmp_path, jobs)
    assert set(run.go().values()) == {"SUCCEEDED"}
    order = run.order
    assert order.index("begin") < min(order.index("left"), order.index("right"))
    assert order.index("end") > max(order.index("left"), order.index("right"))


def test_who_waits_for_a_job_that_failed_is_not_run_and_is_named(tmp_path: Path) -> None:
    jobs = [make_job("child", spec={"after": ("parent",)}), make_job("parent")]
    run = Run(tmp_path, jobs, behaviours({"parent": Behaviour(returncode=1)}))
    assert run.go() == {"child": "PENDING", "parent": "FAILED"}
    assert run.exit_code == 1
    assert "child" in run.events("warning")[-1].message
    run.ask("retry", "parent")
    run.end()
    assert Run(tmp_path).go() == {"child": "SUCCEEDED", "parent": "SUCCEEDED"}


@pytest.mark.parametrize(
    ("results", "state"),
    [
        ([FetchedPolicy(job_id="child", sha256="abc")], "SUCCEEDED"),
        (
            [
                FailedFetch(job_id="child", problem="killed"),
                FetchedPolicy(job_id="child", sha256="abc"),
            ],
            "SUCCEEDED",
        ),
        ([UnfitPolicy(job_id="child", problem="other network")], "FAILED"),
    ],
)
def test_a_policy_is_fetched_when_its_job_has_succeeded(
    tmp_path: Path, results: list[Fetch], state: str
) -> None:
    spec = {"init": "job:parent", "after": ("parent",)}
    jobs = [make_job("child", max_retries=1, spec=spec), make_job("parent")]
    run = Run(tmp_path, jobs, policies=Policies(*results))
    assert run.go() == {"child": state, "parent": "SUCCEEDED"}
    recorded = run.ledger.job_row("child").job.spec.init_sha256  # type: ignore[union-attr]
    assert recorded == ("abc" if state == "SUCCEEDED" else None)


def test_a_policy_of_a_job_that_is_no_longer_declared_harms_nobody(tmp_path: Path) -> None:
    spec = {"init": "job:parent", "after": ("parent",)}
    jobs = [make_job("parent"), make_job("child", spec=spec)]
    policies = Policies()
    run = Run(tmp_path, jobs, policies=policies)
    run.at(1.5, lambda: run.supervisor.jobs.forget("child"))
    run.at(1.5, lambda: policies.requested.append("child"))
    run.at(1.5, lambda: policies.results.append(FetchedPolicy(job_id="child", sha256="abc")))
    run.go()
    assert run.states()["parent"] == "SUCCEEDED"
