"""A terminal that closes while the run goes on, and who hears of events all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.experiment.beside_run import BesideRun
from orchestrator.supervisor.events import View
from tests.simulation.world import World


@dataclass(slots=True, kw_only=True)
class Terminal:
    """Shows what it is told to show, as long as it is there."""

    world: World
    error: Exception
    """What writing to it raises when it is gone."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        if self.world.is_terminal_gone:
            raise self.error

    def tick(self, view: Callable[[], View]) -> None:
        if self.world.is_terminal_gone:
            raise self.error


@dataclass(slots=True, kw_only=True)
class Listener(BesideRun):
    """Passes on what people are told, beside the run."""

    told: Callable[..., None]
    turn: Callable[[], None]

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self.told(kind, message, **facts)

    def after_turn(self) -> None:
        self.turn()
