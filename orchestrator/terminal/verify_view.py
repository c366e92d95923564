"""What ``verify`` prints for people: a line a job, why it failed, and what was not tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from orchestrator.analysis.statistics import Estimate
from orchestrator.core.text import number
from orchestrator.terminal import tables, views
from orchestrator.terminal.tables import Column
from orchestrator.verify.certificate import FILE, SCRATCH, Certificate, JobVerdict

STYLE = {"PASS": "green", "FAIL": "bold red"}
LEFT_OUT_SHOWN = 10
HASH_SHOWN = 12


def show(certificate: Certificate, output: Path) -> None:
    """:param output: where the certificate was written."""
    file, scratch = output / FILE, output / SCRATCH
    on = views.console()
    parts = [tables.table(_columns(certificate), on.width), *_messages(certificate)]
    parts += [Text(line) for line in _closing(certificate, file, scratch)]
    views.show(on, *parts)


def _columns(certificate: Certificate) -> list[Column]:
    jobs = certificate.jobs
    return [
        Column(name="job", cells=[job.job_id for job in jobs]),
        Column(name="verdict", cells=[job.verdict for job in jobs], styles=[STYLE[job.verdict] for job in jobs]),
        Column(name="alone", cells=[_hash(job.alone_sha256) for job in jobs], rank=3),
        Column(name="together", cells=[_compared(job, job.together_sha256) for job in jobs], rank=1),
        Column(name="resumed", cells=[_compared(job, job.resumed_sha256) for job in jobs], rank=1),
        Column(name="beside it", cells=[str(job.neighbours) for job in jobs], justify="right", rank=4),
        Column(
            name="s/iteration",
            cells=[number(job.iteration_alone_s, ".3f") for job in jobs],
            justify="right",
            rank=2,
        ),
        Column(name="slow-down", cells=[_slowdown(job.slowdown) for job in jobs], justify="right"),
    ]


def _hash(sha256: str | None) -> str:
    return "–" if sha256 is None else sha256[:HASH_SHOWN]


def _compared(job: JobVerdict, sha256: str | None) -> str:
    return "same" if sha256 is not None and sha256 == job.alone_sha256 else _hash(sha256)


def _slowdown(slowdown: Estimate | None) -> str:
    if slowdown is None:
        return "–"
    interval = "" if slowdown.low is None else f" ({slowdown.low:.2f} to {slowdown.high:.2f})"
    return f"× {slowdown.median:.2f}{interval}"


def _messages(certificate: Certificate) -> Iterator[Text]:
    for job in certificate.jobs:
        said = [*job.reasons, *job.notes]
        if said:
            yield Text.assemble("\n", (job.job_id, STYLE[job.verdict]), *(f"\n    {text}" for text in said))


def _closing(certificate: Certificate, file: Path, scratch: Path) -> Iterator[str]:
    passed = sum(job.verdict == "PASS" for job in certificate.jobs)
    each = "once" if certificate.repeats == 1 else f"{certificate.repeats} times"
    yield (
        f"\n{passed} of {len(certificate.jobs)} PASS: {certificate.iterations} iterations, {each}, alone, with"
        f" {certificate.lanes} at once, and killed and resumed. {file}"
    )
    for job_id, why in list(certificate.left_out.items())[:LEFT_OUT_SHOWN]:
        yield f"left out: {job_id} ({why})"
    if len(certificate.left_out) > LEFT_OUT_SHOWN:
        yield f"left out: {len(certificate.left_out) - LEFT_OUT_SHOWN} more, named in the certificate"
    if certificate.left_out:
        yield "--jobs '*' verifies all"
    if certificate.verdict == "FAIL":
        yield f"the trainings themselves: {scratch}"
