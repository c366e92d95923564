"""Counts, lists of names and durations as they stand in a sentence, and sentences that several modules use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

INSTALL_RAY = 'pip install -c constraints.txt ".[ray]" in a clone of this project'


def count(number: int, singular: str, plural: str | None = None) -> str:
    """``"1 job"``, ``"2 jobs"``, ``"1,200 jobs"``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def joined(names: Iterable[object]) -> str:
    """``"a"``, ``"a and b"``, ``"a, b and c"``; empty for none."""
    *first, last = [*map(str, names)] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def listed(names: Sequence[str], most: int) -> str:
    """``"a, b and 3 more"``: the first ``most`` of them by name, the others as a number."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def last_line(text: str, otherwise: str) -> str:
    """The last line of a program's output that is not blank; ``otherwise`` when there is none."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or [otherwise])[-1]


def number(value: float | None, form: str) -> str:
    """``value`` formatted, or a dash when it is None."""
    return "–" if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    """``3725`` → ``1:02:05``; a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
