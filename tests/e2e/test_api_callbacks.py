"""``on_result``, ``on_progress``, ``show`` in a notebook, and results as HTML."""

from __future__ import annotations

import math
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import odd, write_experiment

import orchestrator


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def waiting_workers(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers that succeed when there is a file ``go-JOB`` beside the run directory."""
    commands.stub_workers(monkeypatch)
    commands.examine_nothing(monkeypatch)
    return here


def test_every_result_is_handed_over_as_its_job_ends(waiting_workers: Path) -> None:
    jobs = write_experiment(waiting_workers, odd("a", "nothing", seeds=[0, 1]), odd("b", "nothing"))
    thread, ended = threading.current_thread(), []
    progress: list[orchestrator.ExperimentProgress] = []

    def on_result(result: orchestrator.Result) -> None:
        assert threading.current_thread() is thread
        assert result.ok
        ended.append(result.job_id)
        (waiting_workers / "go-a-s0").touch()

    def on_progress(moment: orchestrator.ExperimentProgress) -> None:
        progress.append(moment)
        if [job.job_id for job in moment.running] == ["b-s0"]:  # the last of them
            (waiting_workers / "go-b-s0").touch()

    (waiting_workers / "go-a-s1").touch()
    done = orchestrator.run(
        jobs, run_dir="run", max_parallel=2, on_result=on_result, on_progress=on_progress
    )
    assert done.ok
    assert ended[0] == "a-s1"
    assert sorted(ended) == ["a-s0", "a-s1", "b-s0"]
    assert all(sum(moment.counts.values()) == 3 for moment in progress)
    (b,) = next(
        moment.running for moment in progress if [job.job_id for job in moment.running] == ["b-s0"]
    )
    assert (b.seed, b.phase, b.env_steps, b.total_timesteps, b.xml) == (0, "starting", 0, 512, None)
    again: list[str | None] = []
    orchestrator.run(jobs, run_dir="run", on_result=lambda result: again.append(result.job_id))
    assert again == ["a-s0", "a-s1", "b-s0"], "those that ended before come at first"


@pytest.mark.parametrize("kind", ["on_result", "on_progress"])
def test_an_exception_in_a_callback_stops_all_jobs_and_is_raised(
    waiting_workers: Path, kind: str
) -> None:
    jobs = write_experiment(waiting_workers, odd("a", "nothing"), odd("b", "nothing"))
    calls: list[Any] = []

    def fails(value: Any) -> None:
        calls.append(value)
        raise ZeroDivisionError("fitness of nothing")

    (waiting_workers / "go-a-s0").touch()
    with pytest.raises(ZeroDivisionError, match="fitness of nothing") as caught:
        orchestrator.run(jobs, run_dir="run", max_parallel=2, **{kind: fails})  # type: ignore[arg-type]
    assert len(calls) == 1
    assert f"run_dir='{waiting_workers / 'run'}'" in caught.value.__notes__[0]
    rows = commands.summary(waiting_workers / "run")
    assert rows["b-s0"]["state"] == "PENDING"
    (waiting_workers / "go-b-s0").touch()
    assert orchestrator.run(jobs, run_dir="run").ok


def test_a_slow_callback_delays_no_limit(waiting_workers: Path) -> None:
    slow = odd("slow", "nothing", resources={"timeout": "1 s"}, retry={"max_retries": 0})
    jobs = write_experiment(waiting_workers, slow)
    slept: list[float] = []

    def on_progress(moment: orchestrator.ExperimentProgress) -> None:
        if moment.running and not slept:
            slept.append(6.0)
            time.sleep(6.0)

    done = orchestrator.run(jobs, run_dir="run", on_progress=on_progress)
    assert slept
    row = commands.summary(waiting_workers / "run")["slow-s0"]
    assert (done.ok, row["cause"]) == (False, "timeout")
    assert row["wall_s"] < 5.0


class FakeDisplay:
    """What ``IPython.display`` does in a kernel; keeps what was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.displays = 0

    def HTML(self, text: str) -> str:
        return text

    def display(self, content: str, *, display_id: bool) -> FakeDisplay:
        assert display_id
        self.displays += 1
        self.update(content)
        return self

    def update(self, content: str) -> None:
        self.shown.append(content)


def test_a_notebook_shows_one_table_that_is_updated(
    waiting_workers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    display = FakeDisplay()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    jobs = write_experiment(waiting_workers, odd("<b>a", "nothing"))
    table = "<th>job</th>"

    def on_progress(moment: orchestrator.ExperimentProgress) -> None:
        if any(table in page for page in display.shown):
            for job in moment.running:
                (waiting_workers / f"go-{job.job_id}").touch()

    done = orchestrator.run(jobs, run_dir="run", show=True, on_progress=on_progress)
    assert done.ok
    assert display.displays == 1
    assert str(waiting_workers / "run") in display.shown[1]
    assert "1 of 1 job succeeded" in display.shown[-1]
    assert "<td>SUCCEEDED</td>" in display.shown[-1]
    assert all("<b>" not in page for page in display.shown)
    assert "<td>SUCCEEDED</td>" in done._repr_html_()


def test_fitness_is_the_evaluation_or_the_training_or_the_default() -> None:
    def result(**more: Any) -> orchestrator.Result:
        return orchestrator.Result(error=None, xml=None, seed=0, state="", **more)

    assert result(ok=True, eval_mean=0.0, ep_rew_mean=3.0).fitness() == 0.0
    assert result(ok=True, ep_rew_mean=3.0).fitness(default=1.0) == 3.0
    assert result(ok=True).fitness(default=1.0) == 1.0
    assert result(ok=False, eval_mean=5.0).fitness() == -math.inf
