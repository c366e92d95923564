"""Problems of a job file, each with its place; places and suggestions as text."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

from orchestrator.core.errors import Problem
from orchestrator.core.text import LONGEST_LINE, plain

LONGEST_NUMBER = 20
"""Digits of a number by which places are sorted: Python converts no number of thousands of digits."""


class Problems:
    """The problems found so far in one job file, each once."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}

    def add(self, where: str, message: str) -> None:
        """Note a problem on one line; long texts are cut. The parameters are those of
        :class:`.Problem`.
        """
        problem = Problem(where=_cut(plain(where)), message=_cut(plain(message)))
        self._problems[problem] = None

    def __bool__(self) -> bool:
        return bool(self._problems)

    def in_order(self) -> list[Problem]:
        """Return the problems sorted by place, ``jobs[2]`` before ``jobs[10]``."""
        return sorted(self._problems, key=_order)


def _order(problem: Problem) -> list[int | str]:
    """Return texts and numbers in turn, so that each is compared with its like."""
    parts = re.split(r"([0-9]+)", problem.where)
    return [int(part[:LONGEST_NUMBER]) if index % 2 else part for index, part in enumerate(parts)]


def _cut(text: str) -> str:
    """Return the beginning and the end of a text that repeats a long value of the user."""
    half = LONGEST_LINE // 2
    return text if len(text) <= LONGEST_LINE else f"{text[:half]}…{text[-half:]}"


def place(*parts: int | str) -> str:
    """Return ``jobs[3].ppo.n_steps`` for ``("jobs", 3, "ppo", "n_steps")``."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            is_bare = re.fullmatch(r"[\w-]+", part, re.ASCII)
            text += ("." if text else "") + (part if is_bare else quoted(part))
    return text


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to ``word`` but for case, - and _, or None if none is."""
    by_plain = {name.lower().replace("-", "_"): name for name in known}
    similar = difflib.get_close_matches(word.lower().replace("-", "_"), by_plain, n=1)
    return by_plain[similar[0]] if similar else None
