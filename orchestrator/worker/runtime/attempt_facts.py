"""What a worker collects while it runs for its exit record."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord


@dataclass(slots=True, kw_only=True)
class AttemptFacts(ExitRecord):
    """The exit record so far of an attempt that is running."""

    started: float = field(default_factory=time.monotonic)
    """:func:`time.monotonic` at the start of the attempt."""
    code: int = ExitCode.SUCCEEDED
    message: str = ""
    checkpoint_s: float = 0.0

    def age_s(self) -> float:
        return time.monotonic() - self.started

    def record(self, code: ExitCode, message: str = "", trace: str = "") -> ExitRecord:
        """Return the whole record of an attempt that has ended."""
        self.code = int(code)
        self.message = message
        self.traceback = trace
        self.wall_s = self.age_s()
        self.cpu_s = time.process_time()
        return ExitRecord(**{field.name: getattr(self, field.name) for field in fields(ExitRecord)})
