"""`resume --all` after everything was killed, as a power cut or a reboot does it."""

from __future__ import annotations

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
from command_helpers import invoke, odd, stubbed, write_experiment
from executor_helpers import await_gone
from supervisor_helpers import Run, make_job

from orchestrator.core.job import State
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory, run_end, run_index, start_conditions
from orchestrator.experiment.start_conditions import StartConditions
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
    ledger = Run(run_dir, [make_job("j0")]).ledger
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
