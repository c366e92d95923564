"""The elements of an MjSpec that a key of the job file names: ``"geom.*_foot.friction"``."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable
from typing import Any

import mujoco

from orchestrator.core.text import listed
from orchestrator.core.worker_spec import SINGLE_KINDS

_PLURALS = {"body": "bodies", "equality": "equalities", "mesh": "meshes"}
"""Kind of element → the MjSpec's list of them, where that is not the kind with an s."""
MOST_LISTED = 40
"""Names in a message."""


class EditError(Exception):
    """The edits do not fit the robot; the message names the key and what would fit."""


def is_pattern(key: str) -> bool:
    """Return whether a name may match several elements."""
    return any(character in key for character in "*?[")


def matching_elements(spec: mujoco.MjSpec, table: str, key: str) -> list[tuple[int, Any]]:
    """Return the elements that a key ``KIND.NAME.ATTRIBUTE`` applies to, with their numbers among
    those of their kind.

    :param table: the job file's table that holds the key, named in messages.
    :raises EditError: there is no such element.
    """
    kind, _, rest = key.partition(".")
    name = rest.rpartition(".")[0]
    if kind in SINGLE_KINDS and not name:
        return [(0, getattr(spec, kind))]
    elements = list(enumerate(getattr(spec, _PLURALS.get(kind, f"{kind}s"), ())))
    names = [element.name for _, element in elements if element.name]
    # A name is stronger than a pattern.
    wanted = {name} if name in names else set(fnmatch.filter(names, name))
    if name == "*":
        wanted.add("")
    matches = [(number, element) for number, element in elements if element.name in wanted]
    if not matches:
        what = "matches" if is_pattern(name) else "is called"
        hint = suggestion(name, names)
        raise EditError(f"{table}.{key}: no {kind} of the robot {what} {name!r}{hint}")
    return matches


def suggestion(word: str, valid: Iterable[str]) -> str:
    """A hint with the most similar name, or with all names where none is similar."""
    names = list(dict.fromkeys(valid))
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    if not names:
        return "; there is none"
    return f"; there are {listed(names, MOST_LISTED)}"
