"""``TrainingPool``: futures of trainings, and what becomes of them however pool, program or
supervisor end."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import command_helpers as commands
import numpy as np
import psutil
import pytest
from command_helpers import HOPPER, INSTANT, STUBS, wait_until

import orchestrator
from orchestrator import report
from orchestrator.core.errors import SupervisorError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment import run_end, run_index
from orchestrator.features.pool import pool_supervisor
from orchestrator.features.pool.pool_jobs import TrainingFuture
from orchestrator.machine import provenance

NEARNESS = "-abs(json.loads((job / 'spec.json').read_text())['hyperparameters']['gamma'] - 0.95)}"
"""The return of an instant training, which depends on a setting."""
EXAMINATION = """
import contextlib
from orchestrator.core.errors import Problem
from orchestrator.examination import examining_process, preflight
from orchestrator.examination.preflight import JobVerdict

problem = Problem(where="jobs[0]", message="has no legs")
refused = {
    "bad": JobVerdict(problem=problem),
    "wrong": JobVerdict(problem=problem, settings_problem="no such option"),
}
preflight.examine = lambda jobs, **_: {
    job.job_id: refused.get(job.spec.name, JobVerdict()) for job in jobs
}
examining_process.Child = contextlib.nullcontext
"""
"""The job ``bad`` has a bad robot, and ``wrong`` wrong settings."""
EXEC = {"resources": {"start": "exec", "min_free_disk": 0}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is examined, and workers succeed when there is a file ``go-JOB`` beside the run
    directory."""
    commands.add_to_server(monkeypatch, EXAMINATION)
    commands.stub_workers(monkeypatch)


def running(future: TrainingFuture) -> None:
    wait_until(future.running, "the training runs")


def supervisor_of_this_process() -> psutil.Process:
    children = psutil.Process().children()
    (found,) = (one for one in children if "orchestrator.server" in " ".join(one.cmdline()))
    return found


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Neither processes, nor threads, nor open files of the block are left after it."""
    gc.collect()
    before = (
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        psutil.Process().children(recursive=True),
    )
    yield
    gc.collect()
    after = (
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        psutil.Process().children(recursive=True),
    )
    assert after == before


@pytest.mark.usefixtures("stubs")
def test_futures_end_one_by_one_as_trainings_do_and_can_be_cancelled(here: Path) -> None:
    with nothing_left(), orchestrator.TrainingPool(max_parallel=2, run_dir="run", **EXEC) as pool:
        slow, fast, twin = (pool.submit(HOPPER, name=name) for name in ("slow", "fast", "fast"))
        running(slow)
        running(fast)
        bad, waiting, last = (pool.submit(HOPPER, name=name) for name in ("bad", "waiting", "last"))
        failed = bad.result(commands.PATIENCE_S)
        assert (failed.ok, failed.error, failed.state) == (False, "has no legs", "FAILED")
        assert waiting.cancel()
        completed = futures.as_completed([slow, fast, last], commands.PATIENCE_S)
        for name, future in (("fast", fast), ("last", last), ("slow", slow)):
            (here / f"go-{name}-s0").touch()
            assert next(completed) is future
            assert future.result().job_id == f"{name}-s0"
            assert not future.cancel()
        assert twin.result().job_dir == fast.result().job_dir

        endless = pool.submit(HOPPER, name="endless")
        running(endless)
        assert endless.cancel()
        assert futures.wait([endless, waiting], commands.PATIENCE_S).not_done == set()
        with pytest.raises(futures.CancelledError):
            endless.result()

        (here / "go-child-s1").touch()
        child = pool.submit(HOPPER.read_text(), name="child", seed=1, init=fast.result()).result(
            commands.PATIENCE_S
        )
        assert (child.ok, child.xml, child.seed, child.job_dir) == (
            True,
            None,
            1,
            here / "run/jobs/child-s1",
        )
        assert child.parent == "fast-s0"
        spec = WorkerSpec.from_json((child.job_dir / "spec.json").read_text())
        assert spec.init == str(fast.result().job_dir)
        assert not spec.preview, "a pool that is closed does not wait for pictures"
        with pytest.raises(UsageError):
            pool.submit(HOPPER, name="wrong").result(commands.PATIENCE_S)
        for xml, settings in (
            (HOPPER, {"n_env": 2}),
            (HOPPER, {"seed": -1}),
            (HOPPER, {"init": failed}),
            (HOPPER, {"after": ["fast"]}),
            (HOPPER.parent, {}),
            ("bodies:make", {"params": {"legs": 4}}),
        ):
            with pytest.raises(UsageError):
                pool.submit(xml, **settings)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        pool.submit(HOPPER)
    with pytest.raises(UsageError):
        orchestrator.TrainingPool(generation=3)
    states = {job_id: row["state"] for job_id, row in commands.summary(here / "run").items()}
    trained = dict.fromkeys(("slow-s0", "fast-s0", "last-s0", "child-s1"), "SUCCEEDED")
    assert states == {**trained, "bad-s0": "FAILED", "endless-s0": "CANCELLED"} | (
        {"waiting-s0": "CANCELLED"} if "waiting-s0" in states else {}
    )


@pytest.mark.usefixtures("stubs")
def test_when_its_supervisor_is_killed_every_future_says_what_to_do(here: Path) -> None:
    with nothing_left(), orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        first, second = pool.submit(HOPPER, name="first"), pool.submit(HOPPER, name="second")
        running(first)
        supervisor_of_this_process().kill()
        for future in (first, second):
            with pytest.raises(SupervisorError, match=f"run_dir='{here}/run'"):
                future.result(commands.PATIENCE_S)
        with pytest.raises(SupervisorError):
            pool.submit(HOPPER, name="third")


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_results_come_in_the_order_of_submission_and_those_that_are_cancelled_are_left_out(
    here: Path,
) -> None:
    for name in ("second", "third"):
        (here / f"go-{name}-s0").touch()
    with nothing_left(), orchestrator.TrainingPool(max_parallel=2, run_dir="run", **EXEC) as pool:
        first, second = (pool.submit(HOPPER, name=name) for name in ("first", "second"))
        assert second.result(commands.PATIENCE_S).ok
        in_order = pool.as_submitted()
        with pytest.raises(TimeoutError):
            next(pool.as_submitted(timeout=0))
        (here / "go-first-s0").touch()
        assert next(in_order) is first
        assert next(in_order) is second
        gone = pool.submit(HOPPER, name="gone")
        assert gone.cancel()
        bad, third = pool.submit(HOPPER, name="bad"), pool.submit(HOPPER, name="third")
        assert list(in_order) == [gone, bad, third]
        results = pool.results(commands.PATIENCE_S)
        assert [result.job_id for result in results] == [
            "first-s0",
            "second-s0",
            "bad-s0",
            "third-s0",
        ]
        assert results.run_dir == here / "run"
    assert not (here / "run/jobs/gone-s0/started").exists()


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_what_a_program_says_of_its_robots_is_in_results_summary_and_report(here: Path) -> None:
    for name in ("one", "two"):
        (here / f"go-{name}-s0").touch()
    said = {"generation": np.int64(1), "parent": "adam", "is_mutant": True, "distance": None}
    with nothing_left(), orchestrator.TrainingPool(max_parallel=2, run_dir="run", **EXEC) as pool:
        for bad in ([3], {"genes": [1, 2]}, {"score": float("nan")}):
            with pytest.raises(UsageError):
                pool.submit(HOPPER, meta=bad)  # type: ignore[arg-type]
        one = pool.submit(HOPPER, name="one", meta=said, ppo={"gamma": np.float32(0.5)})
        pool.submit(HOPPER, name="two", meta={"generation": 2}, ppo={"gamma": 0.75})
        table = pool.results(commands.PATIENCE_S).to_dataframe()
    assert one.result().meta == {**said, "generation": 1}
    assert table["meta.generation"].tolist() == [1, 2]
    rows = commands.summary(here / "run")
    columns = ("meta.generation", "meta.parent", "meta.is_mutant", "meta.distance", "ppo.gamma")
    assert [rows["one-s0"][name] for name in columns] == [1, "adam", True, None, 0.5]
    assert [rows["two-s0"][name] for name in columns] == [2, None, None, None, 0.75]
    page = report.compose(here / "run")
    assert [job["point"]["ppo.gamma"] for job in page.numbers["jobs"]] == [0.5, 0.75]


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_another_robot_or_start_under_the_name_of_a_job_that_trains_is_refused(here: Path) -> None:
    bodies = [HOPPER.read_text(), HOPPER.read_text().replace("<mujoco", "<!-- --><mujoco", 1)]
    (here / "go-first-s0").touch()
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        start = pool.submit(HOPPER, name="first").result(commands.PATIENCE_S)
        begun = pool.submit(bodies[0], name="body")
        running(begun)
        same = pool.submit(bodies[0], name="body")
        others = [
            pool.submit(bodies[1], name="body"),
            pool.submit(bodies[0], name="body", init=start),
        ]
        for other in others:
            with pytest.raises(orchestrator.ChangedError):
                other.result(commands.PATIENCE_S)
        assert not same.done()
        (here / "go-body-s0").touch()
        assert begun.result(commands.PATIENCE_S).job_id == same.result(commands.PATIENCE_S).job_id


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_a_file_that_is_written_again_before_its_training_is_not_trained_in_silence(
    here: Path,
) -> None:
    robot, policy = here / "robot.xml", here / "policy.zip"
    robot.write_text(HOPPER.read_text())
    policy.write_bytes(b"first")
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        begun = pool.submit(robot, name="begun")
        running(begun)
        names = ("next", "rewritten", "same", "started")
        _, rewritten, same, started = (
            pool.submit(xml, name=name, init=init)
            for name, xml, init in zip(
                names,
                (HOPPER, robot, HOPPER, HOPPER.read_text()),
                (None, None, None, policy),
                strict=True,
            )
        )
        robot.write_text(HOPPER.read_text().replace("<mujoco", "<!-- --><mujoco", 1))
        policy.write_bytes(b"second")
        for name in ("begun", *names):
            (here / f"go-{name}-s0").touch()
        assert begun.result(commands.PATIENCE_S).ok
        assert same.result(commands.PATIENCE_S).ok
        for future, file in ((rewritten, robot), (started, policy)):
            with pytest.raises(UsageError, match=str(file)):
                future.result(commands.PATIENCE_S)
    assert not (here / "run/jobs/rewritten-s0").exists()


def ended(run_dir: Path) -> tuple[str, int]:
    """What `list` says of a run directory, and the exit code of its last run."""
    entry = run_index.RunEntry(run_dir=str(run_dir), name="run", host="here", noted_at=0.0)
    end = run_end.read(RunPaths(run_dir))
    assert end is not None
    return run_index.listed_run(entry).state, end.exit_code


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_a_pool_that_ends_without_a_job_of_an_earlier_one_has_ended_and_a_later_one_resumes_it(
    here: Path,
) -> None:
    def pool() -> orchestrator.TrainingPool:
        return orchestrator.TrainingPool(max_parallel=2, run_dir="run", **EXEC)

    (here / "go-done-s0").touch()
    with pytest.raises(ValueError, match="mine"), pool() as first:  # noqa: PT012
        done, *begun = (first.submit(HOPPER, name=name) for name in ("done", "old", "other"))
        assert done.result(commands.PATIENCE_S).ok
        for future in begun:
            running(future)
        raise ValueError("mine")
    assert ended(here / "run") == ("interrupted", 130)
    with nothing_left(), pool() as second:
        assert second.submit(HOPPER, name="done").result(commands.PATIENCE_S).ok
    rows = commands.summary(here / "run")
    assert {job_id: (row["state"], row["cause"]) for job_id, row in rows.items()} == {
        "done-s0": ("SUCCEEDED", None),
        "old-s0": ("CANCELLED", "undeclared"),
        "other-s0": ("CANCELLED", "undeclared"),
    }
    assert ended(here / "run") == ("finished", 0)

    with pytest.raises(ValueError, match="mine"), pool() as third:  # noqa: PT012
        old = third.submit(HOPPER, name="old")
        running(old)
        raise ValueError("mine")
    assert ended(here / "run")[1] == 130, "it has not ended normally"
    (here / "go-old-s0").touch()
    with nothing_left(), pool() as fourth:
        assert fourth.submit(HOPPER, name="old").result(commands.PATIENCE_S).ok
    rows = commands.summary(here / "run")
    assert (rows["old-s0"]["state"], rows["old-s0"]["attempts"]) == ("SUCCEEDED", 3)
    assert rows["other-s0"]["state"] == "CANCELLED"
    assert ended(here / "run") == ("finished", 0)


def evolve(
    pool: orchestrator.TrainingPool, bodies: list[str], *, most: int
) -> list[tuple[str, float]]:
    """The loop of the documentation, with a gene in place of a body. Returns the genes by name."""
    chance = random.Random(5)
    genes = dict[futures.Future[orchestrator.Result], float]()
    submitted = list[tuple[str, float]]()

    def submit(gene: float) -> None:
        future = pool.submit(bodies[len(submitted)], name=f"b{len(submitted)}", ppo={"gamma": gene})
        genes[future] = gene
        submitted.append((f"b{len(submitted)}", gene))

    for _ in range(4):
        submit(chance.uniform(0.8, 0.9))
    best, fitness = 0.0, -1.0
    for future in pool.as_submitted():
        if (reached := future.result().fitness()) > fitness:
            best, fitness = genes[future], reached
        if len(submitted) < most:
            submit(min(0.99, best + chance.gauss(0, 0.01)))
    return submitted


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_an_asynchronous_loop_that_resumes_submits_the_same_robots(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = instant_bodies(here, monkeypatch, 12)
    (here / "instant.py").write_text(INSTANT.replace("1.0}", NEARNESS))
    with orchestrator.TrainingPool(max_parallel=2, run_dir="undisturbed", **EXEC) as pool:
        undisturbed = evolve(pool, bodies, most=12)
    with orchestrator.TrainingPool(max_parallel=2, run_dir="run", **EXEC) as pool:
        evolve(pool, bodies, most=7)  # as far as it came
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        assert evolve(pool, bodies, most=12) == undisturbed
        assert [result.job_id for result in pool.results()] == [f"b{one}-s0" for one in range(12)]
    assert ended(here / "run") == ("finished", 0)


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_an_exception_in_the_block_stops_everything_and_a_new_pool_resumes(here: Path) -> None:
    (here / "go-done-s0").touch()

    def submitted(pool: orchestrator.TrainingPool) -> list[TrainingFuture]:
        return [pool.submit(HOPPER, name=name) for name in ("done", "begun", "other", "waiting")]

    with (  # noqa: PT012 - this is what it is about
        nothing_left(),
        pytest.raises(ValueError, match="mine") as caught,
        orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool,
    ):
        done, begun, *others = submitted(pool)
        assert done.result(commands.PATIENCE_S).ok
        running(begun)
        raise ValueError("mine")
    assert f"run_dir='{here}/run'" in caught.value.__notes__[0]
    assert all(future.cancelled() for future in (begun, *others))
    assert commands.summary(here / "run")["begun-s0"]["state"] == "PENDING"

    begun_at = (here / "run/jobs/done-s0/started").stat().st_mtime_ns
    for name in ("begun", "waiting", "other"):
        (here / f"go-{name}-s0").touch()
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        done, begun, _, waiting = submitted(pool)
        assert done.result(commands.PATIENCE_S).ok
        assert (begun.result(commands.PATIENCE_S).ok, waiting.result(commands.PATIENCE_S).ok) == (
            True,
            True,
        )
        other = pool.submit(HOPPER, name="done", n_envs=3)
        with pytest.raises(orchestrator.ChangedError):
            other.result(commands.PATIENCE_S)
    rows = commands.summary(here / "run")
    assert {row["state"] for row in rows.values()} == {"SUCCEEDED"}
    assert (rows["done-s0"]["attempts"], rows["begun-s0"]["attempts"]) == (1, 2)
    assert (here / "run/jobs/done-s0/started").stat().st_mtime_ns == begun_at


def test_a_killed_program_takes_its_trainings_with_it(here: Path) -> None:
    program = f"""{STUBS}
import orchestrator
pool = orchestrator.TrainingPool(max_parallel=1, run_dir="run", **{EXEC!r})
pool.submit({str(HOPPER)!r}, name="one").result()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=here, env=commands.environment()
    ) as popen:
        started = here / "run/jobs/one-s0/started"
        wait_until(started.exists, "the worker has started")
        processes = psutil.Process(popen.pid).children(recursive=True)
        popen.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(processes, commands.PATIENCE_S)[1] == []
    assert commands.summary(here / "run")["one-s0"]["state"] == "PENDING"
    assert provenance.resumed_by(RunPaths(here / "run")) is not None


ENDING = """{stubs}
import orchestrator
pool = orchestrator.TrainingPool(max_parallel=1, run_dir="run", **{exec!r})
done, *others = (pool.submit({hopper!r}, name=name) for name in ("done", "one", "two"))
done.result()
{end}
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("end", "code", "warnings"),
    [("", 0, 1), ("[one.cancel() for one in others]; pool.shutdown()", 0, 0)],
    ids=["with two that train", "with none"],
)
def test_a_program_that_ends_before_its_trainings_says_so_once(
    here: Path, end: str, code: int, warnings: int
) -> None:
    (here / "go-done-s0").touch()
    program = ENDING.format(hopper=str(HOPPER), stubs=STUBS, exec=EXEC, end=end)
    done = commands.finish([sys.executable, "-c", program], cwd=here)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("warning: ") == warnings, done.stderr


IMPATIENT = """
import functools
from orchestrator.features.pool import pool_supervisor
pool_supervisor.RunSettings = functools.partial(pool_supervisor.RunSettings, grace_s=2.0)
"""
"""What a program begins with whose workers have two seconds to save a checkpoint."""


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_a_program_that_is_started_again_at_once_waits_for_what_the_killed_one_has_left(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"""{STUBS}{IMPATIENT}
import orchestrator
pool = orchestrator.TrainingPool(max_parallel=1, run_dir="run", **{EXEC!r})
pool.submit({str(HOPPER)!r}, name="deaf").result()
"""
    impatient = functools.partial(pool_supervisor.RunSettings, grace_s=2.0)
    monkeypatch.setattr(pool_supervisor, "RunSettings", impatient)
    started = here / "run/jobs/deaf-s0/started"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=here, env=commands.environment()
    ) as popen:
        wait_until(started.exists, "the worker has started")
        popen.send_signal(signal.SIGKILL)
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        (here / "go-deaf-s0").touch()
        assert pool.submit(HOPPER, name="deaf").result(commands.PATIENCE_S).ok
    assert commands.summary(here / "run")["deaf-s0"]["attempts"] == 2


LOST = """
import contextlib
from orchestrator.core.errors import Problem
from orchestrator.examination import examining_process, preflight
from orchestrator.examination.preflight import JobVerdict

lost = Problem(where="jobs[0]", message="no such file")
preflight.examine = lambda jobs, **_: {
    job.job_id: JobVerdict(problem=None if job.xml_source.exists() else lost) for job in jobs
}
examining_process.Child = contextlib.nullcontext
"""
"""A robot is invalid whose file is gone."""
FORKING = """{server}
import os, sys
import orchestrator


def say(*values):
    # At once, since another thread says something, too.
    sys.stdout.write(" ".join(map(str, values)) + "\\n")
    sys.stdout.flush()


def end_in_a_child(*_):
    child = os.fork()
    if child == 0:
        sys.exit(7)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def register_at_fork(*, before=None, after_in_child=None, after_in_parent=None):
    assert before is after_in_parent is None, "a fork may be going on in another thread"


orchestrator.TrainingPool  # imported now, before the program forks
os.register_at_fork = register_at_fork
body = open({hopper!r}).read()
pool = orchestrator.TrainingPool(max_parallel=1, run_dir="run", **{exec!r})
with pool:
    first, second = (pool.submit(body, name=name) for name in ("first", "second"))
    end_in_a_child()
    child = os.fork()
    if child == 0:
        try:
            pool.submit(body)
        except RuntimeError as error:
            pool.shutdown()
            sys.exit(str(os.getppid()) not in str(error))
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    open("go-first-s0", "w").close()
    say(first.result().error)
    third = pool.submit(body, name="third")
    for name in ("second", "third"):
        open(f"go-{{name}}-s0", "w").close()
    say(second.result().error, third.result().error)
"""


@pytest.mark.nightly
def test_processes_that_the_program_forks_leave_the_pool_to_it_however_they_end(here: Path) -> None:
    server = commands.with_server(LOST + commands.with_worker(commands.STUB_WORKER))
    program = FORKING.format(hopper=str(HOPPER), server=server, exec=EXEC)
    done = commands.finish([sys.executable, "-c", program], cwd=here)
    assert sorted(done.stdout.splitlines()) == [
        "None",
        "None None",
        "child 0",
        "child 7",
    ], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_a_callback_that_exits_ends_the_pool_which_names_it(here: Path) -> None:
    def leaves(_: futures.Future[orchestrator.Result]) -> None:
        sys.exit(3)

    with nothing_left(), orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        first, waiting = (pool.submit(HOPPER, name=name) for name in ("first", "waiting"))
        first.add_done_callback(leaves)
        (here / "go-first-s0").touch()
        assert first.result(commands.PATIENCE_S).ok
        with pytest.raises(UsageError, match="leaves"):
            waiting.result(commands.PATIENCE_S)


def instant_bodies(here: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Bodies whose trainings succeed at once."""
    (here / "instant.py").write_text(INSTANT)
    command = f"(sys.executable, '-I', '-S', {str(here / 'instant.py')!r})"
    code = f"local.Processes = lambda: processes.Processes(worker_command={command})\n"
    imports = "import sys\nfrom orchestrator.executors import local, processes\n"
    commands.add_to_server(monkeypatch, imports + code)
    return [
        HOPPER.read_text().replace("<mujoco", f"<!-- {number} --><mujoco", 1)
        for number in range(number)
    ]


GENERATIONS, SETTLED = 10, 3
"""Generations of twenty bodies, and those after which nothing may grow any more."""


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_the_loop_of_the_readme_trains_every_body(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (commands.REPOSITORY / "README.md").read_text(), re.M | re.S
    )
    (loop,) = (block for block in blocks if "TrainingPool" in block)
    bodies = instant_bodies(here, monkeypatch, 200)
    exec_pool = functools.partial(orchestrator.TrainingPool, **EXEC)
    monkeypatch.setattr(orchestrator, "TrainingPool", exec_pool)
    with nothing_left():
        exec(loop, {"orchestrator": orchestrator, "bodies": bodies})
    printed = capsys.readouterr().out
    assert [body in printed for body in bodies] == [True] * 200
    assert printed.count(" 1.0\n") == 200
