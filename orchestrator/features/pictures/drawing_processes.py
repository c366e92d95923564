"""Child processes that draw policies, several at once: videos, previews, the robots of a mosaic."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.core.processes.child_process import has_ended
from orchestrator.experiment.policy_process import PolicyProcess
from orchestrator.machine.slots import Slot, SlotPool

POLL_INTERVAL_S = 0.1


class Drawing(Protocol):
    """What one process draws."""

    @property
    def left(self) -> tuple[str, ...]:
        """Ids of the jobs that have not been drawn."""

    @property
    def time_limit_s(self) -> float: ...

    def begin(self, cpus: tuple[int, ...]) -> PolicyProcess | None:
        """None: it is not needed any more. :raises OSError: it cannot be started."""

    def not_begun(self, why: str) -> None:
        """Report that its process cannot be started."""

    def report_end(self, code: int, message: str) -> Sequence[Drawing]:
        """Report how it has ended. Returns those that are to be begun in its place."""


def run(
    drawings: Sequence[Drawing], slots: SlotPool, is_stopped: Callable[[], bool]
) -> list[Drawing]:
    """Run each on a slot of its own, until ``is_stopped`` says True. Returns those that have not
    ended by then.

    No process outlives the call, an interrupted one included.
    """
    waiting = deque(drawings)
    running: dict[PolicyProcess, tuple[Drawing, Slot]] = {}
    with contextlib.ExitStack() as processes:
        while waiting or running:
            if is_stopped():
                return [*(drawing for drawing, _ in running.values()), *waiting]
            while waiting and (slot := slots.acquire(1)) is not None:
                drawing = waiting.popleft()
                try:
                    process = drawing.begin(slot.cpus)
                except OSError as error:
                    process = None
                    drawing.not_begun(error.strerror or str(error))
                if process is None:
                    slots.release(slot)
                else:
                    running[processes.enter_context(process)] = drawing, slot
            for process, (drawing, slot) in list(running.items()):
                is_late = time.monotonic() - process.started > drawing.time_limit_s
                if not (is_late or has_ended(process.pid)):
                    continue
                code, message = process.end()
                slots.release(slot)
                del running[process]
                if is_late and code != 0:
                    message = f"took more than {drawing.time_limit_s:.0f} s"
                waiting.extend(drawing.report_end(code, message))
            if running:
                time.sleep(POLL_INTERVAL_S)
    return []
