"""Numbers and names as a report shows them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from orchestrator.analysis.statistics import EstimateFacts

DASH = "–"


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether all are finite numbers."""
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )


def number(value: float | None) -> str:
    """About four significant digits, thousands separated; a dash for None and for what is not
    finite.
    """
    if value is None or not math.isfinite(value):
        return DASH
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    if value == round(value):
        return f"{value:.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    if size >= 0.1:
        return f"{value:.3f}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    return DASH if share is None or not math.isfinite(share) else f"{share:.0%}"


def interval(estimate: EstimateFacts | None, form: Callable[[float | None], str] = number) -> str:
    """``1.93 (1.90 to 1.95)``; without an interval the value alone."""
    if not estimate or estimate.get("value") is None:
        return DASH
    text = form(estimate["value"])
    if estimate.get("low") is None or estimate.get("high") is None:
        return text
    return f"{text} ({form(estimate['low'])} to {form(estimate['high'])})"


def one_line(text: object, longest: int | None = None) -> str:
    """``text`` on one line, without characters that XML forbids; a longer one without its
    middle.
    """
    kept = "".join(map(_allowed, str(text))).strip()
    if longest is None or len(kept) <= longest:
        return kept
    tail = (longest - 1) // 3
    return f"{kept[: longest - 1 - tail]}…{kept[len(kept) - tail :]}"


def _allowed(character: str) -> str:
    """A blank for every kind of space; nothing for a control, surrogate, unassigned or private
    character.
    """
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in ("Cc", "Cs", "Cn", "Co") else character


def sentence(text: str) -> str:
    """``text`` with a capital and a full stop."""
    line = one_line(text)
    return line[:1].upper() + line[1:] + ("" if line.endswith(".") else ".")


def json_value(value: Any) -> Any:
    """``value`` as strict JSON can hold it: numbers that are not finite become None, keys become
    strings.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(json_value, value))
    return value


def signed(value: float | None) -> str:
    """With two decimals and its sign, as of a correlation; a dash for None."""
    return DASH if value is None else f"{value:+.2f}".replace("-", "−")
