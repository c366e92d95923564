"""Problems of a job file, each with its place; places and suggestions as text."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection

from orchestrator.core.errors import Problem
from orchestrator.core.text import LONGEST_LINE

LONGEST_NUMBER = 20
"""Digits of a number in a key that decide its place; Python converts no number of thousands of
digits."""


class Problems:
    """The problems found so far in one job file, each once."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}

    def add(self, where: str, message: str) -> None:
        """Note a problem; the parameters, of which long ones are cut, are fields of
        :class:`.Problem`.
        """
        self._problems[Problem(where=_cut(where), message=_cut(message))] = None

    def __bool__(self) -> bool:
        return bool(self._problems)

    def in_order(self) -> list[Problem]:
        """The problems sorted by place, ``jobs[2]`` before ``jobs[10]``."""

        def order(problem: Problem) -> list[int | str]:
            # Texts and numbers in turn, so that each is compared with its like.
            parts = re.split(r"([0-9]+)", problem.where)
            return [
                int(part[:LONGEST_NUMBER]) if index % 2 else part
                for index, part in enumerate(parts)
            ]

        return sorted(self._problems, key=order)


def _cut(text: str) -> str:
    """The beginning and the end of a text that repeats a long value of the user."""
    half = LONGEST_LINE // 2
    return text if len(text) <= LONGEST_LINE else f"{text[:half]}…{text[-half:]}"


def place(*parts: int | str) -> str:
    """``("jobs", 3, "ppo", "n_steps")`` → ``jobs[3].ppo.n_steps``."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        is_bare = re.fullmatch(r"[\w-]+", part, re.ASCII) is not None
        dot = "." if text else ""
        text += dot + (part if is_bare else quoted(part))
    return text


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def suggestion(word: str, known: Collection[str]) -> str | None:
    """The known word most similar to ``word``; None when none is similar."""
    plain_word = _plain(word)
    by_plain = {_plain(name): name for name in known}
    similar = difflib.get_close_matches(plain_word, by_plain, n=1, cutoff=0.7)
    letters = sorted(plain_word)
    in_another_order = [name for name in by_plain if sorted(name) == letters]
    longer = [name for name in by_plain if len(plain_word) > 2 and name.startswith(plain_word)]
    close = [*similar, *in_another_order, *longer]
    return by_plain[close[0]] if close else None


def _plain(name: str) -> str:
    """``name`` without what people mix up."""
    return name.lower().replace("-", "_")
