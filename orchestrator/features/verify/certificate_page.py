"""The non-interference certificate that `verify` writes, as a section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.analysis.run_reader import read_json_object
from orchestrator.analysis.statistics import INTERVALS
from orchestrator.core.text import count
from orchestrator.report.document import Cell, Columns, Part, Section, Text, table
from orchestrator.report.number_format import DASH, interval, one_line, sentence

HASH_SHOWN = 12
MOST_LEFT_OUT = 10


def read(run_dir: Path) -> dict[str, Any] | None:
    """The certificate of a run directory; None when it has none."""
    certificate = read_json_object(run_dir / "certificate.json")
    return certificate if certificate and isinstance(certificate.get("jobs"), list) else None


def of_directory(run_dir: Path) -> list[Section]:
    """Return no section if nothing was verified."""
    certificate = read(run_dir)
    if certificate is None:
        return []
    jobs = [job for job in certificate["jobs"] if isinstance(job, Mapping)]
    if not jobs:
        return []
    failed = sum(job.get("verdict") != "PASS" for job in jobs)
    verdict = (
        f"PASS: {count(len(jobs), 'job')} verified; each has bit-identical weights every time."
    )
    if failed:
        verdict = f"FAIL: {failed} of {len(jobs)} jobs could not be shown to have the same weights, for these reasons."
    caption = (
        "The beginning of the SHA-256 of all weights of each job, trained with the same seed alone, among neighbours, "
        "and killed and resumed half-way. Slow-down: time per iteration among neighbours divided by that alone, with "
        f"its 95 % interval ({INTERVALS})."
    )
    columns: Columns[Mapping[str, Any]] = {
        "job": lambda job: one_line(job.get("job_id", DASH)),
        "verdict": lambda job: Cell(
            text=one_line(job.get("verdict", DASH)),
            tone="good" if job.get("verdict") == "PASS" else "bad",
        ),
        "alone": lambda job: _hash(job.get("alone_sha256")),
        "among neighbours": lambda job: _hash_or_same(job, "together_sha256"),
        "killed and resumed": lambda job: _hash_or_same(job, "resumed_sha256"),
        "slow-down": lambda job: (
            f"× {interval(job['slowdown'])}" if isinstance(job.get("slowdown"), Mapping) else DASH
        ),
        "reasons, notes": _remarks,
    }
    text = [name for name in columns if name != "slow-down"]
    parts: list[Part] = [
        Text(sentences=[verdict], tone="bad" if failed else "good"),
        table(jobs, columns, caption=caption, text=text),
    ]
    warnings = certificate.get("warnings")
    if isinstance(warnings, list) and warnings:
        parts.append(Text(sentences=[sentence(str(warning)) for warning in warnings]))
    left_out = certificate.get("left_out")
    if isinstance(left_out, Mapping) and left_out:
        named = list(left_out.items())[:MOST_LEFT_OUT]
        sentences = [
            f"{one_line(job)} was not verified: {one_line(reason)}" for job, reason in named
        ]
        if len(left_out) > len(named):
            sentences.append(
                f"{len(left_out) - len(named):,} more were not verified; certificate.json names them."
            )
        parts.append(Text(sentences=sentences, tone="dim"))
    return [Section(title="Certificate", parts=parts, numbers={"certificate": certificate})]


def _remarks(job: Mapping[str, Any]) -> str:
    remarks = [*(job.get("reasons") or ()), *(job.get("notes") or ())]
    return one_line("; ".join(map(str, remarks)), 400) or DASH


def _hash(value: Any) -> str:
    return str(value)[:HASH_SHOWN] if value else DASH


def _hash_or_same(job: Mapping[str, Any], name: str) -> str:
    value = job.get(name)
    return "the same" if value and value == job.get("alone_sha256") else _hash(value)
