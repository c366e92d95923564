"""Text as it is stored and shown; counts, lists of names and durations as they stand in a
sentence.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterable, Sequence

LONGEST_LINE = 2_000
LONGEST_TEXT = 1 << 14
"""Characters that :func:`shortened` keeps of a line, and of all."""
MOST_NAMES = 10
"""Of jobs and the like, in a sentence."""
_LONG_LINE = re.compile(rf"([^\n]{{{LONGEST_LINE}}})[^\n]+")
_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (escape sequences begin with one), separators of lines, marks that turn the
direction of writing, and lone surrogates."""


def is_installed(package: str) -> bool:
    """Whether it can be imported. A folder of its name in the current directory has no origin, and
    is no package.
    """
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def install_extra(extra: str) -> str:
    """How to install an extra."""
    of_wheel = f'pip install "FILE.whl[{extra}]" with its wheel'
    return f'pip install -c constraints.txt ".[{extra}]" in a clone of this project, or {of_wheel}'


def storable(text: str) -> str:
    """``text`` that UTF-8 can hold: lone surrogates, which bytes of a file name may have become, as
    ``\\udcfc``.

    In JSON such an escape is read as what it was.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str) -> str:
    """``text`` to be kept as a message, storable: long lines cut, and of a long text its beginning
    and its end.
    """
    first_cut = _cut(text)  # as it may be huge
    return _cut(storable(first_cut))  # once more, as escapes are longer


def _cut(text: str) -> str:
    if len(text) <= LONGEST_LINE:
        return text
    text = _LONG_LINE.sub(r"\1…", text)
    half = LONGEST_TEXT // 2 - 2
    return text if len(text) <= LONGEST_TEXT else f"{text[:half]}\n…\n{text[-half:]}"


def plain(text: str, keep: str = "") -> str:
    """``text`` for a terminal: characters that would control it, except those in ``keep``, are
    visible as ``\\u001b``.

    JSON stays the same JSON.
    """
    if text.isprintable():
        return text
    return _HIDDEN.sub(
        lambda match: match[0] if match[0] in keep else f"\\u{ord(match[0]):04x}", text
    )


def count(number: float, singular: str, plural: str | None = None) -> str:
    """``"1 job"``, ``"2 jobs"``, ``"1,200 jobs"``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def joined(names: Iterable[object]) -> str:
    """``"a"``, ``"a and b"``, ``"a, b and c"``; empty for none."""
    return _enumerated(names, "and")


def alternatives(names: Iterable[object]) -> str:
    """``"a"``, ``"a or b"``, ``"a, b or c"``; empty for none."""
    return _enumerated(names, "or")


def _enumerated(names: Iterable[object], conjunction: str) -> str:
    """``names`` with commas between them, and ``conjunction`` before the last one."""
    texts = list(map(str, names))
    if len(texts) < 2:
        return "".join(texts)
    *first, last = texts
    return f"{', '.join(first)} {conjunction} {last}"


def listed(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """``"a, b and 3 more"``: the first ``most`` of them by name, the others as a number."""
    first = ", ".join(names[:most])
    if len(names) <= most:
        return first
    return f"{first} and {len(names) - most:,} more"


def last_line(text: str, otherwise: str) -> str:
    """The last line of a program's output that is not blank, shortened; ``otherwise`` when there is
    none.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shortened(lines[-1] if lines else otherwise)


def number_or_dash(value: float | None, form: str) -> str:
    """``value`` formatted, or a dash when it is None."""
    return "–" if value is None else format(value, form)


def decimal(value: float, places: int) -> str:
    """``value`` with so many decimal places; a small one with three digits that say something."""
    return f"{value:.3g}" if 0 < abs(value) < 1 else f"{value:,.{places}f}"


def duration(seconds: float | None) -> str:
    """``3725`` → ``1:02:05``; a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rough_duration(seconds: float) -> str:
    """``7.4`` → ``7 s``, ``960`` → ``16 min``, ``9000`` → ``2.5 h``: for estimates."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def finite_number(text: str) -> float:
    """Return the number that ``text`` is. :raises ValueError: it is none, or not finite."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, found {text.strip()!r}")
    return number


def cpu_text(cpus: Iterable[int]) -> str:
    """``[0, 1]`` → ``CPUs 0 and 1``, ``[0, 1, 2, 3, 8]`` → ``CPUs 0-3 and 8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    parts: list[str] = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{run[0]}-{run[-1]}")
        else:
            parts += map(str, run)
    is_one = len(parts) == 1 and parts[0].isdecimal()
    return f"{'CPU' if is_one else 'CPUs'} {joined(parts)}"
