"""`resume --all` after everything was killed, as a power cut or a reboot does it."""

from __future__ import annotations

import csv
import dataclasses
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import LONG_PATIENCE_S, invoke, odd, stubbed, write_experiment
from executor_helpers import await_gone
from supervisor_helpers import Experiment, make_job

from orchestrator.core.job import Paused, State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory, run_end, run_index
from orchestrator.experiment.from_outside import resume_all
from orchestrator.experiment.planning import start_conditions
from orchestrator.experiment.planning.start_conditions import StartConditions
from orchestrator.ledger import Ledger
from orchestrator.machine.process_identity import boot_id
from orchestrator.machine.topology import online_cpus


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where experiments are, with an index of their own; supervisors that are left there are
    killed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(start_conditions, "PROGRAM", tuple(stubbed()))
    yield tmp_path
    for lock in tmp_path.glob("*/supervisor.lock"):
        if (left := run_directory.holder(RunPaths(lock.parent))) and left.pid != os.getpid():
            commands.kill(left.pid)


def begin(folder: Path, name: str, *options: str, before: tuple[str, ...] = ()) -> Path:
    """A detached experiment of two jobs in ``folder/name``; its first jobs run."""
    (folder / f"files-{name}").mkdir()
    jobs = write_experiment(folder / f"files-{name}", odd("one", "nothing"), odd("two", "nothing"))
    typed = stubbed("run", jobs, "--run-dir", folder / name, "--detach", *options)
    done = commands.finish([*before, *typed], cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / name


def supervisor_of(run_dir: Path) -> int:
    found = run_directory.holder(RunPaths(run_dir))
    assert found is not None
    return found.pid


def worker_of(run_dir: Path) -> int:
    """The worker that runs, as the ledger has it: ``summary.json`` is written at intervals, and may
    name one that has ended."""
    ledger = Ledger.open(RunPaths(run_dir).ledger, read_only=True)
    try:
        pids = [row["pid"] for row in ledger.summary() if row["state"] == "RUNNING"]
    finally:
        ledger.close()
    [pid] = pids
    assert pid is not None
    return pid


def kill_everything(*run_dirs: Path) -> None:
    """The supervisors and all that they have started, at once."""
    pids = []
    for run_dir in run_dirs:
        token = commands.token_of(worker_of(run_dir))
        pids += [supervisor_of(run_dir), *commands.carriers(token)]
    for one in pids:
        commands.kill(one)
    await_gone(pids)


def resumed(folder: Path) -> dict[str, dict[str, Any]]:
    """What `resume --all` says of each run directory, by its name."""
    done = invoke("resume", "--all", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return {Path(one["run_dir"]).name: one for one in json.loads(done.stdout)}


def of_the_index(folder: Path, name: str, state: State | None = None) -> Path:
    """A run directory without a supervisor, with one job: PENDING, unless another state is named."""
    run_dir = folder / name
    run_dir.mkdir()
    ledger = Experiment(run_dir, [make_job("j0")]).ledger
    if state is not None:
        ledger.set_state("j0", state)
    ledger.close()
    (run_dir / "supervisor.lock").touch()
    (run_dir / "experiment.toml").write_text('name = "it"')
    run_index.note(run_dir, name)
    return run_dir


def ended(run_dir: Path, exit_code: int, **facts: str) -> Path:
    end = {"holder": "", "exit_code": exit_code, "message": "", "ended_at": 1.0, **facts}
    (run_dir / "ended.json").write_text(json.dumps(end))
    return run_dir


def test_what_was_killed_goes_on_as_it_was_started(folder: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    before = ("nice", "-n", "3", "taskset", "-c", str(cpu))
    run_dir = begin(folder, "run", "--max-parallel", "1", "--grace", "7", before=before)
    kill_everything(run_dir)
    shown = resumed(folder)["run"]
    pid = supervisor_of(run_dir)
    assert (shown["fate"], shown["pid"]) == ("resumed", pid)
    assert os.getsid(pid) == pid, "it has a session of its own, without a terminal"
    assert os.sched_getaffinity(pid) == {cpu}
    niceness = os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert os.getpriority(os.PRIO_PROCESS, pid) == niceness
    assert StartConditions.recorded(RunPaths(run_dir)) == StartConditions(
        max_parallel=1,
        grace_s=7.0,
        niceness=niceness,
        cpus=(cpu,) if len(online_cpus()) > 1 else None,
    )
    for name in ("one-s0", "two-s0"):
        (folder / f"go-{name}").touch()
    assert invoke("wait", run_dir, cwd=folder).returncode == 0
    attempts = {row["attempts"] for row in commands.summary(run_dir).values()}
    assert attempts == {1, 2}, "one had run before"
    assert resumed(folder) == {}, "it has finished"


def standing(run_dir: Path) -> Path:
    """A detached experiment that has trained one job and stands amid another one, until there is a
    file ``go`` beside its job file."""
    amid = odd("amid", "stand", env_kwargs={"deed": "stand", "at": 100})
    files = run_dir.with_name(f"files-{run_dir.name}")
    head = 'max_parallel = 1\norder = "as-listed"'
    jobs = write_experiment(files, odd("whole", "nothing"), amid, head=head)
    done = commands.give("run", jobs, "--run-dir", run_dir, "--detach", cwd=files)
    assert done.returncode == 0, done.stderr
    has_checkpoint = RunPaths(run_dir).job("amid-s0").checkpoints_by_steps
    commands.wait_until(has_checkpoint, "a checkpoint of the job that stands", LONG_PATIENCE_S)
    return run_dir


@pytest.mark.nightly
def test_two_experiments_of_which_everything_was_killed_end_and_train_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_conditions, "PROGRAM", tuple(commands.command()))  # it trains
    paths = [RunPaths(standing(folder / name)) for name in ("ants", "bees")]
    kill_everything(*(run.root for run in paths))
    whole = [run.job("whole-s0").model.stat() for run in paths]
    for run in paths:
        (folder / f"files-{run.root.name}" / "go").touch()
    shown = resumed(folder)
    assert {name: one["fate"] for name, one in shown.items()} == dict.fromkeys(
        ("ants", "bees"), "resumed"
    )
    for run in paths:
        assert invoke("wait", run.root, cwd=folder).returncode == 0
        log = run.job("amid-s0").attempt(1).worker_log.read_text()
        assert "resumed at 128 env_steps" in log
    rows = [commands.summary(run.root) for run in paths]
    ends = {name: [(one[name]["state"], one[name]["attempts"]) for one in rows] for name in rows[0]}
    assert ends == {"whole-s0": [("SUCCEEDED", 1)] * 2, "amid-s0": [("SUCCEEDED", 2)] * 2}
    assert [run.job("whole-s0").model.stat() for run in paths] == whole, "it was not trained again"
    for run in paths:
        with run.job("amid-s0").timings_csv.open() as file:
            iterations = [int(row["env_steps"]) for row in csv.DictReader(file)]
        assert iterations == [128, 256, 384, 512], "each one is there once"
    assert resumed(folder) == {}, "nothing is left"


def test_what_needs_nothing_or_what_the_user_decides_is_left(folder: Path) -> None:
    ended(of_the_index(folder, "stopped"), 130, signal="SIGINT")
    ended(of_the_index(folder, "killed by hand"), 130, signal="SIGTERM", boot=boot_id())
    ended(of_the_index(folder, "out of disk"), 1, message="the disk is full")
    of_the_index(folder, "paused", Paused())
    ended(of_the_index(folder, "finished", Succeeded()), 0)
    shutil.rmtree(of_the_index(folder, "removed"))
    (of_the_index(folder, "of python") / "experiment.toml").unlink()
    stopped_program = ended(of_the_index(folder, "stopped program"), 130, signal="SIGTERM")
    (stopped_program / "experiment.toml").unlink()
    conditions = {"until": None, "max_parallel": None, "grace_s": 30.0, "niceness": 0, "cpus": None}

    def started_with(name: str, **changes: object) -> Path:
        run_dir = of_the_index(folder, name)
        sessions = json.dumps([{"started_with": {**conditions, **changes}}])
        (run_dir / "provenance.json").write_text(sessions)
        return run_dir

    ended(started_with("until seven", until=1.0), 130)
    started_with("elsewhere", cpus=[4095])
    with run_directory.claim(of_the_index(folder, "alive")):
        shown = resumed(folder)
    assert {one["fate"] for one in shown.values()} == {"left"}
    messages = {name: one["message"] for name, one in shown.items()}
    for name, word in {
        "stopped": "stopped by SIGINT",
        "killed by hand": "stopped by SIGTERM",
        "out of disk": "the disk is full",
        "paused": "paused",
        "removed": "gone",
        "of python": "made by a Python program",
        "stopped program": "the same call with run_dir=",
        "until seven": "--until",
        "elsewhere": "none of the CPUs is usable",
        "alive": f"process {os.getpid()}",
    }.items():
        assert word in messages.pop(name)
    assert messages == {}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_a_signal_has_stopped_before_the_last_boot_may_be_the_shutdown(name: str) -> None:
    end = run_end.RunEnd(holder="x", exit_code=130, message="", ended_at=1.0, signal=name, boot="x")
    assert end.is_by_shutdown
    assert not dataclasses.replace(end, boot=boot_id()).is_by_shutdown
    assert not dataclasses.replace(end, signal="SIGINT").is_by_shutdown


@pytest.mark.nightly
def test_what_the_shutdown_of_the_machine_has_stopped_goes_on_after_the_next_boot(
    folder: Path,
) -> None:
    run_dir = begin(folder, "run", "--max-parallel", "1")
    os.kill(supervisor_of(run_dir), signal.SIGTERM)
    assert invoke("wait", run_dir, cwd=folder).returncode == 130
    end = run_end.read(RunPaths(run_dir))
    assert end is not None
    assert (end.signal, end.boot) == ("SIGTERM", boot_id())
    assert resumed(folder)["run"]["fate"] == "left"
    of_another_boot = json.loads((run_dir / "ended.json").read_text()) | {"boot": "before"}
    (run_dir / "ended.json").write_text(json.dumps(of_another_boot))
    assert resumed(folder)["run"]["pid"] == supervisor_of(run_dir)


def test_what_cannot_be_resumed_is_told_with_exit_code_1(folder: Path) -> None:
    run_dir = of_the_index(folder, "run")
    (run_dir / "experiment.toml").write_text("name = 3")
    (of_the_index(folder, "damaged") / "ledger.sqlite3").write_bytes(b"")
    (of_the_index(folder, "examining") / "ledger.sqlite3").unlink()
    done = invoke("resume", "--all", cwd=folder)
    assert done.returncode == 1
    assert f"{run_dir}: could not be resumed: {run_dir}/experiment.toml" in done.stdout
    assert f"{folder}/damaged: cannot be read" in done.stdout
    assert f"{folder}/examining: was interrupted while its robots were examined" in done.stdout
    assert "0 resumed, 0 left as they are, 3 failed" in done.stdout


def test_where_no_process_can_be_started_the_others_are_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    of_the_index(folder, "first")
    of_the_index(folder, "second")
    monkeypatch.setattr(resume_all, "spawn", refused)
    found = list(resume_all.resume_all())
    assert [(one.name, one.fate) for one in found] == [("first", "failed"), ("second", "failed")]
    assert "Resource temporarily unavailable" in found[0].message


def test_all_is_asked_for_without_a_run_directory(folder: Path) -> None:
    assert invoke("resume", cwd=folder).returncode == 2
    assert invoke("resume", "run", "--all", cwd=folder).returncode == 2
    assert invoke("resume", "run", "--json", cwd=folder).returncode == 2
    none = invoke("resume", "--all", cwd=folder)
    assert (none.returncode, none.stdout) == (0, "no experiment was interrupted\n")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_in_the_documents_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    text = (commands.REPOSITORY / "docs/experiments.md").read_text(encoding="utf-8")
    unit = text.split("```ini\n")[1].split("```")[0]
    program, arguments = unit.split("ExecStart=")[1].splitlines()[0].split(" ", 1)
    assert arguments == "-m orchestrator resume --all"
    file = tmp_path / "orchestrator.service"
    file.write_text(unit.replace(program, sys.executable))  # which has to exist
    verify = ["systemd-analyze", "verify", "--user", file]
    environment = commands.environment(XDG_RUNTIME_DIR=str(tmp_path))
    done = commands.finish(verify, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    file.write_text(file.read_text().replace("RemainAfterExit", "RemainsAfterExit"))
    wrong = commands.finish(verify, cwd=tmp_path, env=environment)
    assert "RemainsAfterExit" in wrong.stderr, "an unknown key is told, with exit code 0"
