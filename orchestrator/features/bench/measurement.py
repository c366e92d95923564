"""Measurements of a benchmark: what each one is, and ``cells.jsonl``, the log of those that are
finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.features.bench import samples
from orchestrator.features.bench.samples import MeasurementKey, MeasurementRecord


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

    def missing(self, planned: Sequence[Measurement]) -> list[Measurement]:
        """What is still to be measured, in order: also what failed."""
        done = {
            Measurement.of(record) for record in self.read() if record["status"] in ("ok", "cut")
        }
        return [measurement for measurement in planned if measurement not in done]


def describe(record: MeasurementRecord) -> str:
    """The result of a measurement in one line."""
    status = record["status"]
    message = record["message"]
    if record["throughput"] is None:
        return f"{status}: {message}"
    rate = f"{record['throughput']:,.0f} env_steps/s"
    return f"at most {rate} ({message})" if status == "cut" else rate
