"""What must be true of a run directory when a disturbed experiment has been resumed to its end."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.ledger import SummaryRow

COMPARED = ("state", "weights_sha256", "env_steps", "eval_mean")
"""Keys of the summary that are equal after every training with the same seed; ``verify`` compares
the same weights."""
HASH_SHOWN = 12
JobResult: TypeAlias = Mapping[str, Any]
FAILED = {"state": "FAILED"}


def result_of(row: Mapping[str, Any]) -> JobResult:
    """What is compared of a job."""
    if row["state"] != "SUCCEEDED":
        return {"state": row["state"]}
    return {key: row[key] for key in COMPARED}


def shortfalls(
    paths: RunPaths, expected: Mapping[str, JobResult] | None, *, may_have_errors: bool = False
) -> tuple[list[str], dict[str, JobResult]]:
    """What is not as it must be, a sentence each; and the result of every job by ``job_id``.

    :param expected: the results of the undisturbed experiment; None for that one, whose jobs must
        all have succeeded.
    :param may_have_errors: whether the supervisor may have reported an error of its own.
    """
    try:
        with run_directory.reading_ledger(paths) as ledger:
            rows = ledger.summary()
            attempts = ledger.attempts()
    except OrchestratorError as error:
        return [f"The ledger cannot be read: {error}."], {}
    results = {row["job_id"]: result_of(row) for row in rows}
    messages = {row["job_id"]: row["message"] for row in rows}
    if expected is None:
        expected = {job_id: {**result, "state": "SUCCEEDED"} for job_id, result in results.items()}
    texts = [
        f"{job_id} is {_result_text(results.get(job_id))} ({messages.get(job_id)}),"
        f" expected: {_result_text(expected.get(job_id))}."
        for job_id in {**expected, **results}
        if results.get(job_id) != expected.get(job_id)
    ]
    open_ended = [
        attempt for attempt in attempts if attempt["ended_at"] is None or attempt["wall_s"] is None
    ]
    texts += [
        f"Attempt {attempt['number'] + 1} of {attempt['job_id']} has no end in the ledger."
        for attempt in open_ended
    ]
    if paths.error_log.exists() and not may_have_errors:
        texts.append(f"The supervisor reported an error of its own: {paths.error_log}.")
    return [*texts, *_wrong_files(paths, rows)], results


def _wrong_files(paths: RunPaths, rows: Sequence[SummaryRow]) -> Iterator[str]:
    try:
        written = json.loads(paths.summary_json.read_bytes())
    except (OSError, ValueError) as error:
        yield f"{paths.summary_json.name} cannot be read: {error}."
    else:
        if list(map(result_of, written)) != list(map(result_of, rows)):
            yield f"{paths.summary_json.name} and the ledger differ."
    models = [paths.job(row["job_id"]).model for row in rows if row["state"] == "SUCCEEDED"]
    yield from (f"A policy cannot be read: {model}." for model in models if not _is_whole(model))
    leftovers = [path for path in (paths.staging, *paths.root.rglob(".*.tmp*")) if path.exists()]
    yield from (
        f"A temporary file or folder was left: {path.relative_to(paths.root)}."
        for path in leftovers
    )


def _is_whole(model: Path) -> bool:
    try:
        with zipfile.ZipFile(model) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):  # it is missing or damaged
        return False


def _result_text(result: JobResult | None) -> str:
    if result is None:
        return "missing"
    return ", ".join(str(value)[:HASH_SHOWN] for value in result.values())
