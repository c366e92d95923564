"""Measurements of a benchmark: what each one is, and ``cells.jsonl``, the log of those that are
finished.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.analysis import samples
from orchestrator.analysis.samples import MeasurementKey, MeasurementRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Some processes, started in one way, that are measured once."""

    baseline: str
    """How the processes are started; with ``--ranks``, how one job or several get their
    processes."""
    level: int
    """Number of processes; with ``--ranks``, number of ranks."""
    repeat: int

    def __str__(self) -> str:
        return f"{self.baseline} × {self.level}"

    def key(self) -> MeasurementKey:
        """The entries of a record that identify its measurement."""
        return {"arm": self.baseline, "level": self.level, "repeat": self.repeat}

    @classmethod
    def of(cls, record: MeasurementKey) -> Measurement:
        return cls(baseline=record["arm"], level=record["level"], repeat=record["repeat"])


@dataclass(slots=True)
class MeasurementLog:
    """``cells.jsonl``: one finished measurement per line, each on the disk before the next one
    begins.
    """

    path: Path

    def read(self) -> list[MeasurementRecord]:
        """Every complete line. A torn line is left out, and its measurement is repeated."""
        return samples.records(self.path)[0]

    def append(self, record: MeasurementRecord) -> None:
        content = self.path.read_bytes() if self.path.exists() else b""
        with self.path.open("ab") as file:
            file.truncate(content.rfind(b"\n") + 1)  # without a torn last line
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def disturbed_counts(self) -> Counter[Measurement]:
        """How many times each was disturbed."""
        return Counter(
            Measurement.of(record) for record in self.read() if record["status"] == "disturbed"
        )

    def missing(self, planned: Sequence[Measurement], retakes: int) -> list[Measurement]:
        """What is still to be measured, in order: also what failed, and what was disturbed up to
        ``retakes`` times.
        """
        done = {
            Measurement.of(record) for record in self.read() if record["status"] in ("ok", "cut")
        }
        done |= {
            measurement for measurement, times in self.disturbed_counts().items() if times > retakes
        }
        return [measurement for measurement in planned if measurement not in done]


def with_disturbance(record: MeasurementRecord, *, again: bool) -> MeasurementRecord:
    """``record`` with the status that its disturbance, if any, gives it.

    A disturbed measurement that was cut off is without a figure as long as it is measured
    ``again``; after that its throughput counts as the upper bound that it is.
    """
    disturbance = record["disturbance"]
    if not disturbance or record["status"] == "failed":
        return record
    if record["status"] == "ok":
        return {**record, "status": "disturbed", "message": disturbance}
    record = {**record, "message": f"{record['message']}; {disturbance}"}
    return {**record, "status": "disturbed", "throughput": None} if again else record


def describe(record: MeasurementRecord) -> str:
    """The result of a measurement in one line."""
    status = record["status"]
    message = record["message"]
    if record["throughput"] is None:
        return f"{status}: {message}"
    rate = f"{record['throughput']:,.0f} env_steps/s"
    return {
        "cut": f"at most {rate} ({message})",
        "disturbed": f"{rate}, but disturbed: {message}",
    }.get(status, rate)
