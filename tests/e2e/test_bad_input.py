"""Whatever is wrong, at the level of the command: a clear message, nothing lost, the others go on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import (
    HOPPER,
    Experiment,
    Run,
    bow_to_permissions,
    carriers,
    give,
    odd,
    token_of,
    wait_until,
    write_experiment,
)

AS_ROOT = os.geteuid() == 0
NO_ACTUATORS = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
UNKNOWN_WORD = "<mujoco>\n <worldbody>\n  <geom type='plan' size='1 1 1'/>\n </worldbody>\n</mujoco>"
EXPLODES = """
<mujoco><option timestep="0.01" gravity="0 0 0"/>
  <worldbody><body><joint name="j" type="slide" axis="1 0 0" stiffness="-25"/><geom size=".1" mass="1"/></body>
  </worldbody><actuator><motor joint="j" gear="10" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>
"""
"""Each push makes the next one stronger: well while it is examined, beyond all numbers some seconds later."""

WRONG_FILES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "misspelt keys": (
        [{"name": "a", "xml": HOPPER, "n_env": 3, "ppo": {"n_step": 4}}],
        [
            'jobs[0].n_env: unknown key; did you mean "n_envs"?',
            'jobs[0].ppo.n_step: unknown key; did you mean "n_steps"',
        ],
    ),
    "unknown key": ([{"name": "a", "xml": HOPPER, "wings": 2}], ["jobs[0].wings: unknown key; known keys:"]),
    "wrong types": (
        [{"name": "a", "xml": HOPPER, "n_envs": "4", "normalize": "yes", "total_timesteps": 1.5}],
        ["jobs[0].n_envs: expected a whole number", "jobs[0].normalize: expected true or", "jobs[0].total_timesteps:"],
    ),
    "wrong units": (
        [{"name": "a", "xml": HOPPER, "resources": {"memory": "2 parsecs", "timeout": "soon"}}],
        ["jobs[0].resources.memory: ", "2 parsecs", "jobs[0].resources.timeout: ", '"2h"'],
    ),
    "missing XML": ([{"name": "a", "xml": "hoper.xml"}], ["jobs[0].xml: no such file: ", "hoper.xml"]),
    "XML that is a directory": ([{"name": "a", "xml": "."}], ["jobs[0].xml: ", "name a file in it"]),
    "XML that does not compile": (
        [{"name": "a", "xml": "word.xml"}],
        ["word.xml, line 3: MuJoCo cannot compile it:", "plan"],
    ),
    "XML that is none": ([{"name": "a", "xml": "none.xml"}], ["none.xml", "MuJoCo cannot compile it"]),
    "no actuators": ([{"name": "a", "xml": "still.xml"}], ["still.xml: has no actuators", "<actuator>"]),
    "a glob without matches": ([{"name": "a", "xml": "zoo/*.xml"}], ["jobs[0].xml: no file matches", "zoo/*.xml"]),
    "duplicate names": (
        [{"name": "a", "xml": HOPPER}, {"name": "a", "xml": HOPPER}],
        ['jobs[1]: the name "a" with seed 0 is taken by jobs[0]'],
    ),
    "an empty name": ([{"name": " ", "xml": HOPPER}], ["jobs[0].name: the name is empty"]),
    "too much for the machine": (
        [{"name": "a", "xml": HOPPER, "resources": {"cores": 4096, "memory": "900 TiB", "gpus": 99}}],
        [
            "jobs[0].resources.cores: asks for 4096",
            "jobs[0].resources.memory: asks",
            "jobs[0].resources.gpus: asks for",
        ],
    ),
    "an indivisible batch": (
        [{"name": "a", "xml": HOPPER, "ppo": {"batch_size": 100}}],
        ["jobs[0].ppo.batch_size: n_steps × n_envs = 64 × 2 = 128 is not divisible by batch_size = 100"],
    ),
    "hyperparameters that SB3 refuses": (
        [{"name": "a", "xml": HOPPER, "ppo": {"gamma": 1.5, "n_epochs": 0, "learning_rate": "linar(1)"}}],
        ["jobs[0].ppo.gamma: expected", "jobs[0].ppo.n_epochs: expected", "jobs[0].ppo.learning_rate:"],
    ),
    "an entry point that cannot be imported": (
        [{"name": "a", "entry_point": "nowhere:make"}],
        ["nowhere:make", "nowhere", "odd_place"],
    ),
    "an entry point that is not there": (
        [{"name": "a", "entry_point": "odd:mak"}],
        ["odd:mak", "did you mean", "make"],
    ),
    "an entry point that raises": (
        [{"name": "a", "entry_point": "odd:raises"}],
        ["odd:raises", "RuntimeError: no such robot today", "odd.py:"],
    ),
    "an entry point of the wrong kind": (
        [{"name": "a", "entry_point": "odd:takes_nothing"}, {"name": "b", "entry_point": "odd:not_an_env"}],
        ["odd:takes_nothing", "odd:not_an_env", "expected a gymnasium.Env"],
    ),
    "an unknown environment": (
        [{"name": "a", "env": "Ant-v99"}],
        ["jobs[0]: ", "Ant-v99", "did you mean 'Ant-v5'"],
    ),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_what_is_wrong_with_jobs_is_told_before_anything_is_launched(case: str, tmp_path: Path) -> None:
    given, fragments = WRONG_FILES[case]
    cwd = tmp_path / "odd_place"
    jobs = write_experiment(cwd, *given)
    (cwd / "word.xml").write_text(UNKNOWN_WORD)
    (cwd / "none.xml").write_text("robots are fun")
    (cwd / "still.xml").write_text(NO_ACTUATORS)
    before = sorted(tmp_path.rglob("*"))
    done = give("run", "jobs.toml", "--run-dir", "run", cwd=cwd, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 2
    assert done.stdout == ""
    *problems, count = done.stderr.splitlines()
    assert all(line.startswith("jobs.toml: jobs[") for line in problems), done.stderr
    assert count.endswith("nothing was launched")
    for fragment in fragments:
        assert fragment in done.stderr
    assert sorted(tmp_path.rglob("*")) == before, jobs


def test_all_problems_of_all_jobs_are_told_at_once(tmp_path: Path) -> None:
    for name, text in (("word", UNKNOWN_WORD), ("still", NO_ACTUATORS)):
        (tmp_path / f"{name}.xml").write_text(text)
    names = ("word", "still", "word", "still")
    jobs = write_experiment(tmp_path, *({"name": f"{name}{i}", "xml": f"{name}.xml"} for i, name in enumerate(names)))
    done = give("run", jobs, cwd=tmp_path)
    assert "jobs[0]" in done.stderr
    assert "jobs[1]" in done.stderr
    assert "word.xml, line 3" in done.stderr
    assert "still.xml: has no actuators" in done.stderr


@pytest.mark.parametrize("text", ["name = ", "[[jobs]\n", "", "\x00", "jobs = 3\nname = 'x'"], ids=repr)
def test_a_file_that_is_no_job_file_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text(text)
    done = give("run", "jobs.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("jobs.toml: ")


def test_unreadable_xml_is_told(tmp_path: Path) -> None:
    robot = tmp_path / "robot.xml"
    robot.write_text(HOPPER.read_text())
    robot.chmod(0)
    jobs = write_experiment(tmp_path, {"name": "a", "xml": "robot.xml"})
    done = give("run", jobs, cwd=tmp_path, before=bow_to_permissions)
    assert done.returncode == 2
    assert "permission denied" in done.stderr.lower()


def test_odd_names_make_safe_directories_and_are_kept_as_they_are(tmp_path: Path) -> None:
    names = ["../../etc", "a/b", "two words", "Läufer №1", ".", "-rf", "$(touch gone)", "x" * 300]
    jobs = write_experiment(tmp_path / "work", *(odd(name, "nothing", total_timesteps=128) for name in names[:4]))
    done = give("run", jobs, "--run-dir", "run", cwd=tmp_path / "work")
    assert done.returncode == 0, done.stderr
    rows = commands.summary(tmp_path / "work/run")
    assert [row["name"] for row in rows.values()] == names[:4]
    assert sorted(path.name for path in (tmp_path / "work/run/jobs").iterdir()) == sorted(rows)
    assert all(job_id.isascii() and "/" not in job_id and " " not in job_id for job_id in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    jobs = write_experiment(tmp_path / "work", *(odd(name, "nothing") for name in names))
    plan = json.loads(give("run", jobs, "--dry-run", "--json", cwd=tmp_path / "work").stdout)
    assert [job["name"] for job in plan["jobs"]] == names
    assert all(len(job["job_id"]) < 120 and job["job_id"][0] not in ".-" for job in plan["jobs"])


# -- run directories


def job(tmp_path: Path) -> Path:
    return write_experiment(tmp_path, odd("one", "nothing"))


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("precious")
    for option in ([], ["--fresh"], ["--rebuild-ledger"]):
        done = give("run", job(tmp_path), "--run-dir", "mine", *option, cwd=tmp_path)
        assert done.returncode == 2
        assert "mine: exists and is not a run directory of ours" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("run_dir", "fragment"),
    [("file", "is a file"), ("file/below", "Not a directory"), ("x" * 300, "too long"), ("/proc/run", "--run-dir")],
    ids=["a file", "below a file", "a name too long", "where nothing can be made"],
)
def test_an_impossible_run_directory_is_told(run_dir: str, fragment: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = give("run", job(tmp_path), "--run-dir", run_dir, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert fragment in done.stderr
    assert "--run-dir" in done.stderr


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_a_read_only_run_directory_is_told_and_still_shown(finished: Experiment) -> None:
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
        done = give("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
        shown = give("status", "run", cwd=finished.cwd)
        retried = give("retry", "run", cwd=finished.cwd)
    finally:
        subprocess.run(undo, check=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "run: cannot be used (Read-only file system)" in done.stderr or "Permission denied" in done.stderr
    assert shown.returncode == 0, shown.stderr
    assert "hopper-s0" in shown.stdout
    assert retried.returncode == 0


def test_a_full_disk_at_the_start_is_told_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {"name": "hopper", "xml": HOPPER, "total_timesteps": 256})
    ballast = fill(small_disk)
    done = give("run", jobs, "--run-dir", small_disk / "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no space left on the disk" in done.stderr
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]
    ballast.unlink()
    assert give("run", jobs, "--run-dir", small_disk / "run", cwd=tmp_path).returncode == 0


def test_a_disk_that_fills_up_stops_everything_resumably(small_disk: Path, tmp_path: Path) -> None:
    long = {"xml": HOPPER, "total_timesteps": 1_000_000, "checkpoint_every": 128}
    jobs = write_experiment(tmp_path, {"name": "one", **long}, {"name": "two", **long})
    run_dir = small_disk / "run"
    with Run(jobs, "--run-dir", run_dir, cwd=tmp_path) as run:
        run.until("launched")
        wait_until(lambda: list(run_dir.glob("jobs/*/checkpoints/*.pt")), "a checkpoint")
        ballast = fill(small_disk)
        assert run.end() == 1
    assert "no space left on the disk" in run.said
    ballast.unlink()
    with Run(jobs, "--run-dir", run_dir, cwd=tmp_path) as run:
        assert "go" in run.until("resumed")["message"]
        assert run.until("launched")["number"] >= 1
        run.signal(signal.SIGINT)
        assert run.end() == 130


# -- the ledger


GARBAGE = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "overwritten": lambda path: path.write_bytes(os.urandom(20_000)),
    "overwritten inside": lambda path: path.write_bytes(path.read_bytes()[:4096] + os.urandom(20_000)),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", GARBAGE)
def test_a_damaged_ledger_is_refused_and_rebuilt_on_request(how: str, finished: Experiment) -> None:
    ledger = finished.run_dir / "ledger.sqlite3"
    rows = commands.summary(finished.run_dir)
    GARBAGE[how](ledger)
    before = ledger.read_bytes() if ledger.exists() else None
    refused = give("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "run --rebuild-ledger" in refused.stderr
    assert (ledger.read_bytes() if ledger.exists() else None) == before, "it is never overwritten"
    rebuilt = give("run", finished.jobs, "--run-dir", "run", "--rebuild-ledger", cwd=finished.cwd)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert "2 jobs were finished before" in rebuilt.stdout
    assert " launched on CPU " not in rebuilt.stdout
    for job_id, row in commands.summary(finished.run_dir).items():
        for key in ("state", "env_steps", "ep_rew_mean", "ep_rew_mean_first", "eval_mean", "attempts"):
            assert row[key] == rows[job_id][key], key


def test_a_ledger_is_not_rebuilt_from_what_cannot_be_read(finished: Experiment) -> None:
    (finished.run_dir / "jobs/hopper-s0/spec.json").write_text("{")
    before = (finished.run_dir / "ledger.sqlite3").read_bytes()
    done = give("run", finished.jobs, "--run-dir", "run", "--rebuild-ledger", cwd=finished.cwd)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hopper-s0/spec.json: cannot be read" in done.stderr
    assert (finished.run_dir / "ledger.sqlite3").read_bytes() == before


# -- workers that misbehave: the others go on


def run_beside_a_good_one(tmp_path: Path, *bad: dict[str, Any]) -> dict[str, dict[str, Any]]:
    jobs = write_experiment(tmp_path, *bad, odd("good", "nothing"))
    done = give("run", jobs, "--run-dir", "run", "--grace", "0.5", cwd=tmp_path)
    assert done.returncode == 1
    rows = commands.summary(tmp_path / "run")
    assert rows["good-s0"]["state"] == "SUCCEEDED"
    return rows


def test_non_finite_numbers_fail_as_diverged(tmp_path: Path) -> None:
    (tmp_path / "explodes.xml").write_text(EXPLODES)
    rows = run_beside_a_good_one(
        tmp_path,
        odd("nan", "nan"),
        {"name": "explodes", "xml": "explodes.xml", "task_options": {"terminate_when_unhealthy": False}},
    )
    assert (rows["nan-s0"]["state"], rows["nan-s0"]["cause"]) == ("FAILED", "diverged")
    assert "not finite" in rows["nan-s0"]["message"]
    assert (rows["explodes-s0"]["state"], rows["explodes-s0"]["cause"]) == ("FAILED", "diverged")
    assert "explodes.xml" in rows["explodes-s0"]["message"]
    assert all(rows[name]["attempts"] == 1 for name in ("nan-s0", "explodes-s0")), "it would diverge again"


def test_errors_of_the_users_code_are_told_with_their_place_and_not_retried(tmp_path: Path) -> None:
    rows = run_beside_a_good_one(tmp_path, odd("fail", "fail"), odd("leave", "leave"), odd("vanish", "vanish"))
    assert rows["fail-s0"]["message"].startswith("ValueError: the knee fell off (")
    assert "odd.py:" in rows["fail-s0"]["message"]
    assert rows["leave-s0"]["message"].startswith("SystemExit: 3")
    told = give("status", "run", cwd=tmp_path).stdout
    assert 'raise ValueError("the knee fell off")' in told, "the last lines of the traceback"
    assert "Traceback" not in told
    assert "before the training was done" in rows["vanish-s0"]["message"], "exit code 0 alone is no success"
    assert all(rows[name]["attempts"] == 1 for name in ("fail-s0", "leave-s0", "vanish-s0"))


def test_a_crash_is_retried_as_often_as_asked(tmp_path: Path) -> None:
    rows = run_beside_a_good_one(tmp_path, odd("segfault", "segfault", retry={"max_retries": 1}))
    assert rows["segfault-s0"]["attempts"] == 2
    assert rows["segfault-s0"]["message"] == "killed by SIGSEGV (attempt 2 of 2)"


def test_a_hundred_megabytes_of_output_hurt_nobody(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("talk", "talk"))
    done = give("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "run/jobs/talk-s0/attempts/0/worker.log"
    assert log.stat().st_size >= 100 * 2**20
    shown = give("logs", "run", "talk", "-n", "3", cwd=tmp_path)
    assert len(shown.stdout) < 10_000
    log.unlink()


def test_a_deaf_worker_and_its_children_are_gone_after_the_grace_period(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("deaf", "go_deaf"), odd("parent", "have_children"))
    with Run(jobs, "--run-dir", "run", "--max-parallel", "2", "--grace", "0.5", cwd=tmp_path) as run:
        token = token_of(run.until("launched", "deaf-s0")["pid"])
        run.until("launched", "parent-s0")
        for name, said in (("deaf", "deaf"), ("parent", "children")):
            log = tmp_path / f"run/jobs/{name}-s0/attempts/0/worker.log"
            wait_until(lambda log=log, said=said: said in log.read_text(), said)
        assert len(carriers(token)) == 4, "two workers, two children"
        run.signal(signal.SIGTERM)
        assert run.end() == 130
    wait_until(lambda: not carriers(token), "every process gone", patience_s=2)


def test_a_killed_worker_is_retried_from_its_checkpoint(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {"name": "hopper", "xml": HOPPER, "total_timesteps": 4096})
    checkpoints = tmp_path / "run/jobs/hopper-s0/checkpoints"
    with Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        pid = run.until("launched")["pid"]
        wait_until(lambda: list(checkpoints.glob("*.pt")), "a checkpoint")
        commands.kill(pid)
        assert "killed by SIGKILL; retry 1 of 2" in run.until("retrying")["message"]
        assert run.end() == 0
    record = json.loads((tmp_path / "run/jobs/hopper-s0/attempts/1/exit.json").read_text())
    assert record["resumed_from"] >= 128
    row = commands.summary(tmp_path / "run")["hopper-s0"]
    assert (row["state"], row["attempts"], row["env_steps"]) == ("SUCCEEDED", 2, 4096)


def test_a_stopped_worker_is_taken_for_hung_and_retried(tmp_path: Path) -> None:
    jobs = write_experiment(
        tmp_path, {"name": "hopper", "xml": HOPPER, "total_timesteps": 4096, "resources": {"stall_timeout": 3}}
    )
    checkpoints = tmp_path / "run/jobs/hopper-s0/checkpoints"
    with Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        pid = run.until("launched")["pid"]
        wait_until(lambda: list(checkpoints.glob("*.pt")), "a checkpoint")
        commands.kill(pid, signal.SIGSTOP)
        retrying = run.until("retrying")
        assert retrying["cause"] == "stalled"
        assert "no progress for" in retrying["message"]
        assert run.end() == 0


def test_limits_end_a_job_and_say_what_was_reached(tmp_path: Path) -> None:
    rows = run_beside_a_good_one(
        tmp_path,
        odd("eats", "eat", resources={"memory": "500 MiB"}),
        odd("waits", "wait", resources={"timeout": 3}),
    )
    assert rows["eats-s0"]["cause"] == "memory-limit"
    assert "memory limit 500 MiB, reached" in rows["eats-s0"]["message"]
    assert rows["waits-s0"]["cause"] == "timeout"
    assert "timeout 3 s, reached" in rows["waits-s0"]["message"]


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """The limit of a memory cgroup of 700 MiB, to be entered by whoever writes to the ``cgroup.procs`` beside it."""
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
            wait_until(lambda group=group: not (group / "cgroup.procs").read_text(), "nobody is left in the group")
            group.rmdir()
            return
    pytest.skip("no memory cgroup may be made here")


def test_an_out_of_memory_kill_is_named_and_retried(small_memory: Path, tmp_path: Path) -> None:
    # The limit is the machine's total: a job may ask for all of it, and the supervisor needs some too.
    jobs = write_experiment(tmp_path, odd("eats", "eat", retry={"max_retries": 1}, resources={"memory": "700 MiB"}))
    process = subprocess.Popen(
        ["sh", "-c", 'echo $$ > "$0"/cgroup.procs; exec "$@"', small_memory.parent, *commands.command("run", jobs)],
        cwd=tmp_path,
        env=commands.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((tmp_path / "runs/tiny/jobs/eats-s0/attempts/0").exists, "a worker is launched")
    # What it shares with others counts as its own, but not in the group: the job's limit is to be out of reach.
    small_memory.write_text(str(500 * 2**20))
    out, _ = process.communicate(timeout=commands.PATIENCE_S)
    assert process.returncode == 1, out
    assert commands.summary(tmp_path / "runs/tiny")["eats-s0"]["cause"] == "out-of-memory", out


def test_two_commands_at_once_make_one_supervisor(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing", total_timesteps=2048))
    with Run(jobs, "--run-dir", "run", cwd=tmp_path) as first, Run(jobs, "--run-dir", "run", cwd=tmp_path) as second:
        codes = first.end(), second.end()
    assert sorted(codes) == [0, 2]
    loser = first if codes[0] == 2 else second
    assert "held by another supervisor" in loser.said
    assert commands.summary(tmp_path / "run")["one-s0"]["state"] == "SUCCEEDED"


# -- being stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_during_start_up_launches_nothing_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {"name": "slow", "entry_point": "slow:make"})
    (tmp_path / "slow.py").write_text("import time\nopen('imported', 'w').close()\ntime.sleep(600)\n")
    with Run(jobs, "--run-dir", "runs/it", cwd=tmp_path) as run:
        wait_until((tmp_path / "imported").exists, "the examination has begun")
        run.signal(number)
        assert run.end() == 130
    assert run.said == "stopped; nothing was launched\n"
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_twice_does_not_wait(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("deaf", "go_deaf"))
    log = tmp_path / "run/jobs/deaf-s0/attempts/0/worker.log"
    with Run(jobs, "--run-dir", "run", "--grace", "600", cwd=tmp_path) as run:
        token = token_of(run.until("launched")["pid"])
        wait_until(lambda: "deaf" in log.read_text(), "deaf")
        run.signal(signal.SIGINT)
        run.until("stopping")
        run.signal(signal.SIGINT)
        assert "killing 1 workers" in run.until("stopping")["message"]
        run.signal(signal.SIGINT)  # during shutdown: once more changes nothing
        assert run.end() == 130
    wait_until(lambda: not carriers(token), "every process gone", patience_s=2)
    assert commands.summary(tmp_path / "run")["deaf-s0"]["state"] == "PENDING"


def test_hanging_up_twice_is_not_impatience(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {"name": "hopper", "xml": HOPPER, "total_timesteps": 1_000_000})
    with Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        run.until("launched")
        wait_until(lambda: list(tmp_path.glob("run/jobs/*/checkpoints/*.pt")), "a checkpoint")
        run.signal(signal.SIGHUP)
        run.signal(signal.SIGHUP)
        assert run.end() == 130
    record = json.loads((tmp_path / "run/jobs/hopper-s0/attempts/0/exit.json").read_text())
    assert record["code"] == 11, "it left at a whole checkpoint"


def test_few_open_files_are_enough(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, *(odd(f"job{index}", "nothing", total_timesteps=128) for index in range(4)))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        done = give("run", jobs, "--run-dir", "run", cwd=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert done.returncode == 0, done.stderr + done.stdout
