"""Numbers and lists of names, as they stand in a sentence, and what several places say."""

from __future__ import annotations

from collections.abc import Sequence

INSTALL_RAY = 'pip install -c constraints.txt ".[ray]" in a clone of this project'


def count(number: int, singular: str, plural: str | None = None) -> str:
    """``"1 job"``, ``"2 jobs"``."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """``"a, b and 3 more"``: so many of them by name, the others as a number."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def last_line(text: str, otherwise: str) -> str:
    """Of what another program has said, where that is long, its last line; ``otherwise`` where it says nothing."""
    return ([line.strip() for line in text.splitlines() if line.strip()] or [otherwise])[-1]


def number(value: float | None, form: str) -> str:
    """``value`` formatted, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def duration(seconds: float | None) -> str:
    """``3725`` → ``1:02:05``."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
