"""From the results of short trainings to a verdict for every job, and to ``certificate.json``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from orchestrator.analysis.statistics import Estimate, ratio
from orchestrator.features.verify.verification_runs import ShortTraining

FILE = "certificate.json"
SCRATCH = "verify"
"""Folder below the output folder with the trainings; kept only where something failed."""

DISTURBED = 0.05
"""A training that waits for a CPU for more than this share of its time did not have a CPU to
itself."""


@dataclass(slots=True, kw_only=True)
class Evidence:
    """The short trainings of one job, one per repeat of each kind."""

    alone: list[ShortTraining] = field(default_factory=list)
    together: list[ShortTraining] = field(default_factory=list)
    resumed: list[ShortTraining] = field(default_factory=list)
    again: ShortTraining | None = None
    """Alone again, where the weights differed among neighbours: tells the effect of neighbours from
    randomness."""
    is_foreign: bool = False
    """Whether the environment is the user's own or gymnasium's, which may keep state that no
    checkpoint holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedJob:
    """One entry of ``certificate.json``."""

    job_id: str
    verdict: Literal["PASS", "FAIL"]
    reasons: Sequence[str]
    notes: Sequence[str]
    """What could not be tested, and remarks."""
    alone_sha256: str | None
    together_sha256: str | None
    resumed_sha256: str | None
    """Hashes of the first repeat, or of the first that differs from it."""
    neighbours: int
    """Largest number of other trainings at the same time."""
    resumed_from: int | None
    """env_steps of the checkpoint from which the killed training resumed (first repeat)."""
    iteration_alone_s: float | None
    iteration_together_s: float | None
    """Median seconds per iteration."""
    slowdown: Estimate | None
    """Time per iteration among neighbours divided by that alone; None where there are no
    timings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """``certificate.json``."""

    verdict: Literal["PASS", "FAIL"]
    jobs: Sequence[CertifiedJob]
    left_out: Mapping[str, str]
    iterations: int
    repeats: int
    lanes: int
    """Jobs at once among neighbours. The file has this word for them."""
    warnings: Sequence[str]
    machine: Mapping[str, Any]
    started_at: str
    took_s: float

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"


def judge(job_id: str, evidence: Evidence) -> CertifiedJob:
    """PASS when every training of the job gave the same weights."""
    alone = evidence.alone[0]
    reasons = _reasons(evidence)
    neighbours = max((one.neighbours for one in evidence.together), default=0)
    return CertifiedJob(
        job_id=job_id,
        verdict="FAIL" if reasons else "PASS",
        reasons=reasons,
        notes=_notes(evidence, neighbours),
        alone_sha256=alone.sha256,
        together_sha256=_reported_hash(evidence.together, alone.sha256),
        resumed_sha256=_reported_hash(evidence.resumed, alone.sha256),
        neighbours=neighbours,
        resumed_from=evidence.resumed[0].resumed_from if evidence.resumed else None,
        iteration_alone_s=_median_s(evidence.alone),
        iteration_together_s=_median_s(evidence.together),
        slowdown=_slowdown(evidence),
    )


def _notes(evidence: Evidence, neighbours: int) -> list[str]:
    notes = []
    if not neighbours:
        notes.append(
            "no neighbour fits beside it (cores, memory or GPUs): it was trained alone each time"
        )
    for kind, trainings in (("alone", evidence.alone), ("among neighbours", evidence.together)):
        waited_s = sum(one.waited_s for one in trainings)
        wall_s = sum(sum(one.iteration_s) for one in trainings)
        if waited_s > DISTURBED * wall_s:
            text = f"{kind} it waited {waited_s / wall_s:.0%} of the time for a CPU: another program uses this machine"
            notes.append(f"{text}, or trainings share a CPU; its slow-down is unreliable")
    return notes


def _reasons(evidence: Evidence) -> list[str]:
    kinds = {
        "alone": evidence.alone,
        "among neighbours": evidence.together,
        "killed and resumed": evidence.resumed,
    }
    for kind, trainings in kinds.items():
        if untrained := [one.problem for one in trainings if one.sha256 is None]:
            return [f"{kind} it was not trained to the end: {untrained[0]}"]
    expected = evidence.alone[0].sha256
    if any(one is not None and one.sha256 != expected for one in (*evidence.alone, evidence.again)):
        return [
            "it has different weights even in two trainings alone: they depend on something other than its seed"
            " (other random generators, the time, files that change)"
        ]
    reasons = []
    if any(one.sha256 != expected for one in evidence.together):
        reasons.append(
            "it has other weights among neighbours than alone, and the same weights each time alone:"
            " its environment depends on what runs beside it"
        )
    if not all(one.was_killed for one in evidence.resumed):
        reasons.append(
            "it ended before it could be killed; use longer iterations, or more of them (--iterations)"
        )
    if changed := [one for one in evidence.resumed if one.sha256 != expected]:
        reasons.append(_why_not_resumed(changed[0], is_foreign=evidence.is_foreign))
    return reasons


def _why_not_resumed(one: ShortTraining, *, is_foreign: bool) -> str:
    if one.unsaveable is not None:
        return (
            f"it has other weights when killed and resumed: its environment's state cannot be saved ({one.unsaveable}),"
            " so new episodes begin; define get_state() and set_state(state) on the environment to make it resumable"
        )
    where = (
        "the beginning"
        if one.resumed_from is None
        else f"the checkpoint at {one.resumed_from} env_steps"
    )
    text = f"it has other weights when killed and resumed from {where} than without interruption"
    if is_foreign:
        text += (
            "; state that its environment keeps outside of its attributes is in no checkpoint:"
            " define get_state() and set_state(state) on it to save that too"
        )
    return text


def weights_differ(evidence: Evidence) -> bool:
    """Whether the weights among neighbours differ from those alone."""
    expected = evidence.alone[0].sha256
    return expected is not None and any(
        one.sha256 not in (None, expected) for one in evidence.together
    )


def _reported_hash(trainings: Sequence[ShortTraining], expected: str | None) -> str | None:
    """The first hash that differs from ``expected``, else ``expected``; None without trainings."""
    if not trainings:
        return None
    different = [one.sha256 for one in trainings if one.sha256 != expected]
    return different[0] if different else expected


def _median_s(trainings: Sequence[ShortTraining]) -> float | None:
    seconds = [second for one in trainings for second in one.iteration_s]
    return median(seconds) if seconds else None


def _slowdown(evidence: Evidence) -> Estimate | None:
    """The ratio of iterations; of the repeats' medians where there are several, which include the
    machine's drift.
    """
    alone = evidence.alone
    together = evidence.together
    if not all(one.iteration_s for one in (*alone, *together)) or not together:
        return None
    if len(alone) == 1:
        return ratio(together[0].iteration_s, alone[0].iteration_s)
    above = [median(one.iteration_s) for one in together]
    below = [median(one.iteration_s) for one in alone]
    return ratio(above, below, paired=True)
