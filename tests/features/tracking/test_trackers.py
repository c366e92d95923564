"""Trackers are told of each iteration once, whatever is killed when, and each is read back by its
own reader."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from tracker_helpers import (
    JOB,
    Rows,
    end,
    make_publisher,
    needs,
    send,
    tracked_run,
    turn,
    write_progress,
)

from orchestrator import jobfile
from orchestrator.core.errors import RunDirError, SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.tracking import files, tracked_job
from orchestrator.features.tracking.publisher import Publisher
from orchestrator.features.tracking.tracked_job import ProgressTail
from orchestrator.features.tracking.tracker_protocol import Position, TrackedJob, read_position


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return tracked_run(tmp_path / "run")


def test_a_table_that_grows_and_is_cut_back_gives_every_iteration_once(paths: RunPaths) -> None:
    tail, steps = ProgressTail(paths.job(JOB).progress_csv), list[int]()

    def read() -> None:
        steps.extend(point.env_steps for point in tail.new_points(steps[-1] if steps else 0))

    read()
    write_progress(paths, [100, 200, 300], torn="400,4,")
    read()
    with paths.job(JOB).progress_csv.open("a") as file:
        file.write("800,0.5\n")  # the rest of the torn row
    read()
    write_progress(paths, [100, 200])  # resumed from a checkpoint
    read()
    write_progress(paths, [100, 200, 300, 400, 500])
    read()
    assert steps == [100, 200, 300, 400, 500]


def test_settings_are_flat_and_hold_hyperparameters(paths: RunPaths) -> None:
    settings = tracked_job.settings(paths.job(JOB))
    assert settings["hyperparameters.learning_rate"] == 1e-3
    assert settings["seed"] == 0
    assert not {"job_id", "video"} & settings.keys()
    assert set(tracked_job.NOT_SETTINGS) <= {field.name for field in dataclasses.fields(WorkerSpec)}


class Memory:
    """A tracker that keeps everything, and fails when it is told to."""

    destination = "memory"
    sent: dict[str, list[int]]
    failing: int
    kept: int | None = None
    """env_steps of the last point that it has kept; None for the last one it was sent, -1 if it has
    lost the job."""

    def __init__(self, destination: str = "memory") -> None:
        self.destination = destination
        self.sent, self.failing, self.begun, self.final = {}, 0, 0, list[str]()
        self.bad, self.finished_at = set[str](), list[int]()
        """Jobs that it does not take; the step of the results, each time that they were sent."""
        self.shown_pictures: list[dict[str, bytes]] = []

    def begin(self, job: TrackedJob) -> str:
        self.begun += 1
        return f"run-{self.begun}"

    def known(self, job_id: str, noted: Position) -> Position | None:
        if self.kept is None:
            return noted
        return noted.at(self.kept) if self.kept >= 0 else None

    def open(self, job: TrackedJob) -> MemoryRun:
        return MemoryRun(self, job.position, job.job_id)


class MemoryRun:
    def __init__(self, tracker: Memory, position: Position, job_id: str) -> None:
        self.tracker, self.position, self.job_id = tracker, position, job_id

    def send(self, points: Sequence[tracked_job.Point]) -> Position:
        self._fail()
        self.tracker.sent.setdefault(self.position.run, []).extend(
            point.env_steps for point in points
        )
        self.position = replace(self.position, env_steps=points[-1].env_steps)
        return self.position

    def finish(self, results: tracked_job.JobResults) -> Position:
        self.tracker.finished_at.append(self.position.results_step)
        self._fail()
        self.tracker.final.append(results.state)
        return self.position

    def show(self, pictures: Mapping[str, Path]) -> Position:
        self._fail()
        self.tracker.shown_pictures.append(
            {name: path.read_bytes() for name, path in pictures.items()}
        )
        return self.position

    def _fail(self) -> None:
        if self.tracker.failing or self.job_id in self.tracker.bad:
            self.tracker.failing = max(0, self.tracker.failing - 1)
            raise ConnectionError("the server is away")

    def close(self) -> None: ...


def with_memory(paths: RunPaths, memory: Memory) -> tuple[Publisher, list[str]]:
    messages: list[str] = []
    made = Publisher(
        paths=paths, experiment="robots", backend="memory", options={}, report=messages.append
    )
    made._tracker = memory
    return made, messages


def test_a_tracker_that_fails_gets_everything_later_and_once(paths: RunPaths) -> None:
    memory, rows = Memory(), Rows()
    made, messages = with_memory(paths, memory)
    write_progress(paths, [100, 200])
    memory.failing = 1
    assert not turn(made, rows)
    assert "the server is away" in messages[0]
    write_progress(paths, [100, 200, 300])
    assert turn(made, rows)
    assert memory.sent == {"run-1": [100, 200, 300]}


def test_results_are_sent_when_a_job_has_ended_and_again_when_it_ends_once_more(
    paths: RunPaths,
) -> None:
    memory, rows = Memory(), Rows()
    made, _ = with_memory(paths, memory)
    write_progress(paths, [100])
    turn(made, rows)
    assert memory.final == []
    end(paths, rows)
    for _ in range(3):
        turn(made, rows, is_last=True)
    assert memory.final == ["SUCCEEDED"]
    rows.row["state"] = "RUNNING"  # it is trained further
    write_progress(paths, [100, 200])
    turn(made, rows)
    rows.row.update(state="FAILED", env_steps=500)
    memory.failing = 1
    assert not turn(made, rows)
    noted = read_position(files.position_file(paths.job(JOB), "memory", "memory"), "memory")
    assert noted is not None
    assert noted.results
    assert not noted.final, "the end of the first training is none of what came after it"
    turn(with_memory(paths, memory)[0], rows)
    assert memory.final == ["SUCCEEDED", "FAILED"]
    assert memory.sent == {"run-1": [100, 200]}


def test_a_preview_that_is_there_goes_with_the_results(paths: RunPaths) -> None:
    memory, rows = Memory(), Rows()
    write_progress(paths, [100])
    end(paths, rows)
    paths.job(JOB).preview.write_bytes(b"a still")
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    assert (memory.final, memory.shown_pictures) == (["SUCCEEDED"], [])


def test_jobs_that_cannot_be_sent_do_not_keep_others_from_it(paths: RunPaths) -> None:
    names = [f"{letter}-s0" for letter in "abcdef"]
    write_progress(paths, [100])
    for name in names[1:]:
        shutil.copytree(paths.job(JOB).root, paths.job(name).root)
    memory, rows = Memory(), [Rows().row | {"job_id": name} for name in names]
    memory.bad = set(names[:4])
    made, messages = with_memory(paths, memory)
    assert not made.turn(rows, is_last=False)  # type: ignore[arg-type]
    assert made.failures == 3, "the tracker is away"
    assert memory.sent == {}
    assert not made.turn(rows, is_last=False)  # type: ignore[arg-type]
    assert list(memory.sent.values()) == [[100], [100]]
    assert made.failures == 7, "as it is there, all others are tried"
    assert messages == ["memory: a-s0: the server is away"], "once, not for every job"


def test_a_long_table_is_sent_in_parts_before_its_job_counts_as_complete(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracked_job, "MOST_BYTES", 100)
    memory, rows, steps = Memory(), Rows(), list(range(100, 3000, 100))
    write_progress(paths, steps)
    end(paths, rows)
    turn(with_memory(paths, memory)[0], rows)
    assert memory.sent == {"run-1": steps}
    assert memory.final == ["SUCCEEDED"]
    rows.row["env_steps"] = 3000
    write_progress(paths, [*steps, 3000])
    assert turn(with_memory(paths, memory)[0], rows)
    assert memory.sent == {"run-1": [*steps, 3000]}


def test_only_one_process_sends_to_a_tracker(paths: RunPaths) -> None:
    with contextlib.closing(make_publisher(paths, "wandb")) as first:
        first.lock()
        with pytest.raises(RunDirError, match="another process is sending it to wandb"):
            make_publisher(paths, "wandb").lock()
    with contextlib.closing(make_publisher(paths, "wandb")) as second:
        second.lock()


def read_file(table: Mapping[str, Any], tmp_path: Path) -> jobfile.Experiment:
    data = {"name": "x", "track": table, "jobs": [{"name": "a", "env": "Ant-v5"}]}
    return jobfile.from_mapping(data, source="jobs.toml", base=tmp_path)


@pytest.mark.parametrize("found", [None, ModuleSpec("a folder of that name", None)])
def test_a_missing_package_is_a_problem_of_its_key_and_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: ModuleSpec | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(SpecError) as caught:
        read_file({"tensorboard": True, "wandb": {}}, tmp_path)
    problems = {problem.where: problem.message for problem in caught.value.problems}
    assert problems.keys() == {"track.tensorboard", "track.wandb"}
    assert '-c constraints.txt ".[wandb]"' in problems["track.wandb"]


def test_what_does_not_belong_in_a_tracker_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_file(
            {"wandb": {"projct": "x", "project": "50%", "mode": "sometimes"}, "tensorbord": True},
            tmp_path,
        )
    text = str(caught.value)
    for expected in (
        "track.wandb.projct",
        "track.wandb.project: expected a name of 1 to 128 characters without /",
        "track.wandb.mode",
        "track.tensorbord",
    ):
        assert expected in text


def test_trackers_belong_to_no_fingerprint(tmp_path: Path) -> None:
    needs("tensorboard")
    without, with_one = read_file({}, tmp_path), read_file({"tensorboard": True}, tmp_path)
    assert with_one.tables["track"] == {"tensorboard": {}}
    assert with_one.jobs == without.jobs


def scalars(paths: RunPaths) -> dict[str, list[int]]:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(
        str(files.tensorboard(paths.root) / JOB), size_guidance={"scalars": 0, "tensors": 0}
    ).Reload()
    return {tag: [event.step for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]} | {
        tag: [event.step for event in read.Tensors(tag)] for tag in read.Tags()["tensors"]
    }


def test_tensorboard_has_no_point_twice_after_a_kill_between_file_and_position(
    paths: RunPaths,
) -> None:
    needs("tensorboard")
    rows, where = Rows(), files.position_file(paths.job(JOB), "tensorboard", "tensorboard")
    write_progress(paths, [100, 200])
    send(paths, rows)
    before = where.read_bytes()
    write_progress(paths, [100, 200, 300, 400])
    send(paths, rows)
    [file] = (files.tensorboard(paths.root) / JOB).iterdir()
    content = file.read_bytes()
    where.write_bytes(before)  # as if it had been killed before it wrote this
    file.write_bytes(content + b"torn")
    send(paths, rows)
    assert file.read_bytes() == content, (
        "the same bytes, so that a TensorBoard that reads them is not confused"
    )
    end(paths, rows)
    assert send(paths, rows)
    read = scalars(paths)
    assert read["eval/grid/geom.*.friction 0.4 body.trunk.mass *0.7"] == [400]
    assert read["train/loss"] == [100, 200, 300, 400]
    assert read["rollout/ep_rew_mean"] == [200, 300, 400]
    assert read["eval/deterministic/distance_m"] == [400]
    assert "_hparams_/session_start_info" in read
    assert "summary/text_summary" in read


def test_a_job_that_starts_over_has_a_new_file_in_tensorboard(paths: RunPaths) -> None:
    needs("tensorboard")
    write_progress(paths, [100, 200, 300])
    send(paths, Rows())
    files.position_file(
        paths.job(JOB), "tensorboard", "tensorboard"
    ).unlink()  # its directory was moved away
    write_progress(paths, [100])
    send(paths, Rows())
    assert scalars(paths)["train/loss"] == [100]


@pytest.mark.nightly
def test_wandb_sends_again_what_was_noted_but_never_reached_its_log(paths: RunPaths) -> None:
    needs("wandb")
    from orchestrator.features.tracking.wandb_tracker import WandbTracker

    noted = Position(destination="x", began=0.0, run="abc", env_steps=200)
    wandb = WandbTracker(paths, "robots", {"mode": "offline"})
    assert wandb.known(JOB, noted) == noted, "it may have been uploaded from elsewhere"
    log = paths.root / "wandb" / "offline-run-20260101_000000-abc" / "run-abc.wandb"
    log.parent.mkdir(parents=True)
    log.write_bytes(b":W&B\xe1\xbe\x00")  # its header alone
    assert wandb.known(JOB, noted) == replace(noted, env_steps=0)
    online = WandbTracker(paths, "robots", {"mode": "online"})
    assert online.destination != wandb.destination, "what was sent offline is nothing that W&B has"
