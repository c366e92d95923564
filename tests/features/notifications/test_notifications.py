"""The programs of `[notify]`: what they are told, and that they harm neither the supervisor nor
each other."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import invoke, odd, write_experiment
from supervisor_helpers import RecordingReporter

from orchestrator.core.processes.procfs import is_running
from orchestrator.executors.local import LocalExecutor
from orchestrator.experiment.beside_run import PartsBesideRun
from orchestrator.experiment.directory import run_index
from orchestrator.experiment.directory.run_end import RunOutcome
from orchestrator.experiment.examination import preflight
from orchestrator.features.notifications import notify_programs as notifications
from orchestrator.features.notifications.notify_programs import NotifyPrograms
from orchestrator.features.notifications.notify_table import Notify
from orchestrator.jobfile import Experiment
from orchestrator.supervisor.stop_signals import StopRequests

TELL = 'env > "$1.tmp"; cat; echo it is told; mv "$1.tmp" "$1"'
"""A program that writes its environment into a file, after it has read its standard input to the
end."""


class Scene:
    """The programs of an experiment of which nothing runs."""

    def __init__(
        self, folder: Path, *, on_end: Sequence[str] = (), on_failure: Sequence[str] = ()
    ) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self.inner = RecordingReporter()
        self.outcome, self.stops = RunOutcome(), StopRequests()
        notify = Notify(on_end=tuple(on_end), on_failure=tuple(on_failure))
        experiment = Experiment(
            name="tiny",
            max_parallel=None,
            order="as-listed",
            tables={"notify": notify},
            jobs=(),
            source="jobs.toml",
            base=folder,
        )
        self.beside = PartsBesideRun(inner=self.inner, outcome=self.outcome, stops=self.stops)
        self.beside.ask(experiment, self.run_dir, is_listed=True)

    @property
    def programs(self) -> NotifyPrograms:
        (made,) = (part for part in self.beside._parts if isinstance(part, NotifyPrograms))
        return made

    def fail(self, job_id: str, reason: str = "the knee fell off") -> None:
        self.beside.event("failed", f"{job_id} failed", job_id=job_id, cause="error", reason=reason)

    @property
    def warnings(self) -> list[str]:
        return [message for kind, message, _ in self.inner.events if kind == "warning"]


def is_gone(noted: Path) -> bool:
    """Whether the process whose pid is in that file has ended."""
    return not is_running(int(noted.read_text()))


def variables(path: Path) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in path.read_text().splitlines() if "=" in line)


def test_a_failed_job_and_the_end_are_told_in_the_environment(tmp_path: Path) -> None:
    program = ["sh", "-c", TELL, "sh"]
    scene = Scene(tmp_path, on_failure=[*program, "failure"], on_end=[*program, "end"])
    with scene.beside:
        scene.fail("a-s0", "no\0thing\x1b[2J")
        scene.programs.after_turn()
        scene.outcome.begin(lambda: Counter(FAILED=1, SUCCEEDED=3))
        scene.outcome.end(1)
    told = {
        name: value
        for name, value in variables(tmp_path / "failure").items()
        if name.startswith("ORCHESTRATOR_")
    }
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
    told = variables(tmp_path / "end")
    names = ("EVENT", "EXIT_CODE", "SUCCEEDED", "FAILED", "CANCELLED", "PENDING")
    assert [told[f"ORCHESTRATOR_{name}"] for name in names] == ["end", "1", "3", "1", "0", "0"]
    assert scene.warnings == []
    log = (scene.run_dir / "notify.log").read_text()
    assert (log.count("it is told\n"), log.count("--- "), "on_failure: sh -c" in log) == (
        2,
        2,
        True,
    )


def test_hundreds_of_failures_start_a_few_programs_at_once_and_all_in_the_end(
    tmp_path: Path,
) -> None:
    scene = Scene(
        tmp_path,
        on_failure=["sh", "-c", 'while [ ! -e go ]; do sleep 0.02; done; : > "$ORCHESTRATOR_JOB"'],
    )
    with scene.beside:
        for number in range(30):
            scene.fail(f"j{number}")
        scene.programs.after_turn()
        scene.programs.after_turn()
        assert len(scene.programs._running) == notifications.AT_ONCE
        (tmp_path / "go").touch()
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
    scene = Scene(tmp_path, on_failure=program)
    with scene.beside:
        for number in range(6):
            scene.fail(f"j{number}")
    (warning,) = scene.warnings
    assert f"notify.on_failure: {program[0]} {why}" in warning


def test_a_program_that_takes_too_long_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "TIME_LIMIT_S", 0.3)
    late = "trap '' TERM HUP INT; sleep 600 & echo $! > child.tmp; mv child.tmp child; echo $$ > own; sleep 600"
    scene = Scene(tmp_path, on_failure=["sh", "-c", late])
    with scene.beside:
        scene.fail("a")
        scene.programs.after_turn()
        commands.wait_until((tmp_path / "own").exists, "the program runs")
        commands.wait_until(
            lambda: scene.programs.after_turn() or not scene.programs._running, "it is killed"
        )
    assert "took more than" in scene.warnings[0]
    for name in ("own", "child"):
        commands.wait_until(lambda: is_gone(tmp_path / name), f"{name} is gone")  # noqa: B023


def test_a_run_that_was_refused_is_no_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path, on_end=["sh", "-c", ": > told"])
    with pytest.raises(KeyboardInterrupt), scene.beside:
        raise KeyboardInterrupt
    assert not (tmp_path / "told").exists()


FAILS = """
import json, pathlib, sys
record = {"code": 1, "message": "the knee fell off", "env_steps": 1}
(pathlib.Path(sys.argv[1]) / "attempts" / sys.argv[2] / "exit.json").write_text(json.dumps(record))
sys.exit(1)
"""


def test_the_command_tells_of_failure_and_end_and_resuming_tells_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = (sys.executable, "-I", "-S", "-c", FAILS)
    monkeypatch.setattr(
        "orchestrator.executors.local_backend.LocalExecutor",
        lambda: LocalExecutor(worker_command=worker),
    )
    monkeypatch.setattr(
        preflight, "examine", lambda jobs, **_: {job.job_id: preflight.JobVerdict() for job in jobs}
    )
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
