"""The programs of `[notify]`: what they are told, and that they harm neither the supervisor nor
each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import invoke, odd, write_experiment

from orchestrator.core.processes.procfs import is_running
from orchestrator.experiment import run_index
from orchestrator.features.notifications import notify_programs as notifications
from orchestrator.features.notifications.notify_programs import NotifyPrograms, Settings
from orchestrator.server.requests import RequestFolder

TELL = 'env > "$1.tmp"; cat; echo it is told; mv "$1.tmp" "$1"'
"""A program that writes its environment into a file, after it has read its standard input to the
end."""


class Scene:
    """The programs of an experiment of which nothing runs."""

    def __init__(self, folder: Path, on_failure: Sequence[str]) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        settings = Settings(
            on_failure=on_failure, on_end=[], experiment="tiny", base=str(folder), cursor=0
        )
        self.programs = NotifyPrograms(run_dir=self.run_dir, settings=settings)

    def fail(self, job_id: str, reason: str = "the knee fell off") -> None:
        facts = {"cause": "error", "reason": reason}
        self.programs.note_failure(job_id, f"{job_id} failed", facts)

    @property
    def warnings(self) -> list[str]:
        """What the supervisor is asked to report."""
        received = RequestFolder(self.run_dir / "requests").new(())
        return [one.request.args["message"] for one in received if one.request is not None]


def is_gone(noted: Path) -> bool:
    """Whether the process whose pid is in that file has ended."""
    return not is_running(int(noted.read_text()))


def variables(path: Path) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in path.read_text().splitlines() if "=" in line)


def test_a_failed_job_is_told_in_the_environment(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["sh", "-c", TELL, "sh", "failure"])
    scene.fail("a-s0", "no\0thing\x1b[2J")
    scene.programs.finish()
    told = variables(tmp_path / "failure")
    run_dir = str(scene.run_dir)
    assert told.items() >= {
        ("ORCHESTRATOR_EVENT", "failure"),
        ("ORCHESTRATOR_EXPERIMENT", "tiny"),
        ("ORCHESTRATOR_RUN_DIR", run_dir),
        ("ORCHESTRATOR_JOB", "a-s0"),
        ("ORCHESTRATOR_JOB_DIR", f"{run_dir}/jobs/a-s0"),
        ("ORCHESTRATOR_CAUSE", "error"),
        ("ORCHESTRATOR_MESSAGE", r"no\u0000thing\u001b[2J"),
    }
    assert scene.warnings == []
    log = (scene.run_dir / "notify.log").read_text()
    assert (log.count("it is told\n"), "on_failure: sh -c" in log) == (1, True)


def test_hundreds_of_failures_start_a_few_programs_at_once_and_all_in_the_end(
    tmp_path: Path,
) -> None:
    scene = Scene(
        tmp_path,
        ["sh", "-c", 'while [ ! -e go ]; do sleep 0.02; done; : > "$ORCHESTRATOR_JOB"'],
    )
    for number in range(30):
        scene.fail(f"j{number}")
    scene.programs.tick()
    scene.programs.tick()
    assert len(scene.programs.running) == notifications.AT_ONCE
    (tmp_path / "go").touch()
    scene.programs.finish()
    assert {path.name for path in tmp_path.glob("j*")} == {f"j{number}" for number in range(30)}


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (["no-such-program", "x"], "could not be started: No such file"),
        (["sh", "-c", "exit 3"], "ended with exit code 3"),
        (["sh", "-c", "kill -9 $$"], "ended with signal 9"),
    ],
)
def test_a_program_that_fails_is_one_warning_however_often(
    program: list[str], why: str, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, program)
    for number in range(6):
        scene.fail(f"j{number}")
    scene.programs.finish()
    (warning,) = scene.warnings
    assert f"notify.on_failure: {program[0]} {why}" in warning


def test_a_program_that_takes_too_long_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "TIME_LIMIT_S", 0.3)
    late = "trap '' TERM HUP INT; sleep 600 & echo $! > child.tmp; mv child.tmp child; echo $$ > own; sleep 600"
    scene = Scene(tmp_path, ["sh", "-c", late])
    scene.fail("a")
    scene.programs.tick()
    commands.wait_until((tmp_path / "own").exists, "the program runs")
    commands.wait_until(lambda: scene.programs.tick() or not scene.programs.running, "it is killed")
    assert "took more than" in scene.warnings[0]
    for name in ("own", "child"):
        commands.wait_until(lambda: is_gone(tmp_path / name), f"{name} is gone")  # noqa: B023


FAILS = """
import json, pathlib, sys
record = {"code": 1, "message": "the knee fell off", "env_steps": 1}
(pathlib.Path(sys.argv[1]) / "attempts" / sys.argv[2] / "exit.json").write_text(json.dumps(record))
sys.exit(1)
"""


def test_the_command_tells_of_failure_and_end_and_resuming_tells_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    commands.add_to_server(monkeypatch, commands.with_worker(FAILS))
    end, failure = (
        'echo "$ORCHESTRATOR_EXIT_CODE $ORCHESTRATOR_FAILED" >> end',
        'echo "$ORCHESTRATOR_MESSAGE" >> failure',
    )
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    text = jobs.read_text() + f"[notify]\non_end = {commands.toml(['sh', '-c', end])}\n"
    jobs.write_text(text + f"on_failure = {commands.toml(['sh', '-c', failure])}\n")
    done = invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert ((tmp_path / "end").read_text(), (tmp_path / "failure").read_text()) == (
        "1 1\n",
        "the knee fell off\n",
    )
    (listed,) = (
        run for run in run_index.listed_runs() if run.entry.run_dir == str(tmp_path / "run")
    )
    assert (listed.state, listed.entry.name, listed.jobs) == ("finished", "tiny", {"FAILED": 1})
    again = invoke("run", "run", cwd=tmp_path)
    assert again.returncode == 1, again.stderr
    assert (tmp_path / "run/end").read_text() == "1 1\n", (
        "a run directory has no folder of a job file"
    )
    kept = tmp_path / "run/experiment.toml"
    kept.write_text(kept.read_text().replace("on_end = [", "on_end = [3, "))
    damaged = invoke("run", "run", cwd=tmp_path)
    assert (damaged.returncode, "experiment.toml: cannot be read" in damaged.stderr) == (2, True)
    plan = invoke("run", jobs, "--dry-run", cwd=tmp_path)
    assert "notify.on_failure: sh -c" in plan.stdout
