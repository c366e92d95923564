"""What ``verify`` shows: one line per job, why jobs failed, and which jobs were left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from orchestrator.analysis.statistics import Estimate
from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.core.text import number_or_dash
from orchestrator.features.verify.certificate import FILE, SCRATCH, Certificate, CertifiedJob
from orchestrator.terminal.output import show_table

STYLE = {"PASS": "green", "FAIL": "bold red"}
LEFT_OUT_SHOWN = 10
HASH_SHOWN = 12


def show(certificate: Certificate, output: Path) -> None:
    """:param output: directory of the certificate."""
    lines = (Text(line) for line in _closing_lines(certificate, output / FILE, output / SCRATCH))
    show_table(COLUMNS, certificate.jobs, below=[*_messages(certificate), *lines])


def _hash(sha256: str | None) -> str:
    return NONE if sha256 is None else sha256[:HASH_SHOWN]


def _hash_or_same(job: CertifiedJob, sha256: str | None) -> str:
    return "same" if sha256 is not None and sha256 == job.alone_sha256 else _hash(sha256)


def _slowdown(slowdown: Estimate | None) -> str:
    if slowdown is None:
        return NONE
    interval = "" if slowdown.low is None else f" ({slowdown.low:.2f} to {slowdown.high:.2f})"
    return f"× {slowdown.value:.2f}{interval}"


COLUMNS: Sequence[Column[CertifiedJob]] = (
    Column("job", lambda job: job.job_id),
    Column("verdict", lambda job: job.verdict, style=lambda job: STYLE[job.verdict]),
    Column("alone", lambda job: _hash(job.alone_sha256), rank=3),
    Column("together", lambda job: _hash_or_same(job, job.together_sha256), rank=1),
    Column("resumed", lambda job: _hash_or_same(job, job.resumed_sha256), rank=1),
    number_column("neighbours", lambda job: str(job.neighbours), rank=4),
    number_column("s/iteration", lambda job: number_or_dash(job.iteration_alone_s, ".3f"), rank=2),
    number_column("slow-down", lambda job: _slowdown(job.slowdown)),
)


def _messages(certificate: Certificate) -> Iterator[Text]:
    for job in certificate.jobs:
        if messages := [*job.reasons, *job.notes]:
            yield Text.assemble(
                "\n", (job.job_id, STYLE[job.verdict]), *(f"\n    {text}" for text in messages)
            )


def _closing_lines(certificate: Certificate, file: Path, scratch: Path) -> Iterator[str]:
    passed = sum(job.verdict == "PASS" for job in certificate.jobs)
    times = "once" if certificate.repeats == 1 else f"{certificate.repeats} times"
    yield (
        f"\n{passed} of {len(certificate.jobs)} PASS: {certificate.iterations} iterations, {times}, alone, with"
        f" {certificate.lanes} at once, and killed and resumed. {file}"
    )
    for job_id, why in list(certificate.left_out.items())[:LEFT_OUT_SHOWN]:
        yield f"left out: {job_id} ({why})"
    if len(certificate.left_out) > LEFT_OUT_SHOWN:
        yield f"left out: {len(certificate.left_out) - LEFT_OUT_SHOWN} more, named in the certificate"
    if certificate.left_out:
        yield "--jobs '*' verifies all jobs"
    if certificate.verdict == "FAIL":
        yield f"The files of these trainings are kept in {scratch}"
