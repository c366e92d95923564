"""The next point of a search: what is asked of the sampler, what it is told, and the parent that a
trial inherits.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.text import shortened
from orchestrator.features.search.declaration.constraints import ConstraintCheck
from orchestrator.features.search.declaration.random_points import random_point
from orchestrator.features.search.declaration.spec import (
    NETWORK_KEYS,
    SearchSpec,
    identity,
    learns,
)
from orchestrator.features.search.history import History, Trial, ranked_trials
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher import samplers
from orchestrator.features.search.searcher.samplers import Sampler
from orchestrator.features.search.searcher.space import Space
from orchestrator.features.search.searcher.watchdog import Watchdog

SAVING = Pace(every_s=5.0, share=0.01)
"""How often the sampler is saved."""
WINDOW = 2
"""With order = "fixed", a point is asked with the values of all trials but the last so many times
as many as ran at once when the search first began."""


ASKED_FOR_ONE = 100
"""Points in a row that the sampler is asked for while they violate the constraints."""
MOST_FOR_ONE = 10_000
"""The same with random points after these; then the search stops."""
MOST_REFUSED = 1_000
"""The same without constraints, where a function refuses its bodies: it may have an error."""

CheckPoint: TypeAlias = Callable[[Mapping[str, Any]], ConstraintCheck]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPoint:
    """The point of the next trial."""

    point: Mapping[str, Any]
    rejected: Sequence[Sequence[float] | None] = ()
    """Of each point that the sampler proposed before it and that violates the constraints: by how
    much it is beyond each of them; None where that is not known."""
    rejected_random: int = 0
    """How many random points after these violate the constraints."""
    rejected_why: str = ""
    """What is wrong with the last of all these points."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the event of the trial has of the points before it."""
        facts: dict[str, Any] = {}
        if self.rejected:
            facts["rejected"] = self.rejected
        if self.rejected_random:
            facts["rejected_random"] = self.rejected_random
        if self.rejected_why:
            facts["rejected_why"] = self.rejected_why
        return facts


class Proposals:
    """A sampler, and where it is saved. Told and asked in the order of the events, it always
    proposes the same.
    """

    def __init__(
        self,
        spec: SearchSpec,
        file: Path,
        search_path: Path,
        bracket: int,
        watchdog: Watchdog,
        *,
        tells_at_rungs: bool,
        initial: Sequence[Mapping[str, Any]] = (),
        sampler: Sampler | None = None,
    ) -> None:
        """:param file: where the sampler is saved.
        :param search_path: folder of the user's modules.
        :param bracket: number of trials that are compared with each other; 1 without rungs.
        :param tells_at_rungs: whether the value at a rung stands for the one at the end.
        :param initial: points of the first trials, which the sampler is not asked for.
        :param sampler: in place of that of ``spec``, such as one for simulations.
        """
        self.tells_at_rungs = tells_at_rungs
        self._initial = initial
        self._spec = spec
        self._file = file
        self._bracket = bracket
        self._watchdog = watchdog
        with watchdog.time_limit(spec.sampler, "constructor"):
            self._sampler = sampler or samplers.make(spec, search_path)
        self._space = Space(spec.space)
        self._learns = learns(spec.sampler)
        self._known = 0
        """The last event that the sampler knows of from its file."""
        self._saving = Pacer(SAVING)
        self._saving.wait(SAVING.every_s)

    @property
    def in_order(self) -> bool:
        return self._spec.order == "fixed"

    def next_point(self, history: History, check: CheckPoint) -> NextPoint:
        """The point of the next trial: of ``initial``, or one that the sampler proposes and that
        satisfies the constraints and makes a robot. After :data:`ASKED_FOR_ONE` that do not, points
        are random.

        :raises UsageError: the sampler fails, or none of a great many points satisfies them.
        """
        index = len(history.asked)
        first = index + history.rejected
        if index < len(self._initial):
            point = dict(self._initial[index])
            self._add(first, point)
            return NextPoint(point=point)
        rejected: list[Sequence[float] | None] = []
        why = ""
        most = MOST_FOR_ONE if self._spec.constraints else MOST_REFUSED
        for tried in range(most):
            number = first + tried
            is_asked = tried < ASKED_FOR_ONE
            point = self.ask(number) if is_asked else self._random_point(number)
            found = check(point)
            if found.is_satisfied:
                if not is_asked:
                    self._add(number, point)
                return NextPoint(
                    point=point,
                    rejected=rejected,
                    rejected_random=tried - len(rejected),
                    rejected_why=why,
                )
            why = shortened(found.why)
            if is_asked:
                self._reject(number, point, found.excess)
                rejected.append(found.excess)
        what = "satisfies search.constraints" if self._spec.constraints else "makes a job"
        raise UsageError(f"none of {most:,} points in a row {what}; the last one: {why}")

    def _random_point(self, number: int) -> dict[str, Any]:
        return random_point(self._spec.space, self._spec.seed, number)

    def ask(self, number: int) -> dict[str, Any]:
        """The point that the sampler proposes next, in JSON types.

        :raises UsageError: the sampler fails.
        """
        with self._explaining("ask"):
            asked = self._sampler.ask(number)
            if not isinstance(asked, Mapping):
                raise TypeError(
                    f"it returned {asked!r:.60}; expected a dict with a value for each key of the space"
                )
            point: dict[str, Any] = json.loads(json.dumps(dict(asked), default=_plain))
            if others := point.keys() ^ {dimension.key for dimension in self._spec.space}:
                raise ValueError(
                    f"its point and the space differ in the keys {', '.join(sorted(others))}"
                )
        return point

    def _add(self, number: int, point: Mapping[str, Any]) -> None:
        """Let the sampler learn of a trial that it was not asked for."""
        if self._takes_added:
            with self._explaining("add"):
                self._sampler.add(number, dict(point))

    def _reject(
        self, number: int, point: Mapping[str, Any], excess: Sequence[float] | None
    ) -> None:
        """Let the sampler learn that its point violates the constraints."""
        if callable(getattr(self._sampler, "reject", None)):
            with self._explaining("reject"):
                self._sampler.reject(number, dict(point), excess)

    @property
    def _takes_added(self) -> bool:
        """Whether the sampler learns of points that it was not asked for."""
        return callable(getattr(self._sampler, "add", None))

    @property
    def _takes_further_seeds(self) -> bool:
        """Whether the sampler learns of further seeds of trials."""
        return callable(getattr(self._sampler, "tell_again", None))

    def _was_added(self, trial: Trial) -> bool:
        """Whether the sampler was not asked for it."""
        return trial.index < len(self._initial) or trial.rejected >= ASKED_FOR_ONE

    def to_tell_at_once(self, history: History) -> list[Trial]:
        """The trials that the sampler is told as soon as anything is known of them; none with order
        = "fixed", where :meth:`to_tell` says when.
        """
        if self.in_order:
            return []
        return [trial for trial in history.untold.values() if self._is_told(trial)]

    def _is_told(self, trial: Trial) -> bool:
        return trial.is_over or (trial.is_waiting and self.tells_at_rungs)

    def tell(self, event: SearchEvent, history: History) -> None:
        """:raises UsageError: the sampler fails."""
        assert event.trial is not None
        content = event.content
        trial = history.trials[event.trial]
        if trial.is_further_seed:
            self._tell_again(event, trial, history)
            return
        if self._was_added(trial) and not self._takes_added:
            return
        values, measures = (
            None if content[key] is None else tuple(content[key]) for key in ("values", "measures")
        )
        outcome = samplers.TrialOutcome(
            values=values, measures=measures, env_steps=content["env_steps"]
        )
        with self._explaining("tell"):
            self._sampler.tell(trial.draw, trial.point, outcome)

    def _tell_again(self, event: SearchEvent, seed: Trial, history: History) -> None:
        """Tell the sampler of a further seed of a trial that it was told of before.

        The value of the trial is over the seeds that it was told of.
        """
        assert seed.reevaluates is not None
        trial = history.trials[seed.reevaluates]
        knows_trial = self._takes_added or not self._was_added(trial)
        if not (event.content["values"] and knows_trial and self._takes_further_seeds):
            return
        told = [
            one.values[0]
            for one in trial.further
            if one.values and one.number not in history.untold
        ]
        outcome = samplers.FurtherOutcome(
            value=event.content["values"][0],
            value_of_trial=history.value_of([*trial.of_seeds, *told])[0],
            env_steps=event.content["env_steps"],
        )
        with self._explaining("tell_again"):
            self._sampler.tell_again(trial.draw, trial.point, outcome)

    @contextlib.contextmanager
    def _explaining(self, method: str) -> Iterator[None]:
        try:
            with self._watchdog.time_limit(self._spec.sampler, f"method {method}"):
                yield
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            # A corrected class, or another version of a library, may have other attributes: the next
            # one is told everything again.
            with contextlib.suppress(OSError):  # the disk is away: what it has is tried again
                self._file.unlink(missing_ok=True)
            what = f'the sampler "{self._spec.sampler}" has failed in its method {method}'
            raise UsageError(f"{what}: {type(error).__name__}: {error}") from error

    def restore(self, last_id: int) -> None:
        """Read the saved sampler, unless it was told more than the ledger has.

        :param last_id: of the events.
        """
        # Missing or damaged: everything is told again.
        with contextlib.suppress(Exception):
            with self._watchdog.time_limit(self._spec.sampler, "unpickling"):
                saved, sampler = pickle.loads(self._file.read_bytes())
            if saved <= last_id:  # else a power cut has taken what it was told
                self._known = saved
                self._sampler = sampler

    def replay(self, event: SearchEvent, history: History) -> None:
        """Ask and tell the sampler again what it has not been saved with.

        :param history: after ``event``.
        """
        if event.id <= self._known or not self._learns:
            return
        if event.kind == "asked" and history.trials[-1].is_of_search:
            self._ask_again(history.trials[-1], event.content.get("rejected", ()))
        elif event.kind == "told":
            self.tell(event, history)

    def _ask_again(self, trial: Trial, rejected: Sequence[Sequence[float] | None]) -> None:
        """As it was asked for, with the points that were rejected before it."""
        first = trial.draw - trial.rejected
        for number, excess in enumerate(rejected, first):
            self._reject(number, self.ask(number), excess)
        if self._was_added(trial):
            self._add(trial.draw, trial.point)
        else:
            self.ask(trial.draw)

    def save(self, last_id: int) -> None:
        """Save the sampler, if it is time for that and if it can be pickled."""
        if not self._saving.is_due() or not self._learns:
            return
        # An error of a user's sampler, or a full disk: it is told everything again.
        with self._saving.time_block(), contextlib.suppress(Exception):
            with self._watchdog.time_limit(self._spec.sampler, "pickling"):
                content = pickle.dumps((last_id, self._sampler))
            self._file.parent.mkdir(exist_ok=True)
            write_whole(self._file, content, durable=False)

    # -- order = "fixed"

    def _lag(self, history: History) -> int:
        """The index of the first trial whose outcome the next one is not to know."""
        index = len(history.asked)
        lag = (
            index - WINDOW * history.jobs_at_once
            if self._bracket == 1
            else (index // self._bracket - 1) * self._bracket
        )
        return max(0, lag)

    def is_next_known(self, history: History) -> bool:
        """Whether all trials are over, or rejected for good, that the next one is asked with."""
        lag = self._lag(history)
        return all(trial.index >= lag for trial in history.training.values())

    def to_tell(self, history: History) -> Iterable[Trial]:
        """The trials that the sampler is told before the next one is asked, with order =
        "fixed".
        """
        lag = self._lag(history) if self.in_order else 0
        known = [trial for _, trial in sorted(history.untold.items()) if trial.index < lag]
        return [trial for trial in known if trial.is_over or self.tells_at_rungs]

    # -- inheritance

    def parent(self, point: Mapping[str, Any], history: History) -> Trial | None:
        """The trial whose policies a new one with this point starts from; None where none has such
        a network.
        """
        if self._spec.start == "reference":
            return history.start
        if not self._spec.has_lineages:
            return None
        known = history.asked[: self._lag(history)] if self.in_order else history.asked
        decisive = [key for key in point if key.partition(".")[0] in NETWORK_KEYS]
        finished = [
            trial
            for trial in known
            if trial.values is not None
            and all(identity(trial.point[key]) == identity(point[key]) for key in decisive)
        ]
        if not finished:
            return None
        if self._spec.start == "best":
            return ranked_trials(finished, self._spec.directions[:1])[0]
        return min(finished, key=lambda trial: self._space.distance(trial.point, point))


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy as Python has them."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"it returned {value!r:.60}, which JSON does not know")
    return value.tolist()
