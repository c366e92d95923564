"""An attempt on the cluster: one task, or one for each of its ranks where these are on several nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.executors.base import Event, Exited, Handle, Launch, Placed, Progressed, Sampled
from orchestrator.executors.rank_group import RankExit, RankGroup
from orchestrator.executors.ray.ray_task import RayTask


@dataclass(slots=True, kw_only=True, eq=False)
class RemoteAttempt:
    """What its tasks tell becomes what the attempt tells. ``gang.running`` is empty as long as it waits for nodes."""

    handle: Handle
    launch: Launch
    gang: RankGroup[RayTask]
    group: Any = None
    """The placement group of ranks on several nodes."""
    _placed: dict[int, Placed] = field(default_factory=dict)
    _rss_mib: dict[int, float] = field(default_factory=dict)
    """By rank."""

    @property
    def is_one_task(self) -> bool:
        return len(self.launch.rank_slots) == 1

    def hear(self, task: RayTask, event: Event) -> list[Event]:
        """:param event: of ``task``; its end is told by :meth:`settle`."""
        match event:
            case Exited():
                self.gang.running.remove(task)
                self.gang.note(
                    RankExit(
                        rank=task.rank + (event.rank or 0),
                        returncode=event.returncode,
                        oom_killed=event.oom_killed,
                        lost=event.lost,
                    )
                )
                return []
            case _ if self.is_one_task:
                return [event]
            case Progressed() if task.rank or len(self._placed) < self.launch.ranks:  # it runs when all have come to
                return []
            case Placed():
                self._placed[task.rank] = event
                return [self._all_placed()] if len(self._placed) == self.launch.ranks else []
            case Sampled(rss_mib=rss_mib):
                self._rss_mib[task.rank] = rss_mib
                return [replace(event, rss_mib=sum(self._rss_mib.values()))]
            case _:
                return [event]

    def _all_placed(self) -> Placed:
        ranks = [self._placed[rank] for rank in sorted(self._placed)]
        return replace(
            ranks[0],
            node=", ".join(dict.fromkeys(rank.node for rank in ranks)),
            cpus=tuple(cpu for rank in ranks for cpu in rank.cpus),
            gpus=tuple(gpu for rank in ranks for gpu in rank.gpus),
        )

    def settle(self) -> Exited | None:
        """The end of the attempt, once it has one."""
        return self.gang.settle()
