"""The next point of a search: what is asked of the sampler, what it is told, and the parent that a trial inherits."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.atomic_files import write_whole
from orchestrator.jobfile.search_spec import SearchSpec
from orchestrator.ledger.search_events import SearchEvent
from orchestrator.search import samplers
from orchestrator.search.history import History, Trial
from orchestrator.search.space import Space

SAVE_EVERY_S = 5.0
SAVE_SHARE = 0.01
"""Largest share of the time that is spent on saving the sampler."""
WINDOW = 2
"""With order = "fixed", a point is asked with the values of all trials but the last so many times as many as run."""


class Proposals:
    """A sampler, and where it is saved. Told and asked in the order of the events, it always proposes the same."""

    def __init__(self, spec: SearchSpec, file: Path, search_path: Path, lanes: int, bracket: int) -> None:
        """:param file: where the sampler is saved.
        :param search_path: folder of the user's modules.
        :param bracket: number of trials that are compared with each other; 1 without rungs.
        """
        self._spec, self._file, self._lanes, self._bracket = spec, file, lanes, bracket
        self._sampler, self._space = samplers.make(spec, search_path), Space(spec.space)
        self._save_at = time.monotonic() + SAVE_EVERY_S

    @property
    def in_order(self) -> bool:
        return self._spec.order == "fixed"

    def ask(self, number: int) -> Mapping[str, Any]:
        return self._sampler.ask(number)

    def tell(self, event: SearchEvent, history: History) -> None:
        assert event.trial is not None
        content, point = event.content, history.trials[event.trial].point
        values, measures = (None if content[key] is None else tuple(content[key]) for key in ("values", "measures"))
        outcome = samplers.TrialOutcome(values=values, measures=measures, env_steps=content["env_steps"])
        self._sampler.tell(event.trial, point, outcome)

    def restore(self, events: Sequence[SearchEvent]) -> None:
        """Bring the sampler to the state after ``events``: from its file as far as that goes."""
        known = 0
        with contextlib.suppress(Exception):  # missing, damaged, or of another version: everything is told again
            known, self._sampler = pickle.loads(self._file.read_bytes())
        history = History()
        for event in events:
            history.apply(event)
            if event.id <= known:
                continue
            if event.kind == "asked" and event.content.get("reevaluates") is None:
                self._sampler.ask(len(history.trials) - 1)
            elif event.kind == "told":
                self.tell(event, history)

    def save(self, last_id: int) -> None:
        """Save the sampler, if it is time for that and if it can be pickled."""
        if time.monotonic() < self._save_at:
            return
        began = time.monotonic()
        with contextlib.suppress(pickle.PicklingError, TypeError, AttributeError):
            content = pickle.dumps((last_id, self._sampler))
            self._file.parent.mkdir(exist_ok=True)
            write_whole(self._file, content, durable=False)
        now = time.monotonic()
        self._save_at = now + max(SAVE_EVERY_S, (now - began) / SAVE_SHARE)

    # -- order = "fixed"

    def _lag(self, history: History) -> int:
        """The number of the first trial whose outcome the next one is not to know."""
        number = len(history.trials)
        lag = number - WINDOW * self._lanes if self._bracket == 1 else (number // self._bracket - 1) * self._bracket
        return max(0, lag)

    def is_next_known(self, history: History, going_on: Collection[int]) -> bool:
        """Whether all trials are over, or rejected for good, that the next one is asked with.

        :param going_on: trials that a rung lets go on.
        """
        lag = self._lag(history)
        return all(number >= lag or trial.is_waiting for number, trial in history.open.items()) and all(
            number >= lag for number in going_on
        )

    def to_tell(self, history: History) -> Iterable[Trial]:
        """The trials that the sampler is told before the next one is asked, with order = "fixed"."""
        lag = self._lag(history) if self.in_order else 0
        return [trial for number, trial in sorted(history.untold.items()) if number < lag]

    # -- inheritance

    def parent(self, point: Mapping[str, Any], history: History) -> Trial | None:
        """The trial whose policies a new one with this point starts from."""
        if self._spec.inherit == "none":
            return None
        known = history.trials[: self._lag(history)] if self.in_order else history.trials
        finished = [trial for trial in known if trial.values is not None and trial.reevaluates is None]
        if not finished:
            return None
        if self._spec.inherit == "best":
            return history.best(self._spec.directions[0], finished)[0]
        return min(finished, key=lambda trial: self._space.distance(trial.point, point))
