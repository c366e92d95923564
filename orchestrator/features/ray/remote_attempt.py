"""An attempt on the cluster: one Ray task, or one for each rank if the ranks are on several
nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.executors.executor import AttemptId, Event, Exited, Placed, Progressed, Sampled
from orchestrator.executors.launcher import Launch
from orchestrator.executors.rank_group import RankExit, RankGroup
from orchestrator.features.ray.ray_task import RayTask
from orchestrator.features.ray.user_code import UserCode


@dataclass(slots=True, kw_only=True, eq=False)
class RemoteAttempt:
    """Merges the events of its tasks. ``tasks.running`` is empty while it waits for room."""

    id: AttemptId
    launch: Launch
    tasks: RankGroup[RayTask]
    code: UserCode | None = None
    placement_group: Any = None
    """Ray's placement group, for ranks on several nodes."""
    _placed: dict[int, Placed] = field(default_factory=dict)
    """Rank → where it runs; ``_rss_mib`` has the same keys."""
    _rss_mib: dict[int, float] = field(default_factory=dict)

    @property
    def is_one_task(self) -> bool:
        return len(self.launch.rank_slots) == 1

    def merge(self, task: RayTask, event: Event) -> list[Event]:
        """The events of the attempt that follow from ``event`` of ``task``. Ends are recorded in
        ``tasks``.
        """
        rank = task.assignment.launch.first_rank
        match event:
            case Exited(returncode=returncode, oom_killed=oom_killed, lost=lost):
                self.tasks.running.remove(task)
                rank += event.rank or 0
                self.tasks.note(
                    RankExit(rank=rank, returncode=returncode, oom_killed=oom_killed, lost=lost)
                )
                return []
            case _ if self.is_one_task:
                return [event]
            # Rank 0 speaks for all, once all of them run.
            case Progressed() if rank or len(self._placed) < self.launch.ranks:
                return []
            case Placed():
                self._placed[rank] = event
                return [self._all_placed()] if len(self._placed) == self.launch.ranks else []
            case Sampled(rss_mib=rss_mib):
                self._rss_mib[rank] = rss_mib
                return [replace(event, rss_mib=sum(self._rss_mib.values()))]
            case _:
                return [event]

    def _all_placed(self) -> Placed:
        ranks = [self._placed[rank] for rank in sorted(self._placed)]
        return replace(
            ranks[0],
            node=", ".join(dict.fromkeys(rank.node or "" for rank in ranks)),
            cpus=tuple(cpu for rank in ranks for cpu in rank.cpus),
            gpus=tuple(gpu for rank in ranks for gpu in rank.gpus),
        )
