"""What an attempt reports while it runs: progress records on the channel, and lines in
``worker.log``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from orchestrator.core.messages import Progress
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.resources import run_delay_s
from orchestrator.worker.runtime.supervisor_connection import Channel

INTERVAL_S = 0.5
"""Shortest time between progress records."""

Phase = Literal["starting", "training", "evaluating"]


def say(text: str) -> None:
    """Write a line to ``worker.log``."""
    print(f"worker: {text}", flush=True)


class ProgressReporter:
    """Sends the supervisor progress records; does nothing without a channel.

    Values that change once an iteration are attributes. :meth:`report` may be called at every step:
    it reads a clock, and sends when a record is due. A change of phase and what is urgent are sent
    at once.

    :param facts: also of each record. :param before_sending: called before one is sent.
    """

    def __init__(
        self,
        channel: Channel | None,
        facts: AttemptFacts,
        before_sending: Callable[[], object] = lambda: None,
    ) -> None:
        self.iteration = 0
        self.env_steps_per_s: float | None = None
        self.warning: str | None = None
        self.is_urgent = False
        """Whether the next record is sent at once."""
        self._channel = channel
        self._facts = facts
        self._before_sending = before_sending
        self._phase: Phase | None = None
        self._sent_at = time.monotonic()
        self._sent_cpu_s = time.process_time()
        self._sent_delay_s = run_delay_s()

    def report(self, phase: Phase, env_steps: int) -> None:
        """Send a record if one is due."""
        if self._channel is None:
            return
        now = time.monotonic()
        elapsed_s = now - self._sent_at
        if phase == self._phase and not self.is_urgent and elapsed_s < INTERVAL_S:
            return
        self._before_sending()
        cpu_s = time.process_time()
        delay_s = run_delay_s()
        cpu_share = None
        delay_share = None
        if elapsed_s > INTERVAL_S / 2:  # shares of a shorter time say little
            cpu_share = (cpu_s - self._sent_cpu_s) / elapsed_s
            if delay_s is not None and self._sent_delay_s is not None:
                delay_share = (delay_s - self._sent_delay_s) / elapsed_s
        record = Progress(
            phase=phase,
            env_steps=env_steps,
            iteration=self.iteration,
            ep_rew_mean=self._facts.ep_rew_mean,
            env_steps_per_s=self.env_steps_per_s,
            cpu_share=cpu_share,
            run_delay_share=delay_share,
            learner=self._facts.learner,
            warning=self.warning,
            parts=self._facts.parts,
        )
        if self._channel.send(record.to_line()):
            self._phase = phase
            self.is_urgent = False
        self._sent_at = now
        self._sent_cpu_s = cpu_s
        self._sent_delay_s = delay_s
