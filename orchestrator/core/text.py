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


def cpu_text(cpus: Iterable[int]) -> str:
    """``[0, 1]`` → ``CPUs 0 and 1``, ``[0, 1, 2, 3, 8]`` → ``CPUs 0-3 and 8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    parts = [text for run in runs for text in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
    return f"CPU{'' if len(parts) == 1 and parts[0].isdecimal() else 's'} {joined(parts)}"
