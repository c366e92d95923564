"""What commands say where an executor's feature cannot tell, or end, what it has left."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core import feature
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.executors.kinds import ExecutorKind
from orchestrator.experiment.directory import left_batch_jobs
from orchestrator.experiment.directory.run_directory import LockHolder
from orchestrator.experiment.from_outside import control


class Falls:
    """Its batch jobs were used, and nothing else can be said of them."""

    def were_used(self, run_dir: Path) -> bool:
        return True

    def left(self, run_dirs: Collection[Path]) -> Any:
        raise ValueError("no cluster here")

    left_by_files = end = wait = left


class Garbles(Falls):
    def left(self, run_dirs: Collection[Path]) -> Any:
        return dict.fromkeys(run_dirs, "something")

    def left_by_files(self, run_dir: Path) -> Any:
        return "something"


def submitting(monkeypatch: pytest.MonkeyPatch, batch_jobs: Any) -> None:
    """Let an executor have submitted these everywhere."""
    kind = ExecutorKind(name="mine", open=lambda _: None, batch_jobs=batch_jobs)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(left_batch_jobs, "executor_kinds", lambda: {"mine": kind})


@pytest.mark.parametrize("batch_jobs", [Falls(), Garbles()])
def test_what_cannot_be_told_may_be_left(
    batch_jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitting(monkeypatch, batch_jobs)
    paths = RunPaths(tmp_path)
    for left in (left_batch_jobs.of(paths), left_batch_jobs.by_files(paths)):
        assert left is not None
        assert str(left).startswith("batch jobs named of --executor mine may still train (mine")


def test_what_cannot_be_ended_or_waited_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitting(monkeypatch, Falls())
    paths = RunPaths(tmp_path)
    for act, deed in ((left_batch_jobs.end, "ended"), (left_batch_jobs.wait_for_end, "waited for")):
        with pytest.raises(UsageError) as error:
            act(paths)
        assert str(error.value) == (
            f"{tmp_path}: batch jobs of --executor mine could not be {deed}"
            " (ValueError: no cluster here); end them with the cluster's own command"
        )


def test_who_cannot_say_whether_it_was_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgets(Falls):
        def were_used(self, run_dir: Path) -> bool:
            raise SystemExit(3)

    submitting(monkeypatch, Forgets())
    monkeypatch.setitem(feature._owners, ("executors", "mine"), "clusters")
    monkeypatch.setattr(feature, "_problems", {})
    assert left_batch_jobs.of(RunPaths(tmp_path)) is None
    (problem,) = feature._problems.values()
    assert "the feature clusters cannot say what its executor mine has left: SystemEx" in problem


def test_a_supervisor_is_asked_to_stop_even_if_batch_jobs_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitting(monkeypatch, Falls())
    holder = LockHolder(pid=1, pid_start=None, host="here", since="")
    monkeypatch.setattr(control, "ready_holder", lambda _: holder)
    monkeypatch.setattr(control, "_ask_to_stop", lambda *_, **__: "asked to stop")
    monkeypatch.setattr(control.run_directory, "existing_run", RunPaths)
    with pytest.raises(UsageError, match=r"(?s)^asked to stop.*could not be ended"):
        control.stop(tmp_path, [])
