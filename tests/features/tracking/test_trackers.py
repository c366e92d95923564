"""Trackers are told of each iteration once, whatever is killed when, and each is read back by its
own reader."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
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
from orchestrator.core.errors import RunDirError, SpecError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.features.tracking import files, sending, tracked_job
from orchestrator.features.tracking.publisher import Publisher
from orchestrator.features.tracking.tracked_job import ProgressTail
from orchestrator.features.tracking.tracker_protocol import Position, TrackedJob, read_position


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return tracked_run(tmp_path / "run")


# -- what is read


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


def test_large_values_of_a_grid_are_told_apart(paths: RunPaths) -> None:
    rows = Rows()
    end(paths, rows)
    grid = [{"at": {"geom.*.density": value}, "mean": 5.0} for value in (1000001, 1000002)]
    paths.job(JOB).eval.write_text(json.dumps({"grid": grid}))
    found = tracked_job.results(paths.job(JOB), rows.row).evaluation  # type: ignore[arg-type]
    assert found == {f"eval/grid/geom.*.density {value}": 5.0 for value in (1000001, 1000002)}


# -- decisions, with a tracker of the test's own


class Memory:
    """A tracker that keeps everything, and fails when it is told to."""

    destination = shown = "memory"
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


def with_late_preview(paths: RunPaths) -> tuple[Publisher, Memory, Rows]:
    """A job whose results have been sent, and whose preview has been drawn since."""
    memory, rows = Memory(), Rows()
    made, _ = with_memory(paths, memory)
    write_progress(paths, [100])
    end(paths, rows)
    turn(made, rows)
    paths.job(JOB).preview.write_bytes(b"a still")
    return made, memory, rows


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


def test_pictures_that_are_made_later_are_sent_alone_and_once(paths: RunPaths) -> None:
    made, memory, rows = with_late_preview(paths)
    memory.failing = 1
    assert not turn(made, rows, is_last=True)
    for _ in range(2):
        assert turn(made, rows, is_last=True)
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    paths.job(JOB).video.write_bytes(b"a video")
    for _ in range(2):
        turn(with_memory(paths, memory)[0], rows, is_last=True)
    paths.job(JOB).preview.unlink()
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    assert (memory.final, memory.shown_pictures) == (
        ["SUCCEEDED"],
        [{"preview": b"a still"}, {"video": b"a video"}],
    )
    assert memory.sent == {"run-1": [100]}


def test_a_preview_that_was_written_in_the_moment_of_the_evaluation_is_sent(
    paths: RunPaths,
) -> None:
    memory, rows = Memory(), Rows()
    write_progress(paths, [100])
    end(paths, rows)
    made, _ = with_memory(paths, memory)
    assert turn(made, rows, is_last=True)
    job = paths.job(JOB)
    job.preview.write_bytes(b"a still")
    written = job.eval.stat().st_mtime_ns
    os.utime(job.preview, ns=(written, written))
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    assert memory.shown_pictures == [{"preview": b"a still"}]


def test_previews_that_there_is_no_time_for_are_counted_and_sent_another_time(
    paths: RunPaths,
) -> None:
    made, memory, rows = with_late_preview(paths)
    made.previews_s = 0.0
    for _ in range(2):
        assert turn(made, rows, is_last=True), "the results are there"
        assert (memory.shown_pictures, made.left_out) == ([], 1)
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    assert memory.shown_pictures == [{"preview": b"a still"}]


def test_the_end_of_a_run_says_which_previews_it_had_no_time_for(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _memory, rows = with_late_preview(paths)
    made.previews_s, finish = 0.0, sending.Finish()
    finish.set()
    sending._loop([made], SimpleNamespace(read=rows.summary), finish)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "memory: no time for 1 preview; `publish" in said


def test_a_preview_that_is_there_goes_with_the_results(paths: RunPaths) -> None:
    memory, rows = Memory(), Rows()
    write_progress(paths, [100])
    end(paths, rows)
    paths.job(JOB).preview.write_bytes(b"a still")
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    assert (memory.final, memory.shown_pictures) == (["SUCCEEDED"], [])


def test_points_that_a_tracker_has_lost_are_sent_again(paths: RunPaths) -> None:
    memory, rows = Memory(), Rows()
    write_progress(paths, [100, 200, 300])
    turn(with_memory(paths, memory)[0], rows)
    memory.kept = 100
    end(paths, rows)
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    assert memory.sent == {"run-1": [100, 200, 300, 200, 300]}
    assert memory.final == ["SUCCEEDED"]


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


def test_results_keep_their_step_when_they_are_sent_again(paths: RunPaths) -> None:
    memory, rows, where = Memory(), Rows(), files.position_file(paths.job(JOB), "memory", "memory")
    write_progress(paths, [100])
    made, _ = with_memory(paths, memory)
    turn(made, rows)
    end(paths, rows)
    memory.failing = 1
    for _ in range(2):
        turn(made, rows)
    noted = read_position(where, "memory")
    assert noted is not None
    replace(noted, final="").write(where)  # as if it had been killed before it wrote this
    memory.kept = 101
    turn(with_memory(paths, memory)[0], rows)
    assert memory.finished_at == [101, 101, 101]


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


def test_each_place_has_a_note_of_its_own(paths: RunPaths) -> None:
    here, there, rows = Memory("here"), Memory("there"), Rows()
    write_progress(paths, [100])
    for memory in (here, there, here):
        turn(with_memory(paths, memory)[0], rows)
    assert here.sent == there.sent == {"run-1": [100]}


def test_at_another_place_a_job_begins_anew(paths: RunPaths) -> None:
    where = files.position_file(paths.job(JOB), "memory", "there")
    position = Position(destination="there", began=1.5, run="run-7", env_steps=300)
    position.write(where)
    assert read_position(where, "there") == position
    assert read_position(where, "elsewhere") is None
    where.write_text("{}")
    assert read_position(where, "there") is None


def test_only_one_process_sends_to_a_tracker(paths: RunPaths) -> None:
    with contextlib.closing(make_publisher(paths, "wandb")) as first:
        first.lock()
        with pytest.raises(RunDirError, match="another process is sending it to wandb"):
            make_publisher(paths, "wandb").lock()
    with contextlib.closing(make_publisher(paths, "wandb")) as second:
        second.lock()


def test_a_job_that_ended_before_its_first_iteration_is_sent_without_points(
    paths: RunPaths,
) -> None:
    memory, rows = Memory(), Rows("FAILED")
    rows.row["env_steps"] = 0
    write_progress(paths, [])  # its header alone
    made, _ = with_memory(paths, memory)
    for _ in range(2):
        assert turn(made, rows, is_last=True)
    assert (memory.final, memory.sent) == (["FAILED"], {})
    noted = read_position(files.position_file(paths.job(JOB), "memory", "memory"), "memory")
    assert noted is not None
    assert noted.began == rows.row["started_at"]
    rows.row["state"] = "RUNNING"  # it is tried once more
    write_progress(paths, [100])
    turn(made, rows)
    assert memory.sent == {"run-1": [100]}


def test_a_job_that_was_never_launched_keeps_no_tracker_from_finishing(paths: RunPaths) -> None:
    paths.job(JOB).spec.unlink()
    memory = Memory()
    assert turn(with_memory(paths, memory)[0], Rows("CANCELLED"), is_last=True)
    assert memory.begun == 0


def test_an_ended_job_that_a_tracker_has_lost_is_sent_as_a_new_run(paths: RunPaths) -> None:
    memory, rows = Memory(), Rows()
    write_progress(paths, [100, 200])
    end(paths, rows)
    turn(with_memory(paths, memory)[0], rows, is_last=True)
    memory.kept = -1
    assert turn(with_memory(paths, memory)[0], rows, is_last=True)
    assert memory.sent == {"run-1": [100, 200], "run-2": [100, 200]}
    assert memory.final == ["SUCCEEDED", "SUCCEEDED"]


def test_each_kind_of_failure_is_reported_once(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, messages = with_memory(paths, Memory())
    texts = iter([f"<Connection at 0x{number:x}> refused after {number} s" for number in range(8)])

    def fail(job_id: str, noted: Position) -> None:
        raise ConnectionError(next(texts, "no space left"))

    made._tracker.known = fail  # type: ignore[union-attr, method-assign, assignment]
    Position(destination="memory", began=0.0).write(
        files.position_file(paths.job(JOB), "memory", "memory")
    )
    for _ in range(12):
        turn(made, Rows())
    assert made.failures == 12
    assert messages == [
        f"memory: {JOB}: <Connection at 0x0> refused after 0 s",
        f"memory: {JOB}: no space left",
    ]


def test_a_busy_tracker_keeps_no_other_waiting_and_the_ledger_is_read_once_a_turn(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("tensorboard")

    class Finishing(sending.Finish):
        def wait(self, timeout: float | None = None) -> bool:
            assert memory.sent == {"run-1": [100]}
            assert not files.tensorboard(paths.root).exists()
            self.set()
            return True

    memory, rows, reads, messages = Memory(), Rows(), list[int](), list[str]()
    write_progress(paths, [100])
    end(paths, rows)
    jobs: Any = SimpleNamespace(read=lambda: reads.append(1) or rows.summary())  # type: ignore[func-returns-value]
    elsewhere, busy = make_publisher(paths), make_publisher(paths)
    busy.report = messages.append
    monkeypatch.setattr(sending.time, "sleep", lambda seconds: elsewhere.close())
    elsewhere.lock()
    with contextlib.closing(busy):
        sending._loop([busy, with_memory(paths, memory)[0]], jobs, Finishing())
    assert len(reads) == 3
    assert len(messages) == 1
    assert "another process is sending it to tensorboard" in messages[0]
    assert scalars(paths)["train/loss"] == [100]


# -- the job file


def read_file(table: Mapping[str, Any], tmp_path: Path) -> jobfile.Experiment:
    data = {"name": "x", "track": table, "jobs": [{"name": "a", "env": "Ant-v5"}]}
    return jobfile.from_mapping(data, source="jobs.toml", base=tmp_path)


@pytest.mark.parametrize("found", [None, ModuleSpec("a folder of that name", None)])
def test_a_missing_package_is_a_problem_of_its_key_and_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: ModuleSpec | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(SpecError) as caught:
        read_file({"tensorboard": True, "wandb": {}, "trackio": {}}, tmp_path)
    problems = {problem.where: problem.message for problem in caught.value.problems}
    assert problems.keys() == {"track.tensorboard", "track.wandb", "track.trackio"}
    assert '-c constraints.txt ".[wandb]"' in problems["track.wandb"]
    assert 'pip install ".[trackio]"' in problems["track.trackio"]


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


# -- readers of their own


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


@pytest.mark.parametrize("left", [None, 0, 200])
def test_a_file_of_tensorboard_that_has_lost_something_is_written_anew(
    paths: RunPaths, left: int | None
) -> None:
    needs("tensorboard")
    rows = Rows()
    write_progress(paths, [100, 200, 300])
    send(paths, rows)
    [file] = (files.tensorboard(paths.root) / JOB).iterdir()
    file.unlink() if left is None else os.truncate(file, left)
    write_progress(paths, [100, 200, 300, 400])
    send(paths, rows)
    assert scalars(paths)["train/loss"] == [100, 200, 300, 400]
    assert file.read_bytes().count(b"brain.Event:2") == 1


def test_a_folder_of_tensorboard_that_is_deleted_is_written_anew(paths: RunPaths) -> None:
    needs("tensorboard")
    rows = Rows()
    write_progress(paths, [100, 200])
    with contextlib.closing(make_publisher(paths)) as publisher:
        publisher.report = lambda message: None
        turn(publisher, rows)
        [file] = (files.tensorboard(paths.root) / JOB).iterdir()
        file.unlink()  # under a process that has sent to it
        write_progress(paths, [100, 200, 300])
        assert not turn(publisher, rows)
        assert turn(publisher, rows)
    assert scalars(paths)["train/loss"] == [100, 200, 300]
    end(paths, rows)
    send(paths, rows, is_last=True)
    shutil.rmtree(files.tensorboard(paths.root))
    assert send(paths, rows, is_last=True)
    assert scalars(paths)["train/loss"] == [100, 200, 300]
    assert scalars(paths)["eval/deterministic/mean"] == [300]


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


# -- the command


def test_publish_names_what_is_wrong(paths: RunPaths) -> None:
    from orchestrator.features.tracking import publish_command

    for arguments, message in (
        (("comet", {}), "unknown tracker; expected one of tensorboard, wandb, mlflow, trackio"),
        (("mlflow", {"project": "x"}), "mlflow has no such option"),
        (("wandb", {"project": "gait: 50%"}), "--project: expected a name of 1 to 128 characters"),
    ):
        with pytest.raises(UsageError, match=message):
            publish_command.publish(paths.root, *arguments)


def test_publish_does_not_open_the_ledger_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.features.tracking import publish_command

    needs("tensorboard")
    with run_directory.claim(tmp_path / "run") as paths:
        monkeypatch.setattr("socket.gethostname", lambda: "another-host")
        with pytest.raises(RunDirError, match="runs on another host"):
            publish_command.publish(paths.root, "tensorboard", {})


def test_makers_of_trackers_are_told_nothing_unless_the_user_says_so(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("tensorboard")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")  # restored after the test
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    send(paths, Rows())
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"
