"""``selftest`` finds what falls short. In place of the command it starts one that copies a finished
run directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from command_helpers import invoke, wait_until
from supervisor_helpers import make_job

from orchestrator.core.errors import UsageError
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.files.temporary_folder import PREFIX
from orchestrator.core.job import Attempt, AttemptOutcome, Cause, Failed, Running, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.environment_variables import SELFTEST_VARIABLE
from orchestrator.core.processes.procfs import is_running
from orchestrator.features.selftest import campaign, command_run, result_view, round_folder
from orchestrator.features.selftest.campaign import SelftestOptions, SelftestResult
from orchestrator.features.selftest.faults import FAULTS, Fault, NotApplicableError, small_disk
from orchestrator.ledger import Ledger, summary
from orchestrator.ledger.rows import DeclaredJob

NOTHING = Fault(name="nothing", apply=lambda *_: True)
SLEEP = "import time; time.sleep(600)"
STAND_IN = """
import os, pathlib, shutil, subprocess, sys
finished, disturbed, deed = sys.argv[1:4]
is_first = os.path.basename(os.getcwd()) == "round-0"
shutil.copytree(finished if is_first else disturbed, "run")
if not is_first:
    exec(deed)
"""


def finished(
    run_dir: Path, *, weights: str = "ab" * 32, state: str = "SUCCEEDED", attempt_ends: bool = True
) -> Path:
    """A run directory with one job."""
    paths, job = RunPaths(run_dir), make_job("a-s0")
    paths.job("a-s0").root.mkdir(parents=True)
    with zipfile.ZipFile(paths.job("a-s0").model, "w") as archive:
        archive.writestr("policy", "")
    ledger = Ledger.create(paths.ledger)
    ledger.put_jobs([DeclaredJob(position=0, job=job)])
    attempt = Attempt(job_id="a-s0", number=0, cpus=(), gpus=(), started_at=0.0)
    ledger.start_attempt(attempt, queue_s=0.0)
    if attempt_ends:
        record = ExitRecord(code=0, message="", env_steps=1000, weights_sha256=weights)
        outcome = AttemptOutcome(cause=None)
        ledger.end_attempt(
            "a-s0", 0, ended_at=1.0, wall_s=1.0, returncode=0, outcome=outcome, record=record
        )
    states = {
        "SUCCEEDED": Succeeded(),
        "FAILED": Failed(cause=Cause.ERROR, message="the knee fell off"),
        "RUNNING": Running(attempt=attempt),
    }
    ledger.set_state("a-s0", states[state])
    ledger.commit()
    summary.write(paths, ledger)
    ledger.close()
    return run_dir


def play(
    tmp_path: Path,
    deed: str = "",
    fault: Fault = NOTHING,
    only_round: int | None = 1,
    **disturbed: Any,
) -> tuple[SelftestResult, list[str]]:
    """A self-test of one round, in which the experiment ends as ``disturbed`` and ``deed`` is done.
    With its output."""
    lines: list[str] = []
    run_dirs = finished(tmp_path / "undisturbed"), finished(tmp_path / "disturbed", **disturbed)
    command = [sys.executable, "-I", "-S", "-c", STAND_IN, *map(str, run_dirs), deed]
    options = SelftestOptions(
        minutes=0.0,
        seed=1,
        only_round=only_round,
        folder=tmp_path / "here",
        faults=[fault],
        command=command,
    )
    return campaign.selftest(options, lines.append), lines


def shortfalls(result: SelftestResult) -> str:
    return " ".join(
        text for row in result.rows for texts in row.shortfalls.values() for text in texts
    )


def test_without_a_shortfall_nothing_is_left(tmp_path: Path) -> None:
    result, lines = play(tmp_path, fault=Fault(name="never", apply=lambda *_: False))
    assert (result.exit_code, result.rounds, shortfalls(result)) == (0, 1, ""), lines
    assert not result.rows, "a single round shows only a fault that was applied or fell short"
    assert result.kept is None
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("disturbed", "deed", "message"),
    [
        ({"weights": "cd" * 32}, "", "a-s0 is SUCCEEDED, cdcdcdcdcdcd"),
        ({"state": "FAILED"}, "", "a-s0 is FAILED (the knee fell off)"),
        ({"state": "RUNNING", "attempt_ends": False}, "", "Attempt 1 of a-s0 has no end"),
        ({}, "open('run/ledger.sqlite3', 'r+b').truncate(100)", "The ledger cannot be read"),
        ({}, "sys.exit('no room')", "exit code 1: no room. Resumed"),
    ],
)
def test_what_falls_short_is_found_and_its_folder_kept(
    disturbed: dict[str, Any], deed: str, message: str, tmp_path: Path
) -> None:
    result, lines = play(tmp_path, deed, **disturbed)
    assert result.exit_code == 1
    assert message in shortfalls(result)
    assert message in lines[-1]
    assert result.kept is not None
    assert (result.kept / "round-1/run").is_dir()


def test_every_wrong_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{PREFIX}of-another-process").mkdir()
    deeds = (
        "os.remove('run/jobs/a-s0/model.zip')",
        "open('run/summary.json', 'w').write('[]')",
        "os.mkdir('run/.staging')",
        "open('run/jobs/a-s0/.spec.json.7.tmp', 'w')",
        "open('run/supervisor-error.log', 'w')",
        "print('Traceback (most recent call last)')",
        f"os.mkdir({str(tmp_path / PREFIX)!r} + 'x' + os.environ[{SELFTEST_VARIABLE!r}])",
    )
    result, _ = play(tmp_path, "; ".join(deeds))
    (row,) = result.rows
    assert [text.split(":")[0] for text in row.shortfalls[1]] == [
        "The supervisor reported an error of its own",
        "summary.json and the ledger differ.",
        "A policy cannot be read",
        "A temporary file or folder was left",
        "A temporary file or folder was left",
        "A command printed a traceback.",
        "A temporary folder was left",
    ]


def test_a_process_that_is_left_is_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_run, "LEFT_WITHIN_S", 0.1)
    deed = (
        f"subprocess.Popen([sys.executable, '-I', '-S', '-c', {SLEEP!r}], start_new_session=True)"
    )
    result, _ = play(tmp_path, deed)
    assert result.exit_code == 1
    (pid,) = map(int, re.findall(r"A process was left: .* \(pid (\d+)\)", shortfalls(result)))
    wait_until(lambda: not is_running(pid), "it is ended")


def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_run, "LEFT_WITHIN_S", 0.1)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    result, _ = play(tmp_path, f"subprocess.Popen([sys.executable, '-I', '-S', '-c', {SLEEP!r}])")
    assert result.exit_code == 1
    assert "A process cannot be killed: " in shortfalls(result)


def test_a_command_that_does_not_end_is_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def end_the_time(run: command_run.CommandRun, _: object) -> bool:
        pids.append(run.popen.pid)
        monkeypatch.setattr(command_run, "LIMIT_S", 0.0)
        return True

    result, _ = play(tmp_path, SLEEP, Fault(name="nothing", apply=end_the_time))
    assert result.exit_code == 1
    assert "did not end within 0 s" in shortfalls(result)
    assert pids
    assert not any(map(is_running, pids))


def test_ctrl_c_ends_it_with_the_results_so_far_and_leaves_nothing(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt(run: command_run.CommandRun, _: object) -> bool:
        pids.append(run.popen.pid)
        os.kill(os.getpid(), signal.SIGINT)
        run.pause()
        return True

    result, _ = play(tmp_path, SLEEP, Fault(name="nothing", apply=interrupt))
    assert (result.exit_code, result.interrupted, result.rounds) == (130, True, 0)
    assert pids
    assert not any(map(is_running, pids))
    assert not list((tmp_path / "here").iterdir())


def test_a_seed_gives_the_same_faults_at_the_same_moments(tmp_path: Path) -> None:
    def drawn(seed: int, rounds: int) -> list[str]:
        return [
            campaign.plan_round(seed, number, FAULTS).fault.name for number in range(1, rounds + 1)
        ]

    once = len(FAULTS)
    assert drawn(5, 2 * once) == drawn(5, 2 * once) != drawn(6, 2 * once)
    assert sorted(drawn(5, once)) == sorted(fault.name for fault in FAULTS), (
        "each kind once before any comes again"
    )
    moments = {str(campaign.plan_round(5, number, FAULTS).moment) for number in range(1, 40)}
    assert len(moments) > 20


def test_the_command_shows_each_fault_and_its_exit_code_tells_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = play(tmp_path, "sys.exit('no room')")
    monkeypatch.setattr(campaign, "selftest", lambda *_: result)
    done = invoke("selftest", cwd=tmp_path)
    assert done.returncode == 1
    assert "exit code 1: no room" in done.stdout
    assert f"--seed {result.seed}" in done.stdout
    assert str(result.kept) in done.stdout
    facts = json.loads(invoke("selftest", "--json", cwd=tmp_path).stdout)
    assert facts["rows"][0]["shortfalls"]["1"]
    assert not facts["passed"]
    done = invoke("selftest", "--round", "3", cwd=tmp_path)
    assert done.returncode == 2
    assert "--seed" in done.stderr


def test_an_unexpected_error_leaves_neither_processes_nor_a_folder(tmp_path: Path) -> None:
    pids: list[int] = []

    def fail(run: command_run.CommandRun, _: object) -> bool:
        pids.append(run.popen.pid)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        play(tmp_path, SLEEP, Fault(name="nothing", apply=fail))
    assert pids
    assert not any(map(is_running, pids))
    assert not list((tmp_path / "here").iterdir())


def test_what_a_killed_selftest_left_is_removed_by_the_next_and_what_fell_short_is_kept(
    tmp_path: Path,
) -> None:
    here = tmp_path / "here"
    killed, other = here / "selftest-killed", here / "selftest-other"
    for folder in (killed / "round-3", other / "round-4"):
        folder.mkdir(parents=True)
        (folder / round_folder.MARK).touch()
    (other / "round-2").mkdir()
    running = here / "selftest-running"
    running.mkdir()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(NotApplicableError):
            stack.enter_context(small_disk(killed / "round-3/run"))
        stack.enter_context(round_folder.under_way(running / "round-1"))
        result, _ = play(tmp_path)
        assert (running / "round-1").is_dir(), "another self-test runs there"
    assert result.exit_code == 0
    assert not killed.exists()
    assert [path.name for path in other.iterdir()] == ["round-2"]


def test_a_time_that_the_undisturbed_training_uses_up_is_refused_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="too short here: the undisturbed training alone took"):
        play(tmp_path, only_round=None)
    assert not list((tmp_path / "here").iterdir())


def test_the_same_faults_again_are_those_of_the_same_time_and_place() -> None:
    assert SelftestOptions().again(7) == "python -m orchestrator selftest --seed 7"
    again = SelftestOptions(minutes=60, folder=Path("a b")).again(7)
    assert again == "python -m orchestrator selftest --seed 7 --minutes 60 --dir 'a b'"


def test_important_faults_come_first_whatever_the_seed() -> None:
    important = {fault.name for fault in FAULTS if fault.is_important}
    assert {"SIGKILL: supervisor", "SIGKILL: worker", "full disk"} <= important
    for seed in range(5):
        drawn = [
            campaign.plan_round(seed, number, FAULTS).fault.name
            for number in range(1, len(important) + 1)
        ]
        assert set(drawn) == important


def test_faults_for_which_there_was_no_time_are_named_at_the_start_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is put forward: the undisturbed training takes 40 s of a minute, and so would every
    round."""
    forward, real = [0.0], time.monotonic

    def take_40_s(*_: object) -> bool:
        forward[0] += 40.0
        return True

    clock = types.SimpleNamespace(monotonic=lambda: real() + forward[0])
    monkeypatch.setattr(campaign, "time", clock)
    monkeypatch.setattr(campaign, "UNDISTURBED", Fault(name="no fault", apply=take_40_s))
    faults = [
        Fault(name="late", apply=take_40_s),
        Fault(name="first", apply=take_40_s, is_important=True),
        Fault(name="later", apply=take_40_s),
    ]
    lines: list[str] = []
    run_dir = finished(tmp_path / "undisturbed")
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        STAND_IN,
        str(run_dir),
        str(run_dir),
        "import time; time.sleep(5)",
    ]
    options = SelftestOptions(
        minutes=1.0, seed=1, folder=tmp_path / "here", faults=faults, command=command
    )
    result = campaign.selftest(options, lines.append)
    assert "3 kinds of faults, one in each round, the important ones first" in lines[1]
    assert "1 of 3 kinds of faults fit into 1 min (first)" in lines[3]
    assert (result.exit_code, result.rounds, sorted(result.not_reached)) == (
        0,
        1,
        ["late", "later"],
    )
    assert sorted(json.loads(result.to_json())["not_reached"]) == ["late", "later"]
    shown = "\n".join(result_view._closing_lines(result))
    assert re.search(
        r"Not tested, as the time was over \(--minutes \d+ is enough for each once\): late", shown
    )
