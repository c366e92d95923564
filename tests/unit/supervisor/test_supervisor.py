"""The loop, over a fake executor and a simulated clock: hours pass in milliseconds, and nothing is
left to chance."""

from __future__ import annotations

import cProfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
    make_machine,
    names,
    once,
    rows,
)

from orchestrator.core.errors import SupervisorError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Failed, Job, Pending, Running
from orchestrator.core.messages import Progress
from orchestrator.executors.base import Event, Exited, Handle, Launch
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.ledger import Ledger, summary
from orchestrator.machine.slots import Slot, SlotPool
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.events import View
from orchestrator.supervisor.retry_policy import exit_code

# -- events


def test_who_acts_on_an_event_finds_it_in_the_ledger(tmp_path: Path) -> None:
    """Another process, such as one that reads `run --json` and then calls `retry`."""
    experiment = Experiment(tmp_path, [make_job(name) for name in names(3)])
    found: list[tuple[str, str]] = []
    record = experiment.reporter.event

    def event(kind: str, message: str, **facts: Any) -> None:
        record(kind, message, **facts)
        if kind in ("launched", "succeeded"):
            other = Ledger.open(experiment.paths.ledger, read_only=True)
            found.append((kind, other.summary_of(facts["job_id"])["state"]))
            other.abandon()

    experiment.reporter.event = event  # type: ignore[method-assign]
    experiment.run()
    assert Counter(found) == {("launched", "RUNNING"): 3, ("succeeded", "SUCCEEDED"): 3}


# -- launching


def test_jobs_are_launched_in_order_and_never_more_than_run_at_once(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in names(20)], cpus=3)
    most = []
    experiment.reporter.each_turn = lambda view: most.append(experiment.fake.running)
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert experiment.order == names(20)
    assert max(most) == 3
    assert experiment.fake.time_s == pytest.approx(7.0)


def test_max_parallel_caps(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in names(4)], cpus=8, max_parallel=1)
    experiment.run()
    assert experiment.fake.time_s == pytest.approx(4.0)


class WatchedSlots(SlotPool):
    """Counts what it is asked for. Where it grows, it has no room before it has refused once."""

    def __init__(self, cpus: int, *, grows: bool = False) -> None:
        super().__init__(make_machine(cpus, 0))
        self.grows = grows
        self.asked: list[bool] = []
        """Whether each request got a slot."""

    @property
    def is_full(self) -> bool:
        return super().is_full or (self.grows and not self.asked)

    def acquire(self, cores: int, gpus: float = 0, **others: Any) -> Slot | None:
        slot = None if self.is_full else super().acquire(cores, gpus, **others)
        self.asked.append(slot is not None)
        return slot


def test_no_slot_is_asked_for_while_jobs_of_several_cores_fill_the_machine(tmp_path: Path) -> None:
    """But once after those that have just been launched."""
    slots = WatchedSlots(4)
    jobs = [make_job(name, cores=2, threads=2) for name in names(6)]
    experiment = Experiment(tmp_path, jobs, lambda launch: Behaviour(after_s=10.0), slots=slots)
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert slots.asked == [True, True, False, True, True, False, True, True]
    assert experiment.fake.time_s == pytest.approx(30.0)


@pytest.mark.timeout(30)
def test_slots_that_grow_are_asked_for_more_while_they_are_full(tmp_path: Path) -> None:
    slots = WatchedSlots(2, grows=True)
    jobs = [make_job(name) for name in names(4)]
    experiment = Experiment(tmp_path, jobs, lambda launch: Behaviour(after_s=10.0), slots=slots)
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert slots.asked == [False, True, True, True, True], "and not beyond the jobs at once"


def test_running_jobs_have_cpus_and_gpus_of_their_own(tmp_path: Path) -> None:
    jobs = [make_job(name, cores=2, gpus=1, threads=2) for name in names(6)]
    experiment = Experiment(tmp_path, jobs, cpus=4, gpus=2)
    experiment.run()
    for one, other in pairwise(experiment.fake.launches[:2]):
        assert not set(one.cpus) & set(other.cpus)
        assert not set(one.gpus) & set(other.gpus)
        assert one.threads == 2


def test_a_job_of_many_cores_is_not_starved_by_small_ones(tmp_path: Path) -> None:
    small = names(200)
    table = {name: Behaviour(after_s=1.0 + 0.01 * index) for index, name in enumerate(small)}
    jobs = [make_job(small[0]), make_job("big", cores=4), *(make_job(name) for name in small[1:])]
    experiment = Experiment(tmp_path, jobs, behaviours(table), cpus=4)
    experiment.run()
    assert 1 < experiment.order.index("big") < 40


def test_jobs_without_gpu_use_the_cores_while_others_wait_for_the_gpu(tmp_path: Path) -> None:
    jobs = [
        *(make_job(f"gpu{number}", gpus=1) for number in range(2)),
        *(make_job(name) for name in names(50)),
    ]
    table = {"gpu0": Behaviour(after_s=100.0)}
    experiment = Experiment(tmp_path, jobs, behaviours(table), cpus=2, gpus=1)
    experiment.run()
    assert experiment.order.index("gpu1") == 51
    assert experiment.fake.time_s == pytest.approx(101.0)


def test_a_job_that_no_idle_machine_can_hold_fails_instead_of_waiting_for_ever(
    tmp_path: Path,
) -> None:
    experiment = Experiment(tmp_path, [make_job("big", cores=99), make_job("a")])
    assert experiment.run() == {"big": "FAILED", "a": "SUCCEEDED"}
    assert "99 cores" in rows(tmp_path)["big"]["message"]


def test_a_job_that_no_idle_machine_can_hold_does_not_hold_up_others(tmp_path: Path) -> None:
    big = make_job("big", cores=99, memory_mib=700)
    jobs = [make_job("long"), big, *(make_job(name) for name in names(40))]
    experiment = Experiment(
        tmp_path,
        jobs,
        behaviours({"long": Behaviour(after_s=100.0)}),
        cpus=2,
        available_memory_mib=lambda: 500,
    )
    ended = experiment.run()
    assert ended.pop("big") == "FAILED"
    assert set(ended.values()) == {"SUCCEEDED"}
    assert experiment.fake.time_s == pytest.approx(100.0), "the others ran beside the long one"


@pytest.mark.timeout(30)
def test_a_job_that_waits_for_a_larger_node_does_not_hold_up_others(tmp_path: Path) -> None:
    slots = WatchedSlots(2, grows=True)
    jobs = [make_job("long"), make_job("big", cores=99), *(make_job(name) for name in names(40))]
    table = {"long": Behaviour(after_s=100.0)}
    experiment = Experiment(tmp_path, jobs, behaviours(table), slots=slots)
    experiment.reporter.each_turn = once(
        lambda _: experiment.fake.time_s > 1.0 and not experiment.fake.running,
        lambda: ask(tmp_path, ("cancel", "big")),
    )
    ended = experiment.run()
    assert ended.pop("big") == "CANCELLED"
    assert set(ended.values()) == {"SUCCEEDED"}
    assert experiment.fake.time_s == pytest.approx(100.0, abs=2.0), "beside the long one"
    said = [text for _, text, _ in experiment.reporter.events if "big waits" in text]
    assert len(said) == 1
    assert "for a node with room for 99 cores" in said[0]


def test_memory_delays_a_launch_until_there_is_room(tmp_path: Path) -> None:
    free = {"mib": 1000}
    jobs = [make_job(name, memory_mib=700) for name in names(3)]
    experiment = Experiment(tmp_path, jobs, cpus=3, available_memory_mib=lambda: free["mib"])
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert experiment.fake.time_s == pytest.approx(3.0)  # one after the other


def test_memory_that_a_running_job_already_holds_is_not_set_aside_twice(tmp_path: Path) -> None:
    jobs = [make_job(name, memory_mib=700) for name in names(2)]
    table = {"j0000": Behaviour(after_s=10.0, rss_mib=[(2.0, 690.0)])}
    experiment = Experiment(tmp_path, jobs, behaviours(table), available_memory_mib=lambda: 1000)
    experiment.run()
    assert experiment.fake.time_s == pytest.approx(10.0)
    assert rows(tmp_path)["j0000"]["max_rss_mib"] == 690.0


def test_a_warning_of_a_worker_is_reported_once_for_each_attempt(tmp_path: Path) -> None:
    warned = Progress(phase="training", warning="checkpoint-000000000512.pt is damaged")
    killed = Behaviour(after_s=10.0, progress_every_s=1.0, progress=warned, returncode=-9)
    silent = Behaviour(after_s=10.0, progress_every_s=1.0)
    table = {"a": [killed, killed, silent], "b": silent}
    experiment = Experiment(
        tmp_path, [make_job("a", max_retries=2), make_job("b")], behaviours(table)
    )
    assert experiment.run() == {"a": "SUCCEEDED", "b": "SUCCEEDED"}
    warnings = [
        (message, facts) for kind, message, facts in experiment.reporter.events if kind == "warning"
    ]
    assert warnings == [("a: checkpoint-000000000512.pt is damaged", {"job_id": "a"})] * 2


# -- limits


def test_a_job_over_its_memory_limit_is_killed_and_says_what_it_reached(tmp_path: Path) -> None:
    hog = Behaviour(after_s=NEVER, rss_mib=[(1.0, 50.0), (3.0, 333.0)], exits_within_s=NEVER)
    experiment = Experiment(tmp_path, [make_job("hog", max_retries=3)], behaviours({"hog": hog}))
    assert experiment.run() == {"hog": "FAILED"}
    assert experiment.fake.time_s == pytest.approx(3.0)
    assert rows(tmp_path)["hog"]["cause"] == "memory-limit"
    assert "100 MiB, reached 333 MiB" in rows(tmp_path)["hog"]["message"]
    assert len(experiment.order) == 1


def test_a_worker_that_was_killed_for_its_memory_and_outlives_that_is_reported(
    tmp_path: Path,
) -> None:
    stuck = Behaviour(after_s=NEVER, rss_mib=[(1.0, 333.0)], dies_within_s=100.0)
    experiment = Experiment(tmp_path, [make_job("stuck")], behaviours({"stuck": stuck}))
    assert experiment.run() == {"stuck": "FAILED"}
    assert "killed 30 s ago and has not ended" in experiment.reporter.messages()


def test_a_late_job_may_checkpoint_before_it_fails(tmp_path: Path) -> None:
    late = Behaviour(after_s=NEVER, progress_every_s=0.5, exits_within_s=2.0)
    experiment = Experiment(
        tmp_path, [make_job("late", timeout_s=60.0)], behaviours({"late": late}), grace_s=5.0
    )
    assert experiment.run() == {"late": "FAILED"}
    assert experiment.fake.time_s == pytest.approx(62.0, abs=1.0)
    assert rows(tmp_path)["late"]["cause"] == "timeout"


@pytest.mark.parametrize(("dies_within_s", "reports"), [(20.0, 0), (100.0, 1)])
def test_a_worker_that_outlives_its_kill_is_reported_once(
    dies_within_s: float, reports: int, tmp_path: Path
) -> None:
    stuck = Behaviour(after_s=NEVER, exits_within_s=NEVER, dies_within_s=dies_within_s)
    experiment = Experiment(
        tmp_path, [make_job("stuck", timeout_s=60.0)], behaviours({"stuck": stuck}), grace_s=5.0
    )
    assert experiment.run() == {"stuck": "FAILED"}
    said = experiment.reporter.messages().count("was killed 30 s ago and has not ended")
    assert said == reports


def test_a_late_job_that_does_not_listen_is_killed_when_the_grace_is_over(tmp_path: Path) -> None:
    deaf = Behaviour(after_s=NEVER, exits_within_s=NEVER)
    experiment = Experiment(
        tmp_path, [make_job("deaf", timeout_s=60.0)], behaviours({"deaf": deaf}), grace_s=5.0
    )
    assert experiment.run() == {"deaf": "FAILED"}
    assert experiment.fake.time_s == pytest.approx(65.0, abs=1.0)


def test_a_hung_job_is_killed_and_retried(tmp_path: Path) -> None:
    hung = Behaviour(after_s=NEVER, progress_every_s=1.0, hangs_after_s=30.0, exits_within_s=NEVER)
    jobs = [make_job("hung", stall_timeout_s=20.0, max_retries=1)]
    experiment = Experiment(tmp_path, jobs, behaviours({"hung": [hung, Behaviour()]}))
    assert experiment.run() == {"hung": "SUCCEEDED"}
    assert 50.0 < experiment.fake.time_s < 54.0
    assert "no progress for 20 s" in experiment.reporter.messages()


@dataclass(slots=True)
class PausedExecutor(FakeExecutor):
    """Its clock jumps once, as if supervisor and workers were stopped: at first nothing is heard."""

    pause_s: float = 0.0

    def poll(self, timeout_s: float) -> Sequence[Event]:
        if self.time_s > 50.0 and self.pause_s:
            self.time_s += self.pause_s
            self.pause_s = 0.0
            return []
        return FakeExecutor.poll(self, timeout_s)


def paused(folder: Path, job: Job, behaviour: Behaviour, pause_s: float) -> Experiment:
    """That a supervisor and a container with all of its processes were paused."""
    fake = PausedExecutor(behave=behaviours({job.job_id: behaviour}), pause_s=pause_s)
    return Experiment(folder, [job], executor=fake, now=fake.now)


def test_time_in_which_the_supervisor_was_stopped_itself_is_nobodys_silence(tmp_path: Path) -> None:
    job = make_job("a", stall_timeout_s=20.0, timeout_s=2000.0, max_retries=0)
    steady = Behaviour(after_s=5000.0, progress_every_s=1.0)
    experiment = paused(tmp_path, job, steady, 3600.0)
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert experiment.supervisor.now() > 3600.0
    assert rows(tmp_path)["a"]["attempts"] == 1


def test_one_that_hangs_after_a_pause_is_killed_as_soon_as_any_other(tmp_path: Path) -> None:
    job = make_job("hung", stall_timeout_s=20.0, max_retries=0)
    hung = Behaviour(after_s=NEVER, progress_every_s=1.0, hangs_after_s=45.0, exits_within_s=NEVER)
    experiment = paused(tmp_path, job, hung, 1000.0)
    assert experiment.run() == {"hung": "FAILED"}
    assert experiment.supervisor.now() == pytest.approx(1065.0, abs=2.0), (
        "5 s before it, 15 s after it"
    )


def test_progress_keeps_a_job_from_being_taken_for_hung(tmp_path: Path) -> None:
    slow = Behaviour(after_s=1000.0, progress_every_s=19.0)
    experiment = Experiment(
        tmp_path, [make_job("slow", stall_timeout_s=20.0)], behaviours({"slow": slow})
    )
    assert experiment.run() == {"slow": "SUCCEEDED"}


# -- retries


def test_a_killed_job_is_retried_with_growing_pauses_up_to_max_retries(tmp_path: Path) -> None:
    killed = Behaviour(after_s=1.0, returncode=-9)
    experiment = Experiment(tmp_path, [make_job("k", max_retries=3)], behaviours({"k": killed}))
    assert experiment.run() == {"k": "FAILED"}
    assert [launch.number for launch in experiment.fake.launches] == [0, 1, 2, 3]
    assert experiment.fake.time_s == pytest.approx(4 * 1.0 + 1.0 + 2.0 + 4.0, abs=0.01)
    assert experiment.reporter.kinds("k").count("retrying") == 3
    assert rows(tmp_path)["k"]["message"] == "killed by SIGKILL (after 3 retries)"
    assert rows(tmp_path)["k"]["attempts"] == 4


def test_a_job_whose_node_is_lost_again_and_again_goes_on_without_using_up_its_retries(
    tmp_path: Path,
) -> None:
    lost = Behaviour(after_s=1.0, returncode=None)
    table = {"k": [lost, lost, lost, Behaviour(after_s=1.0, returncode=-9), Behaviour(after_s=1.0)]}
    experiment = Experiment(tmp_path, [make_job("k", max_retries=1)], behaviours(table))
    assert experiment.run() == {"k": "SUCCEEDED"}
    assert experiment.fake.time_s == pytest.approx(5 * 1.0 + 1.0 + 2.0 + 4.0 + 1.0, abs=0.01)


def test_a_job_that_takes_its_node_along_every_time_is_given_up_at_last(tmp_path: Path) -> None:
    experiment = Experiment(
        tmp_path, [make_job("k", max_retries=1)], behaviours({"k": Behaviour(returncode=None)})
    )
    assert experiment.run() == {"k": "FAILED"}
    assert len(experiment.fake.launches) == retry_policy.MOST_LOSSES + 2


@dataclass(slots=True, kw_only=True)
class HandingBackExecutor(FakeExecutor):
    """Its pilots hand back what ends as interrupted."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        return [
            replace(event, lost="the time limit of its pilot is near")
            if isinstance(event, Exited) and event.returncode == ExitCode.INTERRUPTED
            else event
            for event in FakeExecutor.poll(self, timeout_s)
        ]


def test_what_a_pilot_hands_back_resumes_in_the_same_run_and_its_event_says_so(
    tmp_path: Path,
) -> None:
    table = {"k": [Behaviour(returncode=ExitCode.INTERRUPTED), Behaviour()]}
    fake = HandingBackExecutor(behave=behaviours(table))
    experiment = Experiment(
        tmp_path, [make_job("k")], executor=fake, now=fake.now, available_memory_mib=lambda: 1 << 20
    )
    assert experiment.run() == {"k": "SUCCEEDED"}
    messages = experiment.reporter.messages()
    assert "the time limit of its pilot is near" in messages
    assert "resumes in another pilot" in messages
    assert "next run" not in messages


def test_others_run_while_one_waits_to_be_retried(tmp_path: Path) -> None:
    table = {"k": [Behaviour(after_s=0.1, returncode=-9), Behaviour(after_s=0.1)]}
    jobs = [make_job("k", max_retries=1), *(make_job(name) for name in names(5))]
    experiment = Experiment(tmp_path, jobs, behaviours(table), cpus=1)
    experiment.run()
    assert experiment.order[:3] == [
        "k",
        "j0000",
        "k",
    ]  # due after the first, and then first in line


def test_a_retry_that_is_due_waits_for_a_lane_without_turning_all_the_time(tmp_path: Path) -> None:
    table = {
        "k": [Behaviour(after_s=0.1, returncode=-9), Behaviour()],
        "long": Behaviour(after_s=100.0),
    }
    experiment = Experiment(
        tmp_path, [make_job("k", max_retries=1), make_job("long")], behaviours(table), cpus=1
    )
    instants: list[float] = []
    experiment.reporter.each_turn = lambda view: instants.append(view.elapsed_s)
    assert experiment.run() == {"k": "SUCCEEDED", "long": "SUCCEEDED"}
    assert experiment.order == ["k", "long", "k"]
    assert max(Counter(instants).values()) < 5


def test_an_error_is_not_retried_and_the_others_go_on(tmp_path: Path) -> None:
    table = {"bad": Behaviour(returncode=1), "nan": Behaviour(returncode=int(ExitCode.DIVERGED))}
    jobs = [make_job("bad", max_retries=5), make_job("nan", max_retries=5), make_job("good")]
    experiment = Experiment(tmp_path, jobs, behaviours(table), cpus=1)
    assert experiment.run() == {"bad": "FAILED", "nan": "FAILED", "good": "SUCCEEDED"}
    assert experiment.order == ["bad", "nan", "good"]
    assert experiment.reporter.kinds("bad") == ["launched", "failed"]


def test_a_worker_that_always_leaves_unasked_does_not_go_round_for_ever(tmp_path: Path) -> None:
    leaver = Behaviour(returncode=int(ExitCode.INTERRUPTED))
    experiment = Experiment(tmp_path, [make_job("l", max_retries=2)], behaviours({"l": leaver}))
    assert experiment.run() == {"l": "FAILED"}
    assert len(experiment.order) == 3


def test_a_launch_that_fails_is_retried_and_its_slot_given_back(tmp_path: Path) -> None:
    def behave(launch: Launch) -> Behaviour:
        if launch.number < 2:
            raise OSError(11, "Resource temporarily unavailable")
        return Behaviour()

    experiment = Experiment(tmp_path, [make_job("a", max_retries=2)], behave, cpus=1)
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert [launch.number for launch in experiment.fake.launches] == [2]
    assert "could not be launched" in experiment.reporter.messages()


def test_ten_thousand_failing_launches_do_not_keep_a_stop_waiting(tmp_path: Path) -> None:
    def behave(launch: Launch) -> Behaviour:
        if launch.job_id == "j0010":
            experiment.supervisor.request_stop("SIGINT")
        raise OSError(2, "No such file or directory")

    experiment = Experiment(tmp_path, [make_job(name) for name in names(200)], behave)
    states = experiment.run()
    assert list(states.values()).count("PENDING") > 180
    assert experiment.supervisor.is_interrupted


# -- whatever else goes wrong


class Broken(Exception):
    """Something nobody thought of."""


@pytest.mark.parametrize(
    ("error", "raised"), [(Broken, SupervisorError), (KeyboardInterrupt, KeyboardInterrupt)]
)
def test_an_executor_that_fails_for_good_ends_all_workers_and_leaves_a_resumable_ledger(
    tmp_path: Path, error: type[BaseException], raised: type[BaseException]
) -> None:
    class Failing(FakeExecutor):
        closed = False

        def poll(self, timeout_s: float) -> Sequence[Event]:
            if self.time_s > 5:
                raise error
            return FakeExecutor.poll(self, timeout_s)

        def close(self) -> None:
            FakeExecutor.close(self)
            Failing.closed = True

    fake = Failing(
        behave=behaviours({"j0000": Behaviour(after_s=2.0)} | dict.fromkeys(names(6)[1:], FOREVER))
    )
    experiment = Experiment(
        tmp_path, [make_job(name) for name in names(6)], executor=fake, now=fake.now, grace_s=0.1
    )
    with pytest.raises(raised):
        experiment.run()
    assert Failing.closed
    assert fake.running == 0
    experiment.ledger.abandon()
    states = {row.job.job_id: row.state for row in Ledger.open(tmp_path / "ledger.sqlite3").jobs()}
    assert states["j0000"].name == "SUCCEEDED"
    assert all(
        isinstance(state, Pending | Running) for name, state in states.items() if name != "j0000"
    )


def test_a_reporter_whose_terminal_is_closed_ends_nothing(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in names(5)])

    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    experiment.reporter.event = gone  # type: ignore[method-assign]
    experiment.reporter.tick = gone  # type: ignore[method-assign]
    assert set(experiment.run().values()) == {"SUCCEEDED"}


def test_a_summary_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    experiment = Experiment(tmp_path, [make_job("a")])
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert "summary.json" in experiment.reporter.messages()


def test_events_of_strangers_are_ignored(tmp_path: Path) -> None:
    from orchestrator.executors.base import Exited, Progressed, Sampled

    stranger = Handle("nobody", 7)

    class Strange(FakeExecutor):
        def poll(self, timeout_s: float) -> Sequence[Event]:
            progress = Progressed(stranger, Progress(phase="training"))
            return [
                progress,
                Sampled(stranger, 1e9),
                Exited(stranger, 1),
                *FakeExecutor.poll(self, timeout_s),
            ]

    fake = Strange()
    experiment = Experiment(tmp_path, [make_job("a")], executor=fake, now=fake.now)
    assert experiment.run() == {"a": "SUCCEEDED"}


def test_a_wall_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(jumps) * 1e9 + 2e9)
    table = {
        "k": [Behaviour(returncode=-9), Behaviour()],
        "slow": Behaviour(after_s=50.0, progress_every_s=5.0),
    }
    jobs = [make_job("k", max_retries=1), make_job("slow", timeout_s=60.0, stall_timeout_s=20.0)]
    experiment = Experiment(tmp_path, jobs, behaviours(table))
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert experiment.fake.time_s == pytest.approx(50.0)
    assert rows(tmp_path)["slow"]["wall_s"] == pytest.approx(50.0)


# -- what is written


def test_the_summary_is_the_ledger_at_the_end(tmp_path: Path) -> None:
    progress = Progress(
        phase="training", env_steps=640, ep_rew_mean=2.5, env_steps_per_s=99.0, learner="sb3"
    )
    table = {
        "a": Behaviour(after_s=10.0, progress_every_s=1.0, progress=progress),
        "bad": Behaviour(returncode=1),
    }
    experiment = Experiment(
        tmp_path, [make_job("a"), make_job("bad"), make_job("c")], behaviours(table)
    )
    experiment.run()
    written = (tmp_path / "summary.json").read_text()
    assert written == summary.to_json(experiment.ledger.summary())
    row = rows(tmp_path)["a"]
    assert (row["state"], row["env_steps"], row["ep_rew_mean"], row["attempts"]) == (
        "SUCCEEDED",
        640,
        2.5,
        1,
    )
    assert len((tmp_path / "summary.csv").read_text().splitlines()) == 4


def test_progress_reaches_the_ledger_within_about_a_second(tmp_path: Path) -> None:
    progress = Progress(phase="training", env_steps=640)
    talker = Behaviour(after_s=10.0, progress_every_s=0.5, progress=progress)
    experiment = Experiment(tmp_path, [make_job("a")], behaviours({"a": talker}))
    seen: list[int] = []

    def look() -> None:
        other = Ledger.open(tmp_path / "ledger.sqlite3", read_only=True)
        seen.append(other.summary()[0]["env_steps"])
        other.abandon()

    experiment.reporter.each_turn = once(lambda view: view.elapsed_s >= 2.0, look)
    experiment.run()
    assert seen == [640]


def test_the_view_adds_up(tmp_path: Path) -> None:
    progress = Progress(phase="training", env_steps=400, env_steps_per_s=10.0)
    jobs = [make_job(name) for name in names(5)]
    experiment = Experiment(
        tmp_path,
        jobs,
        lambda launch: Behaviour(after_s=10.0, progress_every_s=1.0, progress=progress),
    )
    views: list[tuple[int, float, int]] = []
    experiment.reporter.each_turn = lambda view: views.append(
        (view.steps_to_go, view.env_steps_per_s, len(view.active))
    )
    experiment.run()
    assert (3 * 1000 + 2 * 600, 20.0, 2) in views
    assert views[-1] == (0, 0.0, 0)


def test_the_view_does_not_count_again_what_a_waiting_job_has_done(tmp_path: Path) -> None:
    said = Progress(phase="training", env_steps=400, env_steps_per_s=10.0)
    killed = Behaviour(after_s=5.0, returncode=-9, progress_every_s=1.0, progress=said)
    experiment = Experiment(
        tmp_path, [make_job("k", max_retries=1)], behaviours({"k": [killed, FOREVER]})
    )
    waiting: list[tuple[int, list[str]]] = []

    def each_turn(view: View) -> None:
        if view.counts["PENDING"]:
            waiting.append((view.steps_to_go, [job.job_id for job in view.next_up]))
        elif view.elapsed_s > 10:
            experiment.supervisor.request_stop("SIGINT")

    experiment.reporter.each_turn = each_turn
    experiment.run()
    experiment.ledger.close()
    again = Experiment(tmp_path, [])
    again.supervisor._jobs.load(again.supervisor.rows, {})
    assert set(map(str, waiting)) == {"(600, ['k'])"}
    assert again.supervisor._view().steps_to_go == 600


def test_whether_cores_are_free_is_known_while_jobs_run(tmp_path: Path) -> None:
    lengths = {"a": Behaviour(after_s=10.0), "b": Behaviour(after_s=20.0)}
    experiment = Experiment(tmp_path, [make_job("a"), make_job("b")], behaviours(lengths))
    seen: dict[int, set[bool | None]] = {}

    def each_turn(view: View) -> None:
        seen.setdefault(len(view.active), set()).add(experiment.supervisor.has_free_cores)

    experiment.reporter.each_turn = each_turn
    assert experiment.supervisor.has_free_cores is None
    experiment.run()
    assert seen == {2: {False}, 1: {True}, 0: {None}}


def test_the_view_names_the_last_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.supervisor.supervisor.VIEWED", 5)
    table = {"j0000": Behaviour(returncode=1)}
    experiment = Experiment(
        tmp_path, [make_job(name) for name in names(9)], behaviours(table), cpus=1
    )
    seen: list[list[tuple[str, str]]] = []
    experiment.reporter.each_turn = lambda view: seen.append(
        [(attempt.job.job_id, state.name) for attempt, state in view.ended]
    )
    experiment.run()
    assert [("j0000", "FAILED")] in seen
    assert seen[-1] == [(name, "SUCCEEDED") for name in names(9)[-5:]]


@pytest.mark.parametrize(
    ("states", "interrupted", "code"),
    [
        ([], False, 0),
        (["S", "S"], False, 0),
        (["S", "F"], False, 1),
        (["S", "C"], False, 1),
        (["S", "P"], True, 130),
        (["F", "P"], True, 130),
        (["S", "S"], True, 0),
        (["S", "F"], True, 1),
    ],
)
def test_exit_code(states: list[str], interrupted: bool, code: int) -> None:
    from orchestrator.core.job import Cancelled, Cause, State, Succeeded

    table: dict[str, State] = {
        "S": Succeeded(),
        "F": Failed(cause=Cause.ERROR, message=""),
        "C": Cancelled(),
        "P": Pending(),
    }
    assert (
        exit_code({str(n): table[s] for n, s in enumerate(states)}, interrupted=interrupted) == code
    )


# -- thousands of jobs


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.nightly)
        for kind in ("head does not fit", "alike", "held back")
    ],
)
def test_a_turn_costs_the_same_however_many_jobs_wait(tmp_path: Path, kind: str) -> None:
    """Counted in Python function calls of the loop, which a busy machine does not change."""
    assert calls_for_100_ends(tmp_path / "many", 1_000, kind) < 1.2 * calls_for_100_ends(
        tmp_path / "few", 200, kind
    )


def calls_for_100_ends(root: Path, count: int, kind: str) -> int:
    root.mkdir()
    many = names(count)
    jobs = [make_job("long", gpus=1), *(make_job(name, max_retries=1) for name in many)]
    if kind == "head does not fit":
        jobs[1:1] = [make_job(f"gpu{number}", gpus=1) for number in range(count)]
    table: dict[str, Behaviour | list[Behaviour]] = {"long": Behaviour(after_s=1e5)}
    if kind == "held back":
        table |= {name: [Behaviour(returncode=-9), Behaviour()] for name in many}
    experiment = Experiment(root, jobs, behaviours(table), cpus=4, gpus=1)
    profile = cProfile.Profile()

    def each_turn(view: View) -> None:
        ends = len(experiment.fake.launches) - len(view.active)
        if ends >= 150:
            profile.disable()
            experiment.supervisor.request_stop("enough")
        elif ends >= 50:
            profile.enable()

    # Its cost is bounded by a share of time instead.
    experiment.supervisor._recorder._summary.wait(1e9)
    experiment.reporter.each_turn = each_turn
    experiment.run()
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


def test_processes_beside_it_are_looked_after_on_every_turn_and_waited_for(tmp_path: Path) -> None:
    looks: list[int] = []
    experiment = Experiment(
        tmp_path,
        [],
        before_turn=lambda: looks.append(len(looks)),
        may_add_jobs=lambda: len(looks) < 3,
    )
    assert experiment.run() == {}
    assert looks == [0, 1, 2]


def test_processes_beside_it_are_not_started_again_once_a_stop_is_requested(tmp_path: Path) -> None:
    looks: list[bool] = []
    experiment = Experiment(
        tmp_path,
        [make_job("a")],
        lambda launch: Behaviour(after_s=10.0),
        before_turn=lambda: looks.append(experiment.supervisor.is_stopping),
    )
    experiment.reporter.each_turn = once(
        lambda view: view.elapsed_s > 5, lambda: experiment.supervisor.request_stop("enough")
    )
    experiment.run()
    assert looks
    assert not any(looks)
