"""The non-interference certificate that `verify` left, as a section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.analysis.run_reader import read_json_object
from orchestrator.core.text import count
from orchestrator.report.document import Cell, Column, Part, Section, Table, Text
from orchestrator.report.number_format import DASH, interval, plain, sentence

HASH_SHOWN = 12


def read(run_dir: Path) -> dict[str, Any] | None:
    """What `verify` left in a run directory; None when there is nothing."""
    certificate = read_json_object(run_dir / "certificate.json")
    return certificate if certificate and isinstance(certificate.get("jobs"), list) else None


def certificate_sections(certificate: Mapping[str, Any] | None) -> list[Section]:
    """None of it where there is no certificate."""
    if certificate is None:
        return []
    jobs = [job for job in certificate["jobs"] if isinstance(job, Mapping)]
    if not jobs:
        return []
    failed = sum(job.get("verdict") != "PASS" for job in jobs)
    verdict = (
        f"FAIL: {failed} of {len(jobs)} jobs could not be shown to give the same weights; the table says why."
        if failed
        else f"PASS: {count(len(jobs), 'job')} verified, each with bit for bit the same weights every time."
    )
    columns = [Column(name=name) for name in ("job", "verdict", "alone", "among neighbours", "killed and resumed")]
    rows = [_row(job) for job in jobs]
    parts: list[Part] = [
        Text(sentences=[verdict], tone="bad" if failed else "good"),
        Table(
            columns=[*columns, Column(name="slow-down", numeric=True), Column(name="why, notes")],
            rows=rows,
            caption=(
                "Each job trained with the same seed alone, among neighbours, and killed and resumed in the middle; "
                "given is the beginning of the SHA-256 of all weights. Slow-down: time of an iteration among "
                "neighbours by that alone."
            ),
        ),
    ]
    warnings = certificate.get("warnings")
    if isinstance(warnings, list) and warnings:
        parts.append(Text(sentences=[sentence(str(one)) for one in warnings]))
    left_out = certificate.get("left_out")
    if isinstance(left_out, Mapping) and left_out:
        sentences = [f"{plain(job)} was not verified: {plain(why)}" for job, why in list(left_out.items())[:10]]
        if len(left_out) > len(sentences):
            sentences.append(f"{len(left_out) - len(sentences):,} more were not: certificate.json names them.")
        parts.append(Text(sentences=sentences, tone="dim"))
    return [Section(title="Certificate", parts=parts)]


def _row(job: Mapping[str, Any]) -> list[Cell]:
    alone = job.get("alone_sha256")
    slowdown = job.get("slowdown")
    said = [*(job.get("reasons") or ()), *(job.get("notes") or ())]
    passed = job.get("verdict") == "PASS"
    return [
        Cell(text=plain(job.get("job_id", DASH))),
        Cell(text=plain(job.get("verdict", DASH)), tone="good" if passed else "bad"),
        Cell(text=_hash(alone)),
        Cell(text=_compared(job.get("together_sha256"), alone)),
        Cell(text=_compared(job.get("resumed_sha256"), alone)),
        Cell(text=f"× {interval(slowdown)}" if isinstance(slowdown, Mapping) else DASH),
        Cell(text=plain("; ".join(map(str, said)), 400) or DASH),
    ]


def _hash(value: Any) -> str:
    return str(value)[:HASH_SHOWN] if value else DASH


def _compared(value: Any, alone: Any) -> str:
    return "the same" if value and value == alone else _hash(value)
