"""Numbers and names as a report shows them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.analysis.statistics import EstimateFacts

DASH = "–"


def number(value: float | None) -> str:
    """Return about four significant digits, with thousands separated; a dash if not known."""
    if value is None or not math.isfinite(value):
        return DASH
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if value == round(value):
        return f"{value:.0f}"
    if size >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def percent(share: float | None) -> str:
    return DASH if share is None or not math.isfinite(share) else f"{share:.0%}"


def interval(estimate: EstimateFacts | None, form: Callable[[float | None], str] = number) -> str:
    """Return ``1.93 (1.90 to 1.95)``; the value alone if there is no interval."""
    if not estimate or estimate.get("value") is None:
        return DASH
    text = form(estimate["value"])
    if estimate.get("low") is None or estimate.get("high") is None:
        return text
    return f"{text} ({form(estimate['low'])} to {form(estimate['high'])})"


def one_line(text: object, longest: int | None = None) -> str:
    """Return ``text`` on one line, without characters that XML forbids; if it is longer, without its
    middle.
    """
    kept = "".join(
        " " if character.isspace() else character
        for character in str(text)
        if character.isspace() or unicodedata.category(character) not in ("Cc", "Cs", "Cn", "Co")
    ).strip()
    if longest is None or len(kept) <= longest:
        return kept
    tail = (longest - 1) // 3
    return f"{kept[: longest - 1 - tail]}…{kept[len(kept) - tail :]}"


def sentence(text: str) -> str:
    """Return ``text`` with a capital and a full stop."""
    line = one_line(text)
    return line[:1].upper() + line[1:] + ("" if line.endswith(".") else ".")


def json_value(value: Any) -> Any:
    """Return ``value`` as strict JSON can hold it: numbers that are not finite become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(json_value, value))
    return value
