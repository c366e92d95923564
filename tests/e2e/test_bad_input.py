"""Bad input and misbehaving workers, through the command: a clear message, nothing lost, other jobs
continue."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import command_helpers as commands
import pytest
from command_helpers import (
    HOPPER,
    Experiment,
    Run,
    bow_to_permissions,
    carriers,
    give,
    invoke,
    odd,
    succeed,
    token_of,
    wait_until,
    write_experiment,
)

AS_ROOT = os.geteuid() == 0
NO_ACTUATORS = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
UNKNOWN_WORD = (
    "<mujoco>\n <worldbody>\n  <geom type='plan' size='1 1 1'/>\n </worldbody>\n</mujoco>"
)
EXPLODES = """
<mujoco><option timestep="0.01" gravity="0 0 0"/>
  <worldbody><body><joint name="j" type="slide" axis="1 0 0" stiffness="-25"/><geom size=".1" mass="1"/></body>
  </worldbody><actuator><motor joint="j" gear="10" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>
"""
"""Its spring pushes outwards: it is stable while it is examined, and diverges some seconds
later."""


INVALID_JOBS: list[tuple[dict[str, Any], str]] = [
    # job, place of its problem
    ({"xml": HOPPER, "n_env": 3}, ".n_env"),
    ({"xml": HOPPER, "ppo": {"batch_size": 100}}, ".ppo.batch_size"),
    ({"xml": "hoper.xml"}, ".xml"),
]
"""Jobs that are refused when the job file is read; tests/unit/jobfile has all rules."""

UNUSABLE_JOBS: list[tuple[dict[str, Any], str, str]] = [
    # job, place of its problem, what the message names
    ({"xml": "word.xml"}, "", "word.xml, line 3"),
    ({"xml": "none.xml"}, "", "none.xml"),
    ({"xml": "still.xml"}, "", "<actuator>"),
    ({"xml": HOPPER, "resources": {"cores": 4096}}, ".resources.cores", "4,096"),
    ({"entry_point": "nowhere:make"}, "", "nowhere:make"),
    ({"entry_point": "odd:raises"}, "", "RuntimeError: no such robot today"),
    ({"entry_point": "odd:not_an_env"}, "", "gymnasium.Env"),
    ({"env": "Ant-v99"}, "", "v5"),
    (
        {"xml": HOPPER, "randomize": {"body.trunk.mass": "normal(1, 1)"}},
        "",
        "randomize.body.trunk.mass",
    ),
]
"""Jobs that are refused when robots, environments and the machine are examined."""


def refused_jobs(tmp_path: Path, *jobs: Mapping[str, Any]) -> dict[str, str]:
    """Run these jobs: exit code 2, and nothing is launched or written. Returns place → message."""
    cwd = tmp_path / "odd_place"
    write_experiment(cwd, *({"name": f"job{number}", **job} for number, job in enumerate(jobs)))
    for name, text in (("word", UNKNOWN_WORD), ("none", "robots are fun"), ("still", NO_ACTUATORS)):
        (cwd / f"{name}.xml").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    with mock.patch.dict(os.environ, PYTHONDONTWRITEBYTECODE="1"):
        done = invoke("run", "jobs.toml", "--run-dir", "run", cwd=cwd)
    assert done.returncode == 2
    assert sorted(tmp_path.rglob("*")) == before
    *problems, count = done.stderr.splitlines()
    assert count.endswith("nothing was launched")
    assert all(line.startswith("jobs.toml: jobs[") for line in problems), done.stderr
    return dict(line.removeprefix("jobs.toml: ").split(": ", 1) for line in problems)


def test_all_problems_of_a_job_file_are_shown_at_once_and_nothing_is_launched(
    tmp_path: Path,
) -> None:
    problems = refused_jobs(tmp_path, *(job for job, *_ in INVALID_JOBS))
    assert {*problems} == {f"jobs[{n}]{place}" for n, (_, place) in enumerate(INVALID_JOBS)}


def test_all_unusable_robots_and_environments_are_shown_at_once_and_nothing_is_launched(
    tmp_path: Path,
) -> None:
    problems = refused_jobs(tmp_path, *(job for job, *_ in UNUSABLE_JOBS))
    for number, (_, place, named) in enumerate(UNUSABLE_JOBS):
        assert named in problems[f"jobs[{number}]{place}"]


@pytest.mark.parametrize(
    "text", ["name = ", "[[jobs]\n", "", "\x00", "jobs = 3\nname = 'x'"], ids=repr
)
def test_a_file_that_is_no_job_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text(text)
    done = invoke("run", "jobs.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("jobs.toml: ")


@pytest.mark.nightly
def test_an_unreadable_robot_is_refused(tmp_path: Path) -> None:
    robot = tmp_path / "robot.xml"
    robot.write_text(HOPPER.read_text())
    robot.chmod(0)
    jobs = write_experiment(tmp_path, {"name": "a", "xml": "robot.xml"})
    done = give("run", jobs, cwd=tmp_path, before=bow_to_permissions)
    assert done.returncode == 2
    assert "permission denied" in done.stderr.lower()


# -- run directories


def job(tmp_path: Path) -> Path:
    return write_experiment(tmp_path, odd("one", "nothing"))


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("precious")
    for option in ([], ["--fresh"]):
        done = invoke("run", job(tmp_path), "--run-dir", "mine", *option, cwd=tmp_path)
        assert done.returncode == 2
        assert "mine: exists and is not a run directory" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


@pytest.mark.nightly
def test_a_read_only_run_directory_is_refused_and_still_shown(finished: Experiment) -> None:
    folder = finished.run_dir
    if AS_ROOT:
        mount = ["mount", "--bind", "-o", "ro", str(folder), str(folder)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("no read-only mount to be had")
        undo = ["umount", "-l", str(folder)]
    else:
        subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
        undo = ["chmod", "-R", "u+w", str(folder)]
    try:
        done = invoke("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
        shown = invoke("status", "run", cwd=finished.cwd)
        retried = invoke("retry", "run", cwd=finished.cwd)
    finally:
        subprocess.run(undo, check=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "run: cannot be used (Read-only file system)" in done.stderr
        or "Permission denied" in done.stderr
    )
    assert shown.returncode == 0, shown.stderr
    assert "hopper-s0" in shown.stdout
    assert retried.returncode == 2


@pytest.mark.nightly
def test_a_disk_that_fills_up_stops_everything_resumably(small_disk: Path, tmp_path: Path) -> None:
    long = {"xml": HOPPER, "total_timesteps": 1_000_000, "checkpoint_every": 128}
    jobs = write_experiment(
        tmp_path, {"name": "one", **long}, {"name": "two", **long}, defaults=commands.FORKED
    )
    run_dir = small_disk / "run"
    with Run(jobs, "--run-dir", run_dir, cwd=tmp_path) as run:
        run.until("launched")
        wait_until(lambda: list(run_dir.glob("jobs/*/checkpoints/*.pt")), "a checkpoint")
        ballast = fill(small_disk)
        assert run.end() == 1
    assert "no space left on the disk" in run.stderr
    ballast.unlink()
    with Run(jobs, "--run-dir", run_dir, cwd=tmp_path) as run:
        run.until("resumed")
        assert run.until("launched")["number"] >= 1
        run.signal(signal.SIGINT)
        assert run.end() == 130


# -- the ledger


GARBAGE = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "overwritten": lambda path: path.write_bytes(os.urandom(20_000)),
    "overwritten inside": lambda path: path.write_bytes(
        path.read_bytes()[:4096] + os.urandom(20_000)
    ),
}


@pytest.mark.parametrize("how", GARBAGE)
def test_a_damaged_ledger_is_refused_and_never_overwritten(how: str, finished: Experiment) -> None:
    ledger = finished.run_dir / "ledger.sqlite3"
    GARBAGE[how](ledger)
    before = ledger.read_bytes() if ledger.exists() else None
    refused = invoke("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "takes the jobs over from their directories" in refused.stderr
    assert (ledger.read_bytes() if ledger.exists() else None) == before


def test_without_a_ledger_jobs_are_taken_over_from_their_directories(finished: Experiment) -> None:
    rows = commands.summary(finished.run_dir)
    (finished.run_dir / "ledger.sqlite3").unlink()
    rebuilt = succeed("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
    assert "2 jobs were finished before" in rebuilt.stdout
    assert " launched on CPU " not in rebuilt.stdout
    for job_id, row in commands.summary(finished.run_dir).items():
        for key in (
            "state",
            "env_steps",
            "ep_rew_mean",
            "ep_rew_mean_first",
            "eval_mean",
            "attempts",
        ):
            assert row[key] == rows[job_id][key], key


# -- workers that misbehave: the others go on


Misbehaving: TypeAlias = tuple[dict[str, dict[str, Any]], str]
SECRET = "swordfish-4711"


@pytest.fixture(scope="module")
def misbehaved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of an experiment in which every job but one misbehaves.

    Workers are forked, which takes less time.
    """
    cwd = tmp_path_factory.mktemp("misbehaving")
    (cwd / "explodes.xml").write_text(EXPLODES)
    jobs = write_experiment(
        cwd,
        odd("eats", "eat", resources={"memory": "500 MiB"}),
        odd("waits", "wait", resources={"timeout": 2}),
        *(odd(name, name) for name in ("nan", "fail", "leave", "vanish", "babble")),
        {
            "name": "explodes",
            "xml": "explodes.xml",
            "task_options": {"terminate_when_unhealthy": False},
        },
        odd("segfault", "segfault", retry={"max_retries": 1}),
        odd("good", "nothing"),
        head='order = "as-listed"',
        defaults=commands.FORKED,
    )
    assert (
        give(
            "run", jobs, "--run-dir", "run", "--grace", "0.5", cwd=cwd, WANDB_API_KEY=SECRET
        ).returncode
        == 1
    )
    return cwd / "run"


@pytest.fixture(scope="module")
def misbehaving(misbehaved: Path) -> Misbehaving:
    """Its rows, and what ``status`` shows of it."""
    rows = {row["name"]: row for row in commands.summary(misbehaved).values()}
    return rows, invoke("status", misbehaved, cwd=misbehaved).stdout


def test_no_file_of_a_run_directory_has_a_secret_of_the_environment(misbehaved: Path) -> None:
    for path in misbehaved.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_a_job_that_behaves_succeeds_beside_the_others(misbehaving: Misbehaving) -> None:
    assert misbehaving[0]["good"]["state"] == "SUCCEEDED"


@pytest.mark.parametrize(("name", "message"), [("nan", "not finite"), ("explodes", "explodes.xml")])
def test_non_finite_numbers_fail_as_diverged(
    name: str, message: str, misbehaving: Misbehaving
) -> None:
    row = misbehaving[0][name]
    assert (row["state"], row["cause"]) == ("FAILED", "diverged")
    assert message in row["message"]
    assert row["attempts"] == 1, "it would diverge again"


def test_errors_of_the_users_code_are_shown_with_their_place_and_not_retried(
    misbehaving: Misbehaving, misbehaved: Path
) -> None:
    rows, status = misbehaving
    assert rows["fail"]["message"].startswith("ValueError: the knee fell off (")
    assert "odd.py:" in rows["fail"]["message"]
    assert rows["leave"]["message"].startswith("SystemExit: 3")
    assert f"fail-s0  {rows['fail']['message']}" in status.splitlines(), (
        "the exception and its place, and nothing else"
    )
    assert not any(part in status for part in ("Traceback", "^^^", "  File "))
    log = (misbehaved / "jobs/fail-s0/attempts/0/worker.log").read_text()
    assert "in fail\n" in rows["fail"]["traceback"]
    assert rows["fail"]["traceback"] in log, "the log has the traceback"
    assert rows["vanish"]["state"] == "FAILED", "exit code 0 alone is no success"
    assert all(rows[name]["attempts"] == 1 for name in ("fail", "leave", "vanish"))


def test_a_crash_is_retried_as_often_as_asked(misbehaving: Misbehaving) -> None:
    row = misbehaving[0]["segfault"]
    assert row["attempts"] == 2
    assert "SIGSEGV" in row["message"]


def test_limits_end_a_job_and_say_what_was_reached(misbehaving: Misbehaving) -> None:
    rows = misbehaving[0]
    assert rows["eats"]["cause"] == "memory-limit"
    assert rows["waits"]["cause"] == "timeout"


@pytest.mark.nightly
def test_a_hundred_megabytes_of_output_hurt_nobody_and_stay_within_the_limit(
    tmp_path: Path,
) -> None:
    jobs = write_experiment(tmp_path, odd("talk", "talk"))
    succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    log = tmp_path / "run/jobs/talk-s0/attempts/0/worker.log"
    assert log.stat().st_size <= 64 * 2**20
    shown = invoke("logs", "run", "talk", "-n", "3", cwd=tmp_path)
    assert len(shown.stdout) < 10_000
    assert (
        "bytes of output were dropped here"
        in invoke("logs", "run", "talk", "-n", "0", cwd=tmp_path).stdout
    )
    log.unlink()


@pytest.mark.nightly
def test_a_deaf_worker_and_its_children_are_gone_after_the_grace_period(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("deaf", "go_deaf"), odd("parent", "have_children"))
    with Run(
        jobs, "--run-dir", "run", "--max-parallel", "2", "--grace", "0.5", cwd=tmp_path
    ) as run:
        token = token_of(run.until("launched", "deaf-s0")["pid"])
        run.until("launched", "parent-s0")
        for name, said in (("deaf", "deaf"), ("parent", "children")):
            log = tmp_path / f"run/jobs/{name}-s0/attempts/0/worker.log"
            wait_until(lambda log=log, said=said: said in log.read_text(), said)
        wait_until(lambda: len(carriers(token)) == 4, "two workers, two children")
        run.signal(signal.SIGTERM)
        assert run.end() == 130
    wait_until(lambda: not carriers(token), "the end of every process", patience_s=2)


@pytest.mark.nightly
def test_a_killed_and_a_stopped_worker_are_retried_from_their_checkpoints(tmp_path: Path) -> None:
    hopper = {"xml": HOPPER, "total_timesteps": 4096, "checkpoint_every": 512}
    # A worker reports no progress while it imports its libraries, which takes a few seconds on a
    # loaded machine.
    patience_s = 8 * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    stopped = {"name": "stopped", **hopper, "resources": {"stall_timeout": min(patience_s, 60)}}
    jobs = write_experiment(tmp_path, stopped, {"name": "killed", **hopper})
    numbers = {"stopped-s0": signal.SIGSTOP, "killed-s0": signal.SIGKILL}
    with Run(jobs, "--run-dir", "run", "--max-parallel", "2", cwd=tmp_path) as run:
        pids = {job_id: run.until("launched", job_id)["pid"] for job_id in numbers}

        def all_signalled() -> bool:
            for job_id in set(numbers):
                if list(tmp_path.glob(f"run/jobs/{job_id}/checkpoints/*.pt")):
                    commands.kill(pids[job_id], numbers.pop(job_id))
            return not numbers

        wait_until(all_signalled, "a checkpoint of each")
        assert run.end() == 0
        retries = {event["job_id"]: event for event in run.events if event["event"] == "retrying"}
    assert "killed by SIGKILL; retry 1 of 2" in retries["killed-s0"]["message"]
    assert retries["stopped-s0"]["cause"] == "stalled"
    assert "no progress for" in retries["stopped-s0"]["message"]
    for job_id, row in commands.summary(tmp_path / "run").items():
        assert (row["state"], row["attempts"], row["env_steps"]) == ("SUCCEEDED", 2, 4096)
        record = json.loads((tmp_path / f"run/jobs/{job_id}/attempts/1/exit.json").read_text())
        assert record["resumed_from"] >= 128


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """The limit file of a memory cgroup of 700 MiB; a process enters through ``cgroup.procs``
    beside it."""
    for root, limit in (
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    ):
        group = root / f"orchestrator-test-{os.getpid()}"
        if not (AS_ROOT and (root / "cgroup.procs").exists()):
            continue
        with contextlib.suppress(OSError):
            group.mkdir()
            (group / limit).write_text(str(700 * 2**20))
            yield group / limit
            wait_until(
                lambda group=group: not (group / "cgroup.procs").read_text(), "the group is empty"
            )
            group.rmdir()
            return
    pytest.skip("no memory cgroup may be made here")


@pytest.mark.nightly
def test_an_out_of_memory_kill_is_named_and_retried(small_memory: Path, tmp_path: Path) -> None:
    # The limit counts as the machine's memory: a job can ask for all of it, and the supervisor
    # needs some too.
    jobs = write_experiment(
        tmp_path, odd("eats", "eat", retry={"max_retries": 1}, resources={"memory": "700 MiB"})
    )
    process = commands.start(
        [
            "sh",
            "-c",
            'echo $$ > "$0"/cgroup.procs; exec "$@"',
            small_memory.parent,
            *commands.command("run", jobs),
        ],
        cwd=tmp_path,
        stderr=subprocess.STDOUT,
    )
    wait_until((tmp_path / "runs/tiny/jobs/eats-s0/attempts/0").exists, "a worker is launched")
    # Shared pages count for the job but not for the group; the job must not reach its own limit
    # first.
    small_memory.write_text(str(500 * 2**20))
    out, _ = process.communicate(timeout=commands.PATIENCE_S)
    assert process.returncode == 1, out
    assert commands.summary(tmp_path / "runs/tiny")["eats-s0"]["cause"] == "out-of-memory", out


@pytest.mark.nightly
def test_two_commands_at_once_make_one_supervisor(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "wait"))
    arguments = (jobs, "--run-dir", "run", "--grace", "0.2")
    both = [Run(*arguments, cwd=tmp_path, typed=commands.stubbed) for _ in range(2)]
    with both[0], both[1]:
        for run in both:
            wait_until(lambda run=run: begun_by(run), "it launches a job, or follows the other")
        assert invoke("stop", "run", cwd=tmp_path).returncode == 0
        assert [run.end() for run in both] == [130, 130]
    assert sorted(begun_by(run) for run in both) == ["joined", "launched"]
    assert commands.summary(tmp_path / "run")["one-s0"]["attempts"] == 1


def begun_by(run: Run) -> str:
    """Read the next event if none has said yet how the run has begun. Return its kind if one has."""
    assert run.popen.stdout is not None
    kinds = [event["event"] for event in run.events if event["event"] in ("joined", "launched")]
    if not kinds:
        run.events.append(json.loads(run.popen.stdout.readline()))
    return kinds[0] if kinds else ""


# -- being stopped


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, id="SIGHUP", marks=pytest.mark.nightly),
    ],
)
def test_a_signal_during_start_up_launches_nothing_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    jobs = write_experiment(tmp_path, {"name": "slow", "entry_point": "slow:make"})
    (tmp_path / "slow.py").write_text(
        "import time\nopen('imported', 'w').close()\ntime.sleep(600)\n"
    )
    with Run(jobs, "--run-dir", "runs/it", cwd=tmp_path) as run:
        wait_until((tmp_path / "imported").exists, "the examination has begun")
        run.signal(number)
        assert run.end() == 130
    assert run.stderr == "stopped; nothing was launched\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.nightly
def test_ctrl_c_twice_does_not_wait(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("deaf", "go_deaf"))
    log = tmp_path / "run/jobs/deaf-s0/attempts/0/worker.log"
    with Run(
        jobs, "--run-dir", "run", "--grace", "600", cwd=tmp_path, typed=commands.stubbed
    ) as run:
        token = token_of(run.until("launched")["pid"])
        wait_until(lambda: "deaf" in log.read_text(), "deaf")
        run.signal(signal.SIGINT)
        run.until("stopping")
        run.signal(signal.SIGINT)
        assert "killing 1 worker" in run.until("stopping")["message"]
        run.signal(signal.SIGINT)  # during shutdown: once more changes nothing
        assert run.end() == 130
    wait_until(lambda: not carriers(token), "the end of every process", patience_s=2)
    assert commands.summary(tmp_path / "run")["deaf-s0"]["state"] == "PENDING"
