"""Jobs of several ranks under a supervisor: what they are given, what is said of their ends, what a
next one finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from executor_helpers import await_files, await_gone
from fake_launcher import NEVER, Behaviour
from supervisor_helpers import (
    Run,
    behaviours,
    make_job,
    make_machine,
)

from orchestrator.client import worker_logs
from orchestrator.core.errors import ChangedError, UsageError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import Job, Pending
from orchestrator.core.paths import AttemptPaths, RunPaths
from orchestrator.executors.executor import ExecutorSettings
from orchestrator.executors.local import LocalExecutor
from orchestrator.executors.processes import Processes
from orchestrator.server import leftovers

REPOSITORY = Path(__file__).parents[2]


RANK = """
import json, os, signal, sys, time
from pathlib import Path
job, number, rank = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["RANK"])
attempt = job / "attempts" / str(number)
assert not (attempt / "rendezvous").exists()
def leave(code, message=""):
    name = f"rank-{rank}.exit.json" if rank else "exit.json"
    (attempt / name).write_text(json.dumps({"code": code, "message": message, "env_steps": 640}))
    os._exit(code)
"""


def worker(does: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", RANK + does)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs one job of three ranks, which are ``does``, to its end. Returns its row and what was
    told."""
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)  # whatever this machine has

    def go(does: str, *, max_retries: int = 0) -> tuple[dict[str, Any], Run]:
        executor = Processes(worker_command=worker(does))
        job = make_job("a", ranks=3, max_retries=max_retries)
        experiment = Run(tmp_path, [job], cpus=4, launcher=executor, now=time.monotonic)
        experiment.go()
        (row,) = json.loads((tmp_path / "summary.json").read_text())
        return row, experiment

    return go


@pytest.mark.nightly
def test_a_job_of_ranks_takes_one_lane_and_cpus_for_all(tmp_path: Path) -> None:
    jobs = [make_job(name, ranks=2, cores=2, gpus=1, threads=2) for name in "abc"]
    experiment = Run(tmp_path, jobs, cpus=8, gpus=4)
    assert set(experiment.go().values()) == {"SUCCEEDED"}
    first, second = experiment.fake.launches[:2]
    assert (first.ranks, first.cpus, first.gpus, first.threads) == (2, (0, 1, 2, 3), ("0", "1"), 2)
    assert (second.cpus, second.gpus) == ((4, 5, 6, 7), ("2", "3"))
    assert 2.0 <= experiment.fake.time_s < 3.0, "two at a time"
    assert "a launched as 2 ranks on CPU 0,1 | 2,3" in experiment.messages()


@pytest.mark.nightly
def test_memory_that_all_ranks_may_claim_admits_or_delays(tmp_path: Path) -> None:
    jobs = [make_job(name, ranks=2, memory_mib=100) for name in "ab"]
    experiment = Run(tmp_path, jobs, cpus=4, memory_mib=399)
    experiment.go()
    assert 2.0 <= experiment.fake.time_s < 3.0, "the second waits for the first"


@pytest.mark.nightly
def test_more_ranks_than_a_machine_has_cores_for_are_given_up_not_waited_for(
    tmp_path: Path,
) -> None:
    experiment = Run(tmp_path, [make_job("a", ranks=3, cores=2), make_job("b")], cpus=4)
    assert experiment.go() == {"a": "FAILED", "b": "SUCCEEDED"}
    assert "asks for 6 cores, 0 GPUs" in experiment.messages()


@pytest.mark.nightly
def test_a_job_whose_ranks_ask_for_more_than_the_machine_has_is_refused_before_anything_runs() -> (
    None
):
    here = LocalExecutor(ExecutorSettings(machine=make_machine(4, gpus=1)))
    assert not here.problems(make_job("a", ranks=4, memory_mib=1 << 18))
    problems = here.problems(make_job("a", ranks=3, cores=2, gpus=1, memory_mib=1 << 19))
    assert [(problem.where, problem.message) for problem in problems] == [
        (
            "jobs[0].resources.ranks",
            "asks for 2 cores for each of 3 ranks; this machine can give a job 4 (see `doctor`)",
        ),
        (
            "jobs[0].resources.memory",
            "asks for 524288 MiB for each of 3 ranks; this machine has 1048576 MiB (see `doctor`)",
        ),
        (
            "jobs[0].resources.gpus",
            "asks for 1 GPU for each of 3 ranks; this machine has 1 (see `doctor`)",
        ),
    ]


@pytest.mark.nightly
def test_the_error_of_a_rank_is_the_jobs_and_names_it(run: Any) -> None:
    row, reporter = run('leave(1, "ValueError: odd") if rank == 2 else time.sleep(600)')
    assert (row["state"], row["cause"], row["message"]) == (
        "FAILED",
        "error",
        "rank 2: ValueError: odd",
    )
    assert "a failed: rank 2: ValueError: odd" in reporter.messages()


def test_a_killed_rank_takes_all_into_the_next_attempt(run: Any) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(600)"
    row, reporter = run(f"leave(0) if number else {kill}", max_retries=1)
    assert (row["state"], row["attempts"]) == ("SUCCEEDED", 2)
    assert "a rank 1 was killed by SIGKILL; retry 1 of 1" in reporter.messages()


@pytest.mark.nightly
def test_ranks_that_lost_each_other_are_retried(run: Any) -> None:
    lost = f'leave({int(ExitCode.RANK_LOST)}, "rank 0 of 3 has lost the others") if rank == 0 else time.sleep(600)'
    row, reporter = run(f"leave(0) if number else {lost}", max_retries=1)
    assert (row["state"], row["attempts"]) == ("SUCCEEDED", 2)
    assert "a rank 0 of 3 has lost the others; retry 1 of 1" in reporter.messages()


@pytest.mark.nightly
def test_ranks_that_pause_at_a_rung_are_waited_for_and_the_first_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    does = f"time.sleep(0.2 * (rank == 0)); leave({int(ExitCode.PAUSED)}, f'of rank {{rank}}')"
    job = make_job("a", ranks=3, spec={"pause_at": 600})
    executor = Processes(worker_command=worker(does))
    experiment = Run(tmp_path, [job], cpus=4, launcher=executor, now=time.monotonic)
    assert experiment.go() == {"a": "PAUSED"}
    (attempt,) = experiment.ledger.attempts()
    assert (attempt["cause"], attempt["message"]) == ("rung", "of rank 0")


@pytest.mark.nightly
def test_a_stop_asks_all_and_leaves_the_job_to_be_resumed(tmp_path: Path) -> None:
    patient = Behaviour(after_s=NEVER, exits_within_s=1.0)
    experiment = Run(tmp_path, [make_job("a", ranks=2)], behaviours({"a": patient}))
    supervisor = experiment.supervisor
    supervisor.reason_to_stop = lambda: "test" if len(supervisor.attempts) else ""
    assert experiment.go() == {"a": "PENDING"}
    assert "failed" not in experiment.kinds("a")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("codes", "said_by", "code"),
    [
        ([0, 0, 0], 0, 0),
        ([0, None, None], 0, 0),
        ([None, None, None], 0, None),
        ([14, 1, 14], 1, 1),
        ([None, 10, 14], 1, 10),
        ([0, 0, 1], 2, 1),
        ([11, 11, 11], 0, 11),
        ([None, None, 14], 0, None),
    ],
)
def test_of_an_attempt_that_nobody_saw_end_the_rank_that_failed_has_the_word(
    tmp_path: Path, codes: list[int | None], said_by: int, code: int | None
) -> None:
    attempt = AttemptPaths(tmp_path)
    for rank, recorded in enumerate(codes):
        if recorded is not None:
            attempt.exit_of(rank).write_text(ExitRecord(code=recorded, message="").to_json())
    rank, record = leftovers.decisive_record(attempt, len(codes))
    assert rank == said_by
    assert (record.code if record else None) == code


def settled(experiment: Run, job: Job) -> Any:
    """The state that a next supervisor gives a job that it finds RUNNING."""
    answer = experiment.enter([job], {})
    if answer.error:
        raise ChangedError(answer.error)
    (row,) = experiment.ledger.jobs()
    return row.state


@pytest.mark.nightly
def test_the_error_of_a_rank_is_taken_over_by_the_next_supervisor(tmp_path: Path) -> None:
    job = make_job("a", ranks=2)
    experiment = Run(tmp_path, [job])
    experiment.begin("a", cpus=(0, 1))
    folder = experiment.paths.job("a").attempt(0)
    folder.root.mkdir(parents=True)
    folder.exit_of(1).write_text(ExitRecord(code=10, message="hip: NaN").to_json())
    state = settled(experiment, job)
    assert (state.name, state.message) == ("FAILED", "rank 1: hip: NaN")


SUPERVISOR = """
import sys
sys.path[:0] = [*sys.argv[1:3], f"{sys.argv[1]}/tests/ranks"]
import os, time
from pathlib import Path
from supervisor_helpers import Run, make_job
from test_ranks_supervised import worker
from orchestrator.executors.processes import Processes
os.sched_setaffinity = lambda *_: None
does = "(job / f'pid-{rank}.tmp').write_text(str(os.getpid())); "
does += "(job / f'pid-{rank}.tmp').rename(job / f'pid-{rank}'); time.sleep(600)"
executor = Processes(worker_command=worker(does))
Run(Path(sys.argv[3]), [make_job("a", ranks=3)], cpus=4, launcher=executor, now=time.monotonic).go()
"""


@pytest.mark.nightly
def test_a_supervisor_that_is_killed_leaves_no_rank_and_a_job_to_be_resumed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        SUPERVISOR,
        str(REPOSITORY),
        str(REPOSITORY / "tests/helpers"),
        str(tmp_path),
    ]
    with subprocess.Popen(command) as supervisor:
        ranks = [
            int(text)
            for text in await_files(*(tmp_path / f"jobs/a/pid-{rank}" for rank in range(3)))
        ]
        os.kill(supervisor.pid, signal.SIGKILL)
        supervisor.wait()
    await_gone(ranks)
    experiment = Run(tmp_path, [make_job("a", ranks=3)], cpus=4)
    assert isinstance(settled(experiment, make_job("a", ranks=3)), Pending)


@pytest.mark.nightly
def test_the_log_of_any_rank_can_be_had(tmp_path: Path) -> None:
    experiment = Run(tmp_path, [make_job("a", ranks=2), make_job("b")])
    experiment.go()
    for job_id in "ab":
        attempt = RunPaths(tmp_path).job(job_id).attempt(0)
        for rank in range(2):
            attempt.log_of(rank).write_text(f"I am rank {rank}\n")

    def text(job: str, rank: int) -> str:
        return "".join(
            worker_logs.log(tmp_path, job, follow=False, lines=0, attempt=None, rank=rank)
        )

    assert [text("a", 0), text("a", 1), text("b", 0)] == [
        "I am rank 0\n",
        "I am rank 1\n",
        "I am rank 0\n",
    ]
    with pytest.raises(UsageError, match="a has 2 ranks, numbered from 0; there is no rank 2"):
        text("a", 2)
    with pytest.raises(UsageError, match="b has 1 rank, numbered from 0; there is no rank 1"):
        text("b", 1)


@pytest.mark.nightly
def test_a_job_whose_number_of_ranks_changed_is_refused_with_the_difference(tmp_path: Path) -> None:
    before = Run(tmp_path, [make_job("a", ranks=2)], cpus=4)
    before.go()
    after = make_job("a", ranks=4)
    with pytest.raises(ChangedError, match=r"resources\.ranks: 2 → 4"):
        settled(before, after)
