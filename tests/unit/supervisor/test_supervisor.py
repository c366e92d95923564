"""The loop, over a fake executor and a simulated clock: hours pass in milliseconds, and nothing is
left to chance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from supervisor_helpers import (
    FOREVER,
    Experiment,
    behaviours,
    ledgers_closed,  # noqa: F401 - a fixture
    make_job,
    names,
    once,
    rows,
)

from orchestrator.core.errors import SupervisorError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Failed, Job, Pending, Running
from orchestrator.core.messages import Progress
from orchestrator.executors.base import Event, Launch
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.ledger import Ledger, summary
from orchestrator.supervisor.retry_policy import exit_code

# -- events


# -- launching


def test_jobs_are_launched_in_order_and_never_more_than_run_at_once(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, [make_job(name) for name in names(20)], cpus=3)
    most = []
    experiment.reporter.each_turn = lambda view: most.append(experiment.fake.running)
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert experiment.order == names(20)
    assert max(most) == 3
    assert experiment.fake.time_s == pytest.approx(7.0)


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


def test_a_job_that_no_idle_machine_can_hold_fails_instead_of_waiting_for_ever(
    tmp_path: Path,
) -> None:
    experiment = Experiment(tmp_path, [make_job("big", cores=99), make_job("a")])
    assert experiment.run() == {"big": "FAILED", "a": "SUCCEEDED"}
    assert "99 cores" in rows(tmp_path)["big"]["message"]


def test_memory_delays_a_launch_until_there_is_room(tmp_path: Path) -> None:
    free = {"mib": 1000}
    jobs = [make_job(name, memory_mib=700) for name in names(3)]
    experiment = Experiment(tmp_path, jobs, cpus=3, available_memory_mib=lambda: free["mib"])
    assert set(experiment.run().values()) == {"SUCCEEDED"}
    assert experiment.fake.time_s == pytest.approx(3.0)  # one after the other


# -- limits


def test_a_job_over_its_memory_limit_is_killed_and_says_what_it_reached(tmp_path: Path) -> None:
    hog = Behaviour(after_s=NEVER, rss_mib=[(1.0, 50.0), (3.0, 333.0)], exits_within_s=NEVER)
    experiment = Experiment(tmp_path, [make_job("hog", max_retries=3)], behaviours({"hog": hog}))
    assert experiment.run() == {"hog": "FAILED"}
    assert experiment.fake.time_s == pytest.approx(3.0)
    assert rows(tmp_path)["hog"]["cause"] == "memory-limit"
    assert len(experiment.order) == 1


def test_a_late_job_may_checkpoint_before_it_fails(tmp_path: Path) -> None:
    late = Behaviour(after_s=NEVER, progress_every_s=0.5, exits_within_s=2.0)
    experiment = Experiment(
        tmp_path, [make_job("late", timeout_s=60.0)], behaviours({"late": late}), grace_s=5.0
    )
    assert experiment.run() == {"late": "FAILED"}
    assert experiment.fake.time_s == pytest.approx(62.0, abs=1.0)
    assert rows(tmp_path)["late"]["cause"] == "timeout"


@pytest.mark.parametrize(
    ("dies_within_s", "reports"),
    [
        (100.0, 1),
    ],
)
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
    steady = Behaviour(after_s=3750.0, progress_every_s=1.0)
    experiment = paused(tmp_path, job, steady, 3600.0)
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert experiment.supervisor.now() > 3600.0
    assert rows(tmp_path)["a"]["attempts"] == 1


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


def test_an_error_is_not_retried_and_the_others_go_on(tmp_path: Path) -> None:
    table = {"bad": Behaviour(returncode=1), "nan": Behaviour(returncode=int(ExitCode.DIVERGED))}
    jobs = [make_job("bad", max_retries=5), make_job("nan", max_retries=5), make_job("good")]
    experiment = Experiment(tmp_path, jobs, behaviours(table), cpus=1)
    assert experiment.run() == {"bad": "FAILED", "nan": "FAILED", "good": "SUCCEEDED"}
    assert experiment.order == ["bad", "nan", "good"]
    assert experiment.reporter.kinds("bad") == ["launched", "failed"]


def test_a_launch_that_fails_is_retried_and_its_slot_given_back(tmp_path: Path) -> None:
    def behave(launch: Launch) -> Behaviour:
        if launch.number < 2:
            raise OSError(11, "Resource temporarily unavailable")
        return Behaviour()

    experiment = Experiment(tmp_path, [make_job("a", max_retries=2)], behave, cpus=1)
    assert experiment.run() == {"a": "SUCCEEDED"}
    assert [launch.number for launch in experiment.fake.launches] == [2]


# -- whatever else goes wrong


class Broken(Exception):
    """Something nobody thought of."""


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (Broken, SupervisorError),
    ],
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
