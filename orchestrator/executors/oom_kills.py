"""Which exits of workers are out-of-memory kills: the kernel counts these, and does not say whom it
has killed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.machine import cgroup


@dataclass(slots=True, kw_only=True)
class OomKills:
    """Explains exits by the kernel's count of out-of-memory kills, each by another kill.

    An exit may be reaped after the count was sampled that has its kill, or before. So a kill may
    explain an exit until the sample after the next one.
    """

    _explained: int | None = field(default=None, init=False)
    """So many of the kills explain an exit already, or are too old for that; None: the kernel does
    not count."""
    _at_last_sample: int | None = field(default=None, init=False)

    def begin(self) -> None:
        """No worker runs: what was killed until now explains no exit that follows."""
        self._explained = cgroup.oom_kills()
        self._at_last_sample = self._explained

    def sample(self, template_kills: int) -> None:
        """Kills before the sample before this one are too old now.

        :param template_kills: kills of template processes since the last call of this or of
            :meth:`explain_exit`; they explain no exit of a worker.
        """
        if self._explained is not None and self._at_last_sample is not None:
            self._explained = max(self._explained, self._at_last_sample)
        self._at_last_sample = cgroup.oom_kills()
        self._leave_out(template_kills, self._at_last_sample)

    def explain_exit(self, template_kills: int) -> bool:
        """Returns whether there is a kill that explains no other exit. From now on it explains this
        one.

        :param template_kills: as for :meth:`sample`.
        """
        kills = cgroup.oom_kills()
        self._leave_out(template_kills, kills)
        if kills is None or self._explained is None or kills <= self._explained:
            return False
        self._explained += 1
        return True

    def _leave_out(self, template_kills: int, kills: int | None) -> None:
        if kills is not None and self._explained is not None:
            self._explained = max(self._explained, min(kills, self._explained + template_kills))
