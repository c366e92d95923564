"""``TrainingPool``: futures of trainings, and what becomes of them however pool, program or
supervisor end."""

from __future__ import annotations

import contextlib
import csv
import functools
import gc
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_helpers as commands
import numpy as np
import psutil
import pytest
from command_helpers import HOPPER, INSTANT, STUBS, wait_until

import orchestrator
from orchestrator import report
from orchestrator.core.errors import (
    ChangedError,
    Problem,
    RunDirError,
    SupervisorError,
    UsageError,
)
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_hash import robot_hash
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.begun_source import BegunSource
from orchestrator.experiment.directory import resume_advice, run_index
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import attach, control
from orchestrator.features.pool import pool_supervisor, supervisor_process, training_pool
from orchestrator.features.pool.pool_jobs import TrainingFuture
from orchestrator.ledger import Ledger
from orchestrator.report.document import Table

NEARNESS = "-abs(json.loads((job / 'spec.json').read_text())['hyperparameters']['gamma'] - 0.95)}"
"""The return of an instant training, which depends on a setting."""
SUPERVISE = "\nfrom orchestrator.features.pool import pool_supervisor\nsys.exit(pool_supervisor.main(*sys.argv[1:]))"
EXEC = {"resources": {"start": "exec", "min_free_disk": 0}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def no_examination(jobs: Any, **_: Any) -> dict[str, JobVerdict]:
    """The job ``bad`` has a bad robot, and ``wrong`` wrong settings."""
    problem = Problem(where="jobs[0]", message="has no legs")
    refused = {
        "bad": JobVerdict(problem=problem),
        "wrong": JobVerdict(problem=problem, settings_problem="no such option"),
    }
    return {job.job_id: refused.get(job.spec.name, JobVerdict()) for job in jobs}


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is examined, and workers succeed when there is a file ``go-JOB`` beside the run
    directory."""
    monkeypatch.setattr("orchestrator.experiment.examination.preflight.examine", no_examination)
    monkeypatch.setattr(
        "orchestrator.experiment.examination.examining_process.Child", contextlib.nullcontext
    )
    monkeypatch.setattr(supervisor_process, "COMMAND", (sys.executable, "-c", STUBS + SUPERVISE))


def running(future: TrainingFuture) -> None:
    wait_until(future.running, "the training runs")


def supervisor_of(run_dir: Path) -> psutil.Process:
    (found,) = (one for one in psutil.Process().children() if str(run_dir) in one.cmdline())
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
        with pytest.raises(orchestrator.UsageError, match="no such option"):
            pool.submit(HOPPER, name="wrong").result(commands.PATIENCE_S)
        for xml, settings, fragment in (
            (HOPPER, {"n_env": 2}, r'^TrainingPool.submit: n_env: .* did you mean "n_envs"'),
            (HOPPER, {"ppo": {"n_stepz": 2}}, "^TrainingPool.submit: ppo.n_stepz: unknown key"),
            (
                HOPPER,
                {"generation": 3},
                r'^TrainingPool.submit: generation: unknown key; .*, seed, .*; meta={"generation": …} notes',
            ),
            (HOPPER, {"seed": -1}, "^TrainingPool.submit: seed is -1; expected a whole number"),
            (HOPPER, {"seed": np.float64(2)}, r"submit: seed is 2.0; expected a whole number"),
            (HOPPER, {"init": [None]}, "^TrainingPool.submit: init is of type list; expected a "),
            (HOPPER, {"init": failed}, "has no policy: has no legs"),
            (HOPPER, {"init": fast}, r"init=future.result\(\)"),
            (HOPPER, {"after": ["fast"]}, "futures that it waits for"),
            (HOPPER, {"ppo": {1: 2, "gamma": 0.9}}, r"submit: ppo: a key must be text, found 1;"),
            (HOPPER, {"env_kwargs": {"a": [{(1, 2): 3}]}}, r"env_kwargs.a\[0\]: .* \(1, 2\);"),
            (HOPPER.parent, {}, "submit them one by one"),
            ("bodies:make", {"params": {"legs": 4}}, "submit: .* names no file but a function: "),
            (HOPPER, {"params": {"legs": 4}}, "params: functions that make robots are for a job"),
            (3, {}, "is of type int"),
        ):
            with pytest.raises(orchestrator.UsageError, match=fragment):
                pool.submit(xml, **settings)  # type: ignore[arg-type]
    for xml in (HOPPER, HOPPER.read_text()):
        with pytest.raises(RuntimeError, match="closed"):
            pool.submit(xml)
    with pytest.raises(UsageError, match=r"^TrainingPool: generation: unknown key") as refused:
        orchestrator.TrainingPool(generation=3)
    known = str(refused.value).partition("known keys: ")[2].split(", ")
    assert "max_parallel" in known
    assert not {"matrix", "params", "seeds", "after"} & {*known}
    with pytest.raises(UsageError, match=r"^TrainingPool: ppo.n_stepz: unknown key"):
        orchestrator.TrainingPool(run_dir="other", ppo={"n_stepz": 2})
    with pytest.raises(UsageError, match="TrainingPool: task_options: a key must be text"):
        orchestrator.TrainingPool(run_dir="other", task_options={None: 1, "height": 2})
    states = {job_id: row["state"] for job_id, row in commands.summary(here / "run").items()}
    trained = dict.fromkeys(("slow-s0", "fast-s0", "last-s0", "child-s1"), "SUCCEEDED")
    assert states == {**trained, "bad-s0": "FAILED", "endless-s0": "CANCELLED"} | (
        {"waiting-s0": "CANCELLED"} if "waiting-s0" in states else {}
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_a_pool_has_the_gpus_of_the_machine_though_no_earlier_job_has_asked_for_one(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = here / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '0, GPU-aaaa-1, NVIDIA H200, 143771, 143000'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name in ("one", "two"):
        (here / f"go-{name}-s0").touch()
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        assert pool.submit(HOPPER, name="one").result(commands.PATIENCE_S).ok
    resources = {**EXEC["resources"], "gpus": 1}
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", resources=resources) as pool:
        assert pool.submit(HOPPER, name="two").result(commands.PATIENCE_S).ok


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_what_python_prints_before_the_supervisor_begins_is_no_answer_of_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printing = "print('welcome', flush=True)\n"
    command = (sys.executable, "-c", printing + STUBS + SUPERVISE)
    monkeypatch.setattr(supervisor_process, "COMMAND", command)
    (here / "go-one-s0").touch()
    with nothing_left(), orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        assert pool.submit(HOPPER, name="one").result(commands.PATIENCE_S).ok
    failing = "print('welcome', flush=True)\nraise SystemExit('no memory')"
    monkeypatch.setattr(supervisor_process, "COMMAND", (sys.executable, "-c", failing))
    with pytest.raises(SupervisorError, match="was stopped: welcome"):
        orchestrator.TrainingPool(run_dir="other")


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_when_its_supervisor_is_killed_every_future_says_what_to_do(here: Path) -> None:
    with nothing_left(), orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        first, second = pool.submit(HOPPER, name="first"), pool.submit(HOPPER, name="second")
        running(first)
        supervisor_of(here / "run").kill()
        for future in (first, second):
            with pytest.raises(SupervisorError, match="killed by signal 9") as caught:
                future.result(commands.PATIENCE_S)
            assert f"run_dir='{here}/run'" in str(caught.value)
        with pytest.raises(SupervisorError, match="killed"):
            pool.submit(HOPPER, name="third")
        with pytest.raises(SupervisorError, match="killed"):
            pool.results()


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
        wrong, last = (pool.submit(HOPPER, name=name) for name in ("wrong", "last"))
        with pytest.raises(UsageError, match="no such option"):
            wrong.result(commands.PATIENCE_S)
        with pytest.raises(TimeoutError):
            pool.results(timeout=0)
        (here / "go-last-s0").touch()
        with pytest.raises(UsageError, match="1 robot has no result") as raised:
            pool.results(commands.PATIENCE_S)
        assert last.done(), "an error does not keep others from their results"
        assert "  robot 5:\n    TrainingPool.submit: no such option\n" in str(raised.value)
        others = str(raised.value).rpartition("the results of the others are in ")[2]
        assert eval(others, {"pool": pool}) == [*results, last.result()]
    assert not (here / "run/jobs/gone-s0/started").exists()


BAD_META: list[tuple[Any, str]] = [
    ([3], "is of type list; expected a dictionary"),
    ({3: 1}, "the key 3: expected a name"),
    ({" ": 1}, "the key ' ': expected a name"),
    ({"a\nb": 1}, "the key .*: expected a name"),
    ({"a" * 65: 1}, "has 65 characters; expected at most 64"),
    ({"genes": [1, 2]}, "genes: expected a text, a number, True, False or None; .* of type list"),
    ({"score": float("nan")}, "score: expected a finite number; this is nan"),
    ({"id": 2**63}, "id: expected a whole number of at most 64 bits; this one has 64"),
    ({"text": "a\nb"}, "text: the text has a line break"),
    ({"text": "a" * 1001}, "text: the text has 1,001 characters; expected at most 1,000"),
    ({str(number): 1 for number in range(101)}, "has 101 keys; expected at most 100"),
]


@pytest.mark.usefixtures("stubs")
def test_what_a_program_says_of_its_robots_is_in_results_summary_and_report(here: Path) -> None:
    for name in ("one", "two"):
        (here / f"go-{name}-s0").touch()
    said = {"generation": np.int64(1), "parent": "adam", "is_mutant": True, "distance": None}
    with nothing_left(), orchestrator.TrainingPool(max_parallel=2, run_dir="run", **EXEC) as pool:
        for bad, fragment in BAD_META:
            with pytest.raises(UsageError, match=rf"TrainingPool\.submit: meta.*{fragment}"):
                pool.submit(HOPPER, meta=bad)
        one = pool.submit(HOPPER, name="one", meta=said, ppo={"gamma": np.float32(0.5)})
        again = pool.submit(HOPPER, name="one", meta={"generation": 2}, ppo={"gamma": 0.5})
        pool.submit(HOPPER, name="two", meta={"generation": 2}, ppo={"gamma": 0.75})
        lost = pool.submit(here / "\udcff.xml", meta={"generation": 3})
        table = pool.results(commands.PATIENCE_S).to_dataframe()
    assert one.result().meta == {**said, "generation": 1}
    assert again.result().meta == {"generation": 2}, "of this submission"
    assert lost.result().meta == {"generation": 3}
    assert table["meta.generation"].tolist() == [1, 2, 2, 3]
    assert table["meta.parent"].tolist()[0] == "adam"
    assert table["job_id"].tolist()[:3] == ["one-s0", "one-s0", "two-s0"]
    rows = commands.summary(here / "run")
    columns = ("meta.generation", "meta.parent", "meta.is_mutant", "meta.distance", "ppo.gamma")
    assert [rows["one-s0"][name] for name in columns] == [1, "adam", True, None, 0.5]
    assert [rows["two-s0"][name] for name in columns] == [2, None, None, None, 0.75]
    with (here / "run/summary.csv").open() as file:
        assert [row["meta.generation"] for row in csv.DictReader(file)] == ["1", "2"]
    page = report.compose(here / "run")
    (jobs,) = (section for section in page.sections if section.title == "All jobs")
    (part,) = jobs.parts
    assert isinstance(part, Table)
    assert [part.columns.index(name) > 0 for name in ("meta.generation", "ppo.gamma")]
    assert [job["point"]["ppo.gamma"] for job in page.facts["jobs"]] == [0.5, 0.75]


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_what_a_program_says_of_a_robot_makes_no_other_training_of_it(here: Path) -> None:
    (here / "go-done-s0").touch()
    for generation in (1, 2):
        with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
            future = pool.submit(HOPPER, name="done", meta={"generation": generation})
            assert future.result(commands.PATIENCE_S).meta == {"generation": generation}
    row = commands.summary(here / "run")["done-s0"]
    assert (row["attempts"], row["meta.generation"]) == (1, 1)


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
            with pytest.raises(orchestrator.ChangedError, match="another robot, or other settings"):
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
            with pytest.raises(UsageError, match=f"{file} was written to after the submission"):
                future.result(commands.PATIENCE_S)
    assert not (here / "run/jobs/rewritten-s0").exists()


@pytest.mark.usefixtures("stubs")
def test_a_robot_that_was_invalid_says_so_when_it_comes_again_and_what_it_is_now(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = ["has no legs", "has no arms", None]

    def examine(jobs: Any, **_: Any) -> dict[str, JobVerdict]:
        fault = faults.pop(0)
        problem = None if fault is None else Problem(where="jobs[0]", message=fault)
        return {job.job_id: JobVerdict(problem=problem) for job in jobs}

    monkeypatch.setattr("orchestrator.experiment.examination.preflight.examine", examine)
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        errors = [pool.submit(HOPPER, name="body").result(commands.PATIENCE_S).error]
        errors += [pool.submit(HOPPER, name="body").result(commands.PATIENCE_S).error]
        assert errors == ["has no legs", "has no arms"]
        with pytest.raises(orchestrator.ChangedError, match=r"was invalid when it .*: has no legs"):
            pool.submit(HOPPER, name="body").result(commands.PATIENCE_S)


@pytest.mark.usefixtures("stubs")
def test_another_text_under_the_name_of_a_job_is_refused_without_a_file_that_nobody_knows(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(jobs: Any, *, staging: Path, **_: Any) -> dict[str, JobVerdict]:
        verdicts = {}
        for job in jobs:
            bundle = staging / job.job_id
            bundle.mkdir()
            file = Path(shutil.copy(job.xml_source, bundle))
            digest = robot_hash(file.name, {file.name: file})
            verdicts[job.job_id] = JobVerdict(bundle=bundle, xml=file.name, robot_hash=digest)
        return verdicts

    monkeypatch.setattr("orchestrator.experiment.examination.preflight.examine", examine)
    (here / "go-body-s0").touch()
    body = HOPPER.read_text()
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        assert pool.submit(body, name="body").result(commands.PATIENCE_S).ok
        other = pool.submit(body.replace("<mujoco", "<!-- --><mujoco", 1), name="body")
        expected = r"robot: the contents of xml changed\n"
        with pytest.raises(orchestrator.ChangedError, match=expected):
            other.result(commands.PATIENCE_S)


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_what_was_trained_from_a_policy_is_not_examined_again_unless_that_is_newer(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[str] = []

    def examine(jobs: Any, *, staging: Path, **_: Any) -> dict[str, JobVerdict]:
        verdicts = {}
        for job in jobs:
            examined.append(job.job_id)
            bundle = staging / job.job_id
            bundle.mkdir()
            shutil.copy(HOPPER, bundle)
            verdict = JobVerdict(
                bundle=bundle,
                xml=HOPPER.name,
                robot_hash=robot_hash(HOPPER.name, {HOPPER.name: HOPPER}),
            )
            if job.spec.init is not None:
                policy = staging / f"{job.job_id}.pt"
                policy.write_bytes(b"policy")
                digest = hashlib.sha256(b"policy").hexdigest()
                verdict = replace(verdict, init=policy, init_sha256=digest, init_env_steps=1)
            verdicts[job.job_id] = verdict
        return verdicts

    monkeypatch.setattr("orchestrator.experiment.examination.preflight.examine", examine)
    for name in ("parent", "child"):
        (here / f"go-{name}-s0").touch()

    def generation() -> None:
        with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
            parent = pool.submit(HOPPER, name="parent").result(commands.PATIENCE_S)
            child = pool.submit(HOPPER, name="child", init=parent).result(commands.PATIENCE_S)
            assert child.ok

    generation()
    generation()
    assert examined == ["parent-s0", "child-s0"]
    model = RunPaths(here / "run").job("parent-s0").model
    os.utime(model, ns=(0, 0))  # as a copy that keeps the time of an older policy
    generation()
    assert examined == ["parent-s0", "child-s0", "child-s0"]


@pytest.mark.usefixtures("stubs")
def test_numbers_of_numpy_make_no_other_job(here: Path) -> None:
    body = HOPPER.read_text()
    with (
        contextlib.suppress(ValueError),
        orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool,
    ):
        for n_steps in (256, np.int64(256)):
            running(pool.submit(body, ppo={"n_steps": n_steps}))
        raise ValueError("it is seen already")
    assert len(commands.summary(here / "run")) == 1


def ended(run_dir: Path) -> tuple[str, int]:
    """What `list` says of a run directory, and the exit code of `wait`."""
    entry = run_index.RunEntry(run_dir=str(run_dir), name="run", host="here", noted_at=0.0)
    return run_index.listed_run(entry).state, attach.wait(run_dir, [], timeout_s=10).exit_code


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
    advice = resume_advice.how_to_resume(RunPaths(here / "run"))
    assert f"a TrainingPool with run_dir='{here}/run' resumes it" in advice
    assert "`run" not in advice
    assert control.ask(here / "run", ["other-s0"], "pause").endswith("queues them again")
    assert advice in control.ask(here / "run", ["other-s0"], "resume")

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
        with pytest.raises(orchestrator.ChangedError, match=r"n_envs: 8 → 3"):
            other.result(commands.PATIENCE_S)
    rows = commands.summary(here / "run")
    assert {row["state"] for row in rows.values()} == {"SUCCEEDED"}
    assert (rows["done-s0"]["attempts"], rows["begun-s0"]["attempts"]) == (1, 2)
    assert (here / "run/jobs/done-s0/started").stat().st_mtime_ns == begun_at


@pytest.mark.nightly
def test_a_killed_program_takes_its_trainings_with_it(here: Path) -> None:
    program = f"""
import contextlib, sys, threading
import orchestrator
from orchestrator.experiment.examination import examining_process, preflight
from orchestrator.features.pool import supervisor_process
supervisor_process.COMMAND = (sys.executable, "-c", {STUBS + SUPERVISE!r})
preflight.examine = lambda jobs, **_: {{job.job_id: preflight.JobVerdict() for job in jobs}}
examining_process.Child = contextlib.nullcontext
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


ENDING = """
import contextlib, sys
import orchestrator
from orchestrator.experiment.examination import examining_process, preflight
from orchestrator.features.pool import supervisor_process

preflight.examine = lambda jobs, **_: {{job.job_id: preflight.JobVerdict() for job in jobs}}
examining_process.Child = contextlib.nullcontext
supervisor_process.COMMAND = (sys.executable, "-c", {supervise!r})
pool = orchestrator.TrainingPool(max_parallel=1, run_dir="run", **{exec!r})
done, *others = (pool.submit({hopper!r}, name=name) for name in ("done", "one", "two"))
done.result()
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "is_warned"),
    [
        ("", 0, True),
        ("raise KeyboardInterrupt", -signal.SIGINT, True),
        ("pool.shutdown(wait=False)", 0, True),
        ("[one.cancel() for one in others]; pool.shutdown()", 0, False),
        ("with pool: raise ValueError('mine')", 1, False),
        ("with pool: raise KeyboardInterrupt", 1, False),
    ],
)
@pytest.mark.nightly
def test_a_program_that_ends_before_its_trainings_says_so_once(
    here: Path, end: str, code: int, is_warned: bool
) -> None:
    (here / "go-done-s0").touch()
    program = ENDING.format(hopper=str(HOPPER), supervise=STUBS + SUPERVISE, exec=EXEC, end=end)
    done = commands.finish([sys.executable, "-c", program], cwd=here)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert done.returncode == code, done.stderr
    assert len(warnings) == is_warned, done.stderr
    for warning in warnings:
        assert f"2 robots of {here}/run have no result" in warning
        assert "`with`" in warning
        assert "pool.results()" in warning
        assert f"run_dir='{here}/run'" in warning


IMPATIENT = """
import functools
from orchestrator.features.pool import pool_supervisor
pool_supervisor.RunOptions = functools.partial(pool_supervisor.RunOptions, grace_s=2.0)
"""
"""What a supervisor begins with whose workers have two seconds to save a checkpoint."""


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_a_program_that_is_started_again_at_once_waits_for_what_the_killed_one_has_left(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = (sys.executable, "-c", STUBS + IMPATIENT + SUPERVISE)
    program = f"""
import contextlib
import orchestrator
from orchestrator.experiment.examination import examining_process, preflight
from orchestrator.features.pool import supervisor_process
supervisor_process.COMMAND = {command!r}
preflight.examine = lambda jobs, **_: {{job.job_id: preflight.JobVerdict() for job in jobs}}
examining_process.Child = contextlib.nullcontext
pool = orchestrator.TrainingPool(max_parallel=1, run_dir="run", **{EXEC!r})
pool.submit({str(HOPPER)!r}, name="deaf").result()
"""
    monkeypatch.setattr(supervisor_process, "COMMAND", command)
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
    assert "run: waiting for the earlier pool" in capfd.readouterr().err


class BegunDraw(BegunSource):
    noun = "draw"


def test_a_pool_leaves_the_jobs_alone_that_a_feature_makes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "run").mkdir()
    paths = RunPaths(here / "run")
    assert pool_supervisor._earlier(paths) == []
    Ledger.create(paths.ledger).close()
    assert pool_supervisor._earlier(paths) == []
    monkeypatch.setattr(pool_supervisor, "begun_source", lambda *_: BegunDraw())
    with pytest.raises(RunDirError, match="was made by a draw, and a pool"):
        pool_supervisor._earlier(paths)


REPORT = """
import pathlib, sys
from orchestrator.core.paths import RunPaths
from orchestrator.features.pool.pool_supervisor import PoolReporter
reporter = PoolReporter(RunPaths(pathlib.Path(sys.argv[1])))
reporter.event("directory", "results are here")
reporter.event("launched", "a job runs")
"""


def test_a_supervisor_whose_log_cannot_be_written_says_so_once_and_goes_on(here: Path) -> None:
    log = RunPaths(here / "run").supervisor_log
    log.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", REPORT, str(here / "run")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count(f"warning: {log}: cannot be written (Is a directory)") == 1


def test_its_supervisor_loads_nothing_that_only_workers_need() -> None:
    program = "import orchestrator.features.pool.pool_supervisor, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    heavy = {"torch", "stable_baselines3", "gymnasium", "mujoco", "numpy", "psutil", "asyncio"}
    assert heavy & set(done.stdout.split()) == set()


FORKING = """
import contextlib, os, sys
import orchestrator
from orchestrator.core.errors import Problem
from orchestrator.experiment.examination import examining_process, preflight
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.features.pool import supervisor_process


def examine(jobs, **_):
    lost = Problem(where="jobs[0]", message="no such file")
    return {{job.job_id: JobVerdict(problem=None if job.xml_source.exists() else lost) for job in jobs}}


def say(*values):
    # At once, since another thread says something, too.
    sys.stdout.write(" ".join(map(str, values)) + "\\n")
    sys.stdout.flush()


def end_in_a_child(*_):
    child = os.fork()
    if child == 0:
        sys.exit(7)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


preflight.examine, examining_process.Child = examine, contextlib.nullcontext
supervisor_process.COMMAND = (sys.executable, "-c", {supervise!r})


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
    first.add_done_callback(end_in_a_child)
    open("go-first-s0", "w").close()
    say(first.result().error)
    third = pool.submit(body, name="third")
    for name in ("second", "third"):
        open(f"go-{{name}}-s0", "w").close()
    say(second.result().error, third.result().error)
"""


@pytest.mark.nightly
def test_processes_that_the_program_forks_leave_the_pool_to_it_however_they_end(here: Path) -> None:
    program = FORKING.format(hopper=str(HOPPER), supervise=STUBS + SUPERVISE, exec=EXEC)
    done = commands.finish([sys.executable, "-c", program], cwd=here)
    assert sorted(done.stdout.splitlines()) == [
        "None",
        "None None",
        "child 0",
        "child 7",
        "child 7",
    ], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


FORKED_BEFORE_THE_END = """
import contextlib, os, signal, sys, time
import orchestrator
from orchestrator.experiment.examination import examining_process, preflight
from orchestrator.features.pool import supervisor_process

preflight.examine = lambda jobs, **_: {{job.job_id: preflight.JobVerdict() for job in jobs}}
examining_process.Child = contextlib.nullcontext
supervisor_process.COMMAND = (sys.executable, "-c", {supervise!r})
try:
    with orchestrator.TrainingPool(max_parallel=1, run_dir="run", **{exec!r}) as pool:
        future = pool.submit({hopper!r}, name="one")
        while not future.running():
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            time.sleep(10_000)
        raise ValueError("mine")
except ValueError as error:
    print(os.waitpid(child, os.WNOHANG))
os.kill(child, signal.SIGKILL)
"""


@pytest.mark.nightly
def test_a_process_that_the_program_has_forked_does_not_keep_the_pool_from_stopping(
    here: Path,
) -> None:
    program = FORKED_BEFORE_THE_END.format(
        hopper=str(HOPPER), supervise=STUBS + SUPERVISE, exec=EXEC
    )
    done = commands.finish([sys.executable, "-c", program], cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(0, 0)\n", "")


@pytest.mark.usefixtures("stubs")
def test_what_examines_robots_lives_as_long_as_the_pool_and_not_as_the_thread_that_has_made_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_in: list[threading.Thread] = []

    def child() -> contextlib.AbstractContextManager[None]:
        started_in.append(threading.current_thread())
        return contextlib.nullcontext()

    monkeypatch.setattr("orchestrator.experiment.examination.examining_process.Child", child)
    made: list[orchestrator.TrainingPool] = []
    maker = threading.Thread(
        target=lambda: made.append(orchestrator.TrainingPool(run_dir="run", env="CartPole-v1"))
    )
    maker.start()
    maker.join()
    with made[0]:
        assert [thread.is_alive() for thread in started_in] == [True]


def test_a_pool_that_cannot_begin_leaves_nothing(here: Path) -> None:
    (here / "run").write_text("no directory")
    with nothing_left(), pytest.raises(UsageError, match="run"):
        orchestrator.TrainingPool(run_dir="run", env="CartPole-v1")


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_a_callback_that_exits_ends_the_pool_which_names_it(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def leaves(future: futures.Future[orchestrator.Result]) -> None:
        called.append(future.result().job_id or "")
        sys.exit(3)

    with nothing_left(), orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        first, twin, waiting = (
            pool.submit(HOPPER, name=name) for name in ("first", "first", "waiting")
        )
        first.add_done_callback(leaves)
        commands.wait_until(twin.running, "both wait for the same job")
        (here / "go-first-s0").touch()
        assert first.result(commands.PATIENCE_S).ok
        assert twin.result(commands.PATIENCE_S).ok, "a job that has ended has its results"
        expected = r"leaves.*add_done_callback.*SystemExit\(3\)"
        with pytest.raises(orchestrator.UsageError, match=expected) as caught:
            waiting.result(commands.PATIENCE_S)
        assert f"run_dir='{here}/run'" in str(caught.value)
        pool.shutdown()
        with pytest.raises(orchestrator.UsageError, match=expected):
            pool.submit(HOPPER, name="later")
        with pytest.raises(SystemExit):  # in the thread of the program, which it ends
            twin.add_done_callback(leaves)
    assert called == ["first-s0"] * 2
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], SystemExit)


@pytest.mark.nightly
def test_what_is_no_file_is_no_robot_and_nothing_waits_for_it(here: Path) -> None:
    os.mkfifo(here / "pipe.xml")
    (here / "zero.xml").symlink_to("/dev/zero")
    with nothing_left(), orchestrator.TrainingPool(max_parallel=1, run_dir="run", **EXEC) as pool:
        submitted = [pool.submit(here / name) for name in ("pipe.xml", "zero.xml")]
        for future, name in zip(submitted, ("pipe.xml", "zero.xml"), strict=True):
            result = future.result(commands.PATIENCE_S)
            assert (result.ok, result.error) == (False, f"{here / name}: is not a regular file")
        for empty in ("", " "):
            with pytest.raises(orchestrator.UsageError, match="xml is empty; expected a path"):
                pool.submit(empty)
            with pytest.raises(
                orchestrator.UsageError, match=r"xmls\[1\] is empty; expected a path"
            ):
                orchestrator.train([HOPPER, empty])


def instant_bodies(here: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Bodies whose trainings succeed at once."""
    (here / "instant.py").write_text(INSTANT)
    worker = f"\nworker = (sys.executable, '-I', '-S', {str(here / 'instant.py')!r})"
    monkeypatch.setattr(
        supervisor_process, "COMMAND", (sys.executable, "-c", STUBS + worker + SUPERVISE)
    )
    return [
        HOPPER.read_text().replace("<mujoco", f"<!-- {number} --><mujoco", 1)
        for number in range(number)
    ]


def held_by(*processes: psutil.Process) -> list[int]:
    """Open files, threads and children of each."""
    return [
        number
        for one in processes
        for number in (one.num_fds(), one.num_threads(), len(one.children()))
    ]


GENERATIONS, SETTLED = 10, 3
"""Generations of twenty bodies, and those after which nothing may grow any more."""
MOST_GROWTH_MIB = 4.0
"""Of either process over 140 jobs: a supervisor keeps about 6 KiB of each."""


@pytest.mark.nightly
@pytest.mark.usefixtures("stubs")
def test_generations_that_feed_the_next_evolve_two_hundred_bodies_and_nothing_grows(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A genetic algorithm as one writes it with DEAP: the gene is a setting that the return depends
    on."""
    bodies, chance = iter(instant_bodies(here, monkeypatch, 200)), random.Random(5)
    (here / "instant.py").write_text(INSTANT.replace("1.0}", NEARNESS))
    genes, best, done = [chance.uniform(0.8, 0.9) for _ in range(20)], None, set[str]()
    fitness, memory = list[float](), list[list[int]]()
    with nothing_left(), orchestrator.TrainingPool(max_parallel=4, run_dir="run", **EXEC) as pool:
        processes = psutil.Process(), supervisor_of(here / "run")
        for generation in range(GENERATIONS):
            of_genes = {
                pool.submit(next(bodies), init=best, ppo={"gamma": gene}): gene for gene in genes
            }
            results = [
                (future.result(), of_genes[future]) for future in futures.as_completed(of_genes)
            ]
            results.sort(key=lambda pair: -pair[0].fitness())
            best, parents = results[0][0], [gene for _, gene in results[:5]]
            genes = [min(0.99, chance.choice(parents) + chance.gauss(0, 0.01)) for _ in genes]
            done |= {
                result.job_id for result, _ in results if result.ok and result.job_id is not None
            }
            fitness.append(best.fitness())
            del of_genes, results
            gc.collect()
            memory.append([one.memory_info().rss for one in processes])
            if generation + 1 == SETTLED:
                held = held_by(*processes)
        for number, before in enumerate(held):
            wait_until(
                lambda number=number, most=before: held_by(*processes)[number] <= most,
                f"of the numbers {held} after {SETTLED} generations, number {number} has not grown",
            )
    assert len(done) == 200
    assert fitness[-1] > fitness[0]
    for before, after in zip(memory[SETTLED - 1], memory[-1], strict=True):
        assert after - before < MOST_GROWTH_MIB * 2**20, memory


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


def test_many_errors_are_told_by_their_first_ones_and_lines_of_one_stay_together() -> None:
    errors: dict[int, BaseException] = {
        place: ChangedError(f"robot {place} has changed:\nuse another name") for place in range(12)
    }
    text = training_pool._errors_text(errors)
    assert "  robot 0:\n    robot 0 has changed:\n    use another name\n  robot 1:" in text
    assert "  … and 2 more errors\n" in text
    assert training_pool._errors_text({3: OSError("a"), 5: OSError("a")}).splitlines()[1:3] == [
        "  robots 3, 5:",
        "    a",
    ]
