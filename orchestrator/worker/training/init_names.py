"""``init_names``: parts of the job's robot that stand for parts of another name in the robot that a
policy was trained with.

A part is a joint, an actuator, or what else is observed by its name, which is a word in the names of
observations and actions (``FL_hip position``, ``actuator of FL_hip``). Each ``*`` of a pattern stands
for the letters that the ``*`` in the same place of the other robot's pattern stands for; the first
one has as many as it can.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.text import listed
from orchestrator.worker.mjspec.spec_elements import suggestion
from orchestrator.worker.training.start_policy import (
    SHOWN,
    Names,
    StartPolicy,
    UnfitStartPolicyError,
)

_BEFORE = r"(?<![^\s.])"
_AFTER = r"(?=(?:/\d+)*\+*(?:[\s.]|$))"
"""Behind the name of a body may be the place of a part of it that has no name, ``trunk/0``; behind
that of an observation a ``+`` where it comes again."""


def with_names_of(
    policy: StartPolicy, own: Names | None, init_names: Mapping[str, str]
) -> StartPolicy:
    """``policy`` with the names that its observations and actions have in the job.

    :param own: the names of the job. :param init_names: name or pattern in the job → there.
    :raises UnfitStartPolicyError: a name is not known, or two stand for the same part.
    """
    if not init_names:
        return policy
    if own is None or policy.names is None:
        whose = "the policy to start from" if policy.names is None else "this job"
        raise UnfitStartPolicyError(
            f"init_names are for observations and actions with names, and those of {whose} have none "
            "(a model.zip alone, an environment, or a task without observation_names)"
        )
    given = policy.names
    pairs = [_Pair(here=here, there=there) for here, there in init_names.items()]
    pairs.sort(key=lambda pair: "*" in pair.here)  # what is named by itself has precedence
    observations = _counterparts(own.observations, given.observations, pairs)
    actions = _counterparts(own.actions, given.actions, pairs)
    for pair in pairs:
        if not (
            pair.fits(own.observations, given.observations) or pair.fits(own.actions, given.actions)
        ):
            raise UnfitStartPolicyError(_without_effect(pair, own, given))
    names = Names(
        observations=_renamed(given.observations, observations, own.observations),
        actions=_renamed(given.actions, actions, own.actions),
    )
    return dataclasses.replace(policy, names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A line of ``init_names``."""

    here: str
    there: str

    def __str__(self) -> str:
        return f'"{self.here}" = "{self.there}"'

    def translations(self, name: str) -> Iterator[str]:
        """``name``, of the job, with the other robot's word in one of the places where its own
        fits.
        """
        for match in _as_regex(self.here).finditer(name):
            letters = iter(match.groups())
            there = "".join(next(letters) if part == "*" else part for part in _parts(self.there))
            yield f"{name[: match.start()]}{there}{name[match.end() :]}"

    def fits(self, own: Sequence[str], given: Sequence[str]) -> bool:
        """Whether it makes a name of the other robot of any name of the job."""
        return any(other in given for name in own for other in self.translations(name))


def _parts(word: str) -> list[str]:
    return re.split(r"(\*)", word)


def _as_regex(word: str) -> re.Pattern[str]:
    """It finds the word in names; a group has the letters of each ``*``."""
    text = "".join(r"([^\s.]*)" if part == "*" else re.escape(part) for part in _parts(word))
    return re.compile(f"{_BEFORE}{text}{_AFTER}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counterpart:
    """What an observation or action of the other robot is in the job."""

    own: str
    pair: _Pair


def _counterparts(
    own: Sequence[str], given: Sequence[str], pairs: Sequence[_Pair]
) -> dict[str, _Counterpart]:
    """By the names of the other robot.

    :raises UnfitStartPolicyError: two names of the job stand for the same one.
    """
    known = set(given)
    found: dict[str, _Counterpart] = {}
    for name in own:
        one = next(
            (
                (other, pair)
                for pair in pairs
                for other in pair.translations(name)
                if other in known
            ),
            None,
        )
        if one is None:
            continue
        other, pair = one
        if other in found:
            before = found[other]
            raise UnfitStartPolicyError(
                f"init_names: {before.own} and {name} would both be {other} of the policy to start "
                f"from, by {before.pair} and {pair}; name each part there once"
            )
        found[other] = _Counterpart(own=name, pair=pair)
    return found


def _renamed(
    given: Sequence[str], found: Mapping[str, _Counterpart], own: Sequence[str]
) -> tuple[str, ...]:
    """The names ``given``, as the job has them. One that the job has for another part is no name of
    the job any more.
    """
    taken = {counterpart.own for counterpart in found.values()}
    return tuple(
        found[name].own if name in found else _unlike(own, name) if name in taken else name
        for name in given
    )


def _unlike(own: Sequence[str], name: str) -> str:
    """``name`` of the source as no name of the job."""
    while name in own:
        name = f"{name} of the source"
    return name


def _without_effect(pair: _Pair, own: Names, given: Names) -> str:
    """Why a line of ``init_names`` fits nothing."""
    all_own = [*own.observations, *own.actions]
    all_given = [*given.observations, *given.actions]
    here = [name for name in all_own if _as_regex(pair.here).search(name)]
    there = [name for name in all_given if _as_regex(pair.there).search(name)]
    if here and there:
        return (
            f"init_names: {pair}: both are there, but nothing of both is alike: here "
            f"{listed(here, SHOWN)}; there {listed(there, SHOWN)}"
        )
    word, whose, known, others = (
        (pair.there, "the robot of the policy to start from", all_given, all_own)
        if here
        else (pair.here, "this robot", all_own, all_given)
    )
    words = [part for part in _words(known) if part not in _words(others)]
    return (
        f'init_names: {pair}: nothing that is observed or controlled of {whose} is called "{word}"'
        f"{suggestion(word, words or _words(known))}"
    )


def _words(names: Sequence[str]) -> dict[str, None]:
    """The words of ``names``, without the places of parts that have no name."""
    return {re.sub(r"(?:/\d+)*\+*$", "", word): None for name in names for word in name.split()}
