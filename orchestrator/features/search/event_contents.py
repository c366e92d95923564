"""What each kind of event of a search holds: checked when it is read, so that nothing is concluded
from damage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.decoding import INT64


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key of the content of an event."""

    is_valid: Callable[[Any], bool]
    expected: str
    may_be_missing: bool = False


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < INT64.stop


def _is_number(value: Any) -> bool:
    """Also NaN, and the infinities."""
    return type(value) is float or (type(value) is int and value in INT64)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _are_excesses(value: Any) -> bool:
    return isinstance(value, list) and all(one is None or _are_numbers(one) for one in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


WHOLE = Entry(is_valid=_is_whole, expected="a whole number of at least 0")
TRIAL_OR_NONE = Entry(
    is_valid=lambda value: value is None or _is_whole(value),
    expected="the number of a trial, or null",
    may_be_missing=True,
)
NUMBER_OR_NONE = Entry(
    is_valid=lambda value: value is None or _is_number(value), expected="a number, or null"
)
NUMBERS_OR_NONE = Entry(
    is_valid=lambda value: value is None or _are_numbers(value), expected="numbers, or null"
)
NAMES = Entry(is_valid=_are_names, expected="job ids")
OUTCOME = {"values": NUMBERS_OR_NONE, "measures": NUMBERS_OR_NONE, "env_steps": WHOLE}
REFERENCE = "reference"
"""The role of a training of the unchanged job that trials which are trained again are compared with."""
OF_UNCHANGED_JOB = ("start", REFERENCE)
"""What trials are for that train the unchanged job. ``start``: all trials begin with its policy."""
RACED = "race"
"""The role of a trial that trains the point of another one with a further seed, whose value counts
in that of the other one."""
ROLES = (*OF_UNCHANGED_JOB, RACED)
CONTENTS: Mapping[str, Mapping[str, Entry]] = {
    "began": {"lanes": WHOLE},
    "asked": {
        "point": Entry(is_valid=lambda value: isinstance(value, dict), expected="an object"),
        "jobs": NAMES,
        "parent": TRIAL_OR_NONE,
        "reevaluates": TRIAL_OR_NONE,
        "role": Entry(
            is_valid=lambda value: value in ROLES, expected="a known role", may_be_missing=True
        ),
        "protocol": Entry(
            is_valid=lambda value: isinstance(value, dict),
            expected="an object",
            may_be_missing=True,
        ),
        "rejected": Entry(
            is_valid=_are_excesses,
            expected="a list with numbers, or null, for each point that was rejected",
            may_be_missing=True,
        ),
        "rejected_random": Entry(
            is_valid=_is_whole, expected="a whole number of at least 0", may_be_missing=True
        ),
        "rejected_why": Entry(
            is_valid=lambda value: isinstance(value, str), expected="text", may_be_missing=True
        ),
    },
    "reached": {"value": NUMBER_OR_NONE, "env_steps": WHOLE},
    "promoted": {"goal": WHOLE},
    "over": {
        **OUTCOME,
        "why": Entry(is_valid=lambda value: isinstance(value, str), expected="text"),
        "of_seeds": Entry(is_valid=_are_numbers, expected="numbers", may_be_missing=True),
        "failed": Entry(is_valid=_are_names, expected="job ids", may_be_missing=True),
    },
    "retried": {},
    "told": OUTCOME,
    "ended": {},
}
"""By kind, of events whose trial has a number: all but the first two and the last. Other keys are
left alone."""
WITHOUT_TRIAL = ("began", "asked", "ended")


def problem_of(kind: str, trial: Any, content: Any) -> str:
    """What is wrong with an event; empty if nothing is."""
    if kind not in CONTENTS:
        return "an unknown kind"
    if kind not in WITHOUT_TRIAL and not _is_whole(trial):
        return f"expected the number of a trial, not {trial!r:.40}"
    if not isinstance(content, dict):
        return f"expected an object, not {content!r:.40}"
    for key, entry in CONTENTS[kind].items():
        if key not in content:
            if not entry.may_be_missing:
                return f"{key}: missing"
        elif not entry.is_valid(content[key]):
            return f"{key}: expected {entry.expected}, not {content[key]!r:.40}"
    return ""
