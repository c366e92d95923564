"""What the page of an experiment shows, read from its run directory as it changes."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from orchestrator.analysis import contention
from orchestrator.analysis.contention import ContentionFinding
from orchestrator.analysis.job_columns import activity
from orchestrator.client.run_follower import Mark, RunFollower, RunLook, mark
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.client.run_watch import LiveSection, RunWatches
from orchestrator.core.errors import OrchestratorError, may_pass
from orchestrator.core.files.file_status import status_of
from orchestrator.core.job import TERMINAL
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import left_batch_jobs, resume_advice, run_directory
from orchestrator.features.live_page.board import Changes
from orchestrator.features.live_page.condition_text import condition_text
from orchestrator.features.live_page.curve_reader import CurveReader
from orchestrator.features.live_page.job_row import JobMedia, brief, page_job, safe_text, tenths
from orchestrator.features.live_page.live_contention import LiveContention
from orchestrator.ledger import AttemptRow, SummaryRow
from orchestrator.machine import provenance
from orchestrator.report.experiment import attempt_outcome
from orchestrator.report.number_format import json_value
from orchestrator.terminal import jobs_table

MOST_CURVES = 100
"""Jobs whose learning curves the page has: those that run, and those that ended last."""
MOST_EXAMINED = 60
"""Jobs whose files are read for contention: the same."""
EXAMINATION = Pace(every_s=20.0, share=0.001)
"""How often these files are read; the share is of one core."""
MEDIA_EVERY_S = 10.0
JOBS_A_SECOND = 20
"""So many jobs are looked at for new pictures each second, on average."""
LONGEST_TEXT = 2_000
NO_MEDIA = JobMedia()


class RunSource:
    """Reads one run directory; see :class:`orchestrator.features.live_page.feed.Source`. It is over
    when another ledger lies there.
    """

    def __init__(self, run_dir: Path) -> None:
        self.paths = RunPaths(run_dir)
        self._follower = RunFollower(run_dir)
        self._look: RunLook | None = None
        self._generation = 0
        """Of the ledger that the look is of."""
        self._shown: dict[str, tuple[object, ...]] = {}
        """What the row of each job was made of."""
        self._curves: dict[str, CurveReader] = {}
        self._retried = -1
        """Attempts before the last ones, when they were read."""
        self._lacks_attempts = False
        """Whether they could not be read just then."""
        self._media: dict[str, JobMedia] = {}
        self._media_looks = Pacer(Pace(every_s=MEDIA_EVERY_S))
        self._live = LiveContention()
        self._so_far: Sequence[ContentionFinding] = []
        self._delays: dict[str, float | int | None] = {}
        """Share of its time that each job has waited for a CPU, when it was examined last."""
        self._is_examined = False
        """Whether the ledger has not changed since the files of jobs were read for contention."""
        self._examinations = Pacer(EXAMINATION)
        self._watches = RunWatches(self.paths)
        self._named: tuple[Mark, str] | None = None
        """The name of the experiment, and what there was when it was read."""

    def read(self) -> Changes:
        look = self._follower.look()
        changes = Changes()
        if look is not None:
            had_content = self._look is not None and self._look.snapshot is not None
            if had_content and self._generation != self._follower.generation:
                return Changes(is_over=True)
            self._look = look
            self._generation = self._follower.generation
            self._take_in(look, changes)
        if self._look is not None and (snapshot := self._look.snapshot) is not None:
            if look is None and self._watches.is_put_off:
                self._put_sections(snapshot, changes)
            if look is not None or self._lacks_attempts:
                self._read_attempts(snapshot.rows, changes)
            self._read_on(snapshot, changes, has_changed=look is not None)
        return changes

    # -- what the ledger says

    def _take_in(self, look: RunLook, changes: Changes) -> None:
        snapshot = look.snapshot
        changes.set("head", self._head(look))
        rows = snapshot.rows if snapshot else []
        gone = self._shown.keys() - {row["job_id"] for row in rows}
        for job_id in gone:
            changes.drop += [f"job:{job_id}", f"curve:{job_id}"]
            self._curves.pop(job_id, None)
            del self._shown[job_id]
        if snapshot is None:
            return
        self._live.update(rows)
        self._read_curves(rows, changes)
        self._put_sections(snapshot, changes)

    def _put_sections(self, snapshot: Snapshot, changes: Changes) -> None:
        if snapshot.written is None:  # otherwise the ledger is for another host only
            self._watches.look()
        changes.set("sections", [section_values(one) for one in self._watches.sections()])

    def _put_rows(self, snapshot: Snapshot, changes: Changes) -> None:
        for position, row in enumerate(snapshot.rows):
            job_id = row["job_id"]
            media = self._media.get(job_id, NO_MEDIA)
            does = activity(row)
            made_of = (row, position, does, snapshot.goals.get(job_id), media)
            before = self._shown.get(job_id)
            if before != made_of:
                self._shown[job_id] = made_of
                changes.set(f"job:{job_id}", page_job(row, position, snapshot.goals, media))

    def _name(self) -> str:
        """As `list` has it. Read only when it may have changed."""
        written = mark(self.paths.provenance)
        if self._named is None or self._named[0] != written:
            self._named = written, provenance.experiment_name(self.paths)
        return self._named[1]

    def _head(self, look: RunLook) -> dict[str, Any]:
        head: dict[str, Any] = {
            "name": safe_text(self._name(), LONGEST_TEXT),
            "root": safe_text(str(self.paths.root.absolute()), LONGEST_TEXT),
            "kind": page_kind(self.paths.root),
            "condition": look.condition,
            "problem": safe_text(look.problem, LONGEST_TEXT),
            "text": safe_text(condition_text(look), LONGEST_TEXT),
        }
        snapshot = look.snapshot
        if snapshot is None:
            return head
        shown_now = jobs_table.of_snapshot(snapshot)
        holder = snapshot.holder
        return {
            **head,
            "supervisor": safe_text(str(holder), LONGEST_TEXT) if holder else None,
            "since": _moment(holder.since) if holder else None,
            "counts": dict(shown_now.counts),
            "rate": brief(shown_now.env_steps_per_s),
            "remaining_s": brief(shown_now.remaining_s),
            "busy": brief(shown_now.cores_busy),
            "waiting": safe_text(shown_now.waiting or "", LONGEST_TEXT),
            "resume": safe_text(self._advice(look, snapshot), LONGEST_TEXT),
        }

    def _advice(self, look: RunLook, snapshot: Snapshot) -> str:
        """How to resume it; empty where nothing is left of it, or a supervisor runs."""
        if look.condition not in ("killed", "ended"):
            return ""
        left = left_batch_jobs.by_files(self.paths)
        is_left = any(row["state"] in ("PENDING", "RUNNING") for row in snapshot.rows)
        if not (left or is_left or snapshot.standing == "underway"):
            return ""
        return resume_advice.how_to_resume(self.paths, left)

    # -- files of jobs

    def _read_on(self, snapshot: Snapshot, changes: Changes, *, has_changed: bool) -> None:
        """What is looked at from time to time, even if the ledger stays as it is."""
        now = time.monotonic()
        self._is_examined &= not has_changed
        if self._media_looks.is_due(now):
            has_changed |= self._look_for_media(snapshot.rows)
            self._media_looks.wait(max(MEDIA_EVERY_S, len(snapshot.rows) / JOBS_A_SECOND), now)
        if has_changed or any(row["reported_at"] for row in snapshot.rows):
            self._put_rows(snapshot, changes)
        # What has ended is examined at once: it does not change any more.
        is_time = self._examinations.is_due(now) or snapshot.holder is None
        is_due = not self._is_examined and is_time
        if is_due:
            self._examine(snapshot, changes)
        if has_changed or is_due:
            self._put_findings(self._live.find(), changes)

    def _look_for_media(self, rows: Sequence[SummaryRow]) -> bool:
        """Returns whether there are other pictures than before."""
        jobs = str(self.paths.jobs)
        found = {}
        for row in rows:
            if row["attempts"]:
                job = f"{jobs}/{row['job_id']}"
                found[row["job_id"]] = _media(
                    _written_at(f"{job}/preview.png"), _written_at(f"{job}/video.mp4")
                )
        before = self._media
        self._media = found
        return before != found

    def _read_curves(self, rows: Sequence[SummaryRow], changes: Changes) -> None:
        chosen = latest(rows, MOST_CURVES)
        for job_id in self._curves.keys() - {row["job_id"] for row in chosen}:
            del self._curves[job_id]
            changes.drop.append(f"curve:{job_id}")
        for row in chosen:
            job_id = row["job_id"]
            reader = self._curves.get(row["job_id"])
            before = self._shown.get(job_id)
            is_moved = reader is None or before is None or before[0] != row
            if reader is None:
                reader = CurveReader(self.paths.job(job_id).progress_csv, row["total_timesteps"])
                self._curves[job_id] = reader
                changes.restart.add(f"curve:{job_id}")
            if is_moved and reader.is_due(row["env_steps"]):
                new = reader.read()
                changes.grow[f"curve:{job_id}"] = [
                    (int(steps), brief(value)) for steps, value in new.points
                ]
                if new.starts_over:
                    changes.restart.add(f"curve:{job_id}")

    def _read_attempts(self, rows: Sequence[SummaryRow], changes: Changes) -> None:
        """Attempts before the last one of each job; the last one is in its row."""
        retried = sum(row["attempts"] - 1 for row in rows if row["attempts"] > 1)
        if retried == self._retried or not self.paths.ledger.exists():
            return
        last = {row["job_id"]: row["attempts"] - 1 for row in rows}
        try:
            with run_directory.reading_ledger(self.paths) as ledger:
                earlier = [
                    row for row in ledger.attempts() if row["number"] < last.get(row["job_id"], 0)
                ]
        except (OrchestratorError, OSError) as error:
            # Otherwise its supervisor runs on another host, or the ledger is just being replaced.
            self._lacks_attempts = may_pass(error)
            return
        changes.set("attempts", [attempt_values(row) for row in earlier])
        self._retried = retried
        self._lacks_attempts = False

    def _examine(self, snapshot: Snapshot, changes: Changes) -> None:
        """What has slowed jobs down so far."""
        self._is_examined = True
        if not any(row["attempts"] for row in snapshot.rows):
            return
        began = time.thread_time()
        among = [row["job_id"] for row in latest(snapshot.rows, MOST_EXAMINED)]
        try:
            metrics = contention.measure(self.paths.root, among)
        except (OrchestratorError, OSError) as error:
            self._so_far = []  # its supervisor runs on another host, or it is just being replaced
            self._is_examined = not may_pass(error)
        else:
            self._so_far = contention.diagnose(metrics)
            self._delays |= {job.job_id: brief(job.share(job.run_delay_s)) for job in metrics}
            changes.set("delays", self._delays)
        changes.rare_s = time.thread_time() - began
        self._examinations.wait(EXAMINATION.pause_s(changes.rare_s), time.monotonic())

    def _put_findings(self, now: Sequence[ContentionFinding], changes: Changes) -> None:
        known = {(one.kind, one.job_ids) for one in now}
        so_far = [one for one in self._so_far if (one.kind, one.job_ids) not in known]
        changes.set(
            "findings",
            [_finding("now", one) for one in now] + [_finding("so far", one) for one in so_far],
        )


def page_kind(root: Path) -> Literal["run", "folder"]:
    """Whether the page of ``root`` is that of a run directory, which there may not be yet, or of
    those below it.
    """
    is_run = not root.is_dir() or run_directory.is_run_directory(RunPaths(root))
    return "run" if is_run else "folder"


def latest(rows: Sequence[SummaryRow], most: int) -> list[SummaryRow]:
    """Jobs that run, then those that ended last; of those that were never launched none."""
    begun = [row for row in rows if row["attempts"]]
    if len(begun) <= most:
        return begun

    def place(row: SummaryRow) -> tuple[int, float]:
        latest_first = -(row["ended_at"] or row["started_at"] or 0.0)
        if row["state"] == "RUNNING":
            return 0, latest_first
        return (2 if row["state"] in TERMINAL else 1), latest_first

    return sorted(begun, key=place)[:most]


def attempt_values(row: AttemptRow) -> dict[str, Any]:
    """As JSON types. An attempt without an end counts as interrupted: who asks knows whether it
    runs.
    """
    return {
        "job": row["job_id"],
        "number": row["number"] + 1,
        "cpus": row["cpus"],
        "node": row["node"],
        "started": tenths(row["started_at"]),
        "ended": tenths(row["ended_at"]),
        "outcome": attempt_outcome(row),
        "cause": row["cause"],
        "message": None if row["message"] is None else safe_text(row["message"], LONGEST_TEXT),
    }


def section_values(section: LiveSection) -> dict[str, Any]:
    """As JSON types; see ``drawSections`` in ``overview.js`` for what is made of them."""
    facts: dict[str, Any] = _safe_value(json_value(dataclasses.asdict(section)))
    return facts


def _safe_value(value: Any) -> Any:
    """``value``, with all texts in it as pages may have them."""
    if isinstance(value, str):
        return safe_text(value, LONGEST_TEXT)
    if isinstance(value, list):
        return [_safe_value(part) for part in value]
    if isinstance(value, dict):
        return {name: _safe_value(part) for name, part in value.items()}
    return value


def _finding(when: str, finding: ContentionFinding) -> dict[str, Any]:
    texts = {
        name: safe_text(text, LONGEST_TEXT) if isinstance(text, str) else list(text)
        for name, text in dataclasses.asdict(finding).items()
    }
    return {"when": when, **texts}


def _moment(local_time: str) -> float | None:
    """Seconds since the epoch; None for a supervisor that has not written its name yet."""
    try:
        return tenths(datetime.datetime.fromisoformat(local_time).timestamp())
    except ValueError:
        return None


def _media(preview: float | None, video: float | None) -> JobMedia:
    """:param preview: when it was written, and ``video`` likewise; None: there is none."""
    media = 0
    if preview is not None:
        media += 1
    if video is not None:
        media += 2
    written = [at for at in (preview, video) if at is not None]
    return JobMedia(media, tenths(max(written, default=None)))


def _written_at(path: str) -> float | None:
    """When that was; None where there is no such file, or nothing in it."""
    found = status_of(path)
    return None if found is None or found.st_size == 0 else found.st_mtime
