"""Parses sizes and durations: ``"2 GiB"``, ``"1h30min"``."""

from __future__ import annotations

import math
import re


class ExpectedError(ValueError):
    """States what a key accepts; the message for the user adds the value that was found."""


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\Z")
_SIZE_UNITS = {
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
}

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*[A-Za-z]+\s*)+\Z")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
DURATION = 'a duration above 0 such as "2h", "10min", "90s" or "1h30min", or a number of seconds'
_DURATION_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def parse_size(text: str) -> int:
    """``"2 GiB"`` → 2048: whole mebibytes, rounded up. ``GB`` is 10⁹ bytes, ``GiB`` 2³⁰; case does not matter.

    :raises ExpectedError: with the accepted forms.
    """
    expected = 'expected a size such as "2 GiB", "512 MiB" or "1.5 GB"'
    match = _SIZE.match(text.strip())
    if match is None:
        raise ExpectedError(expected)
    if match[2].lower() not in _SIZE_UNITS:
        raise ExpectedError(f'unknown unit "{match[2]}": {expected}')
    size = float(match[1]) * _SIZE_UNITS[match[2].lower()]
    if not 0 < size < 2**60:
        raise ExpectedError(f"{expected}, above 0 and below 1 EiB")
    return math.ceil(size / 2**20)


def parse_duration(text: str) -> float:
    """``"1h30min"`` → 5400.0 seconds.

    :raises ExpectedError: with the accepted forms.
    """
    expected = f"expected {DURATION}"
    text = text.strip()
    if _DURATION.match(text) is None:
        raise ExpectedError(expected)
    seconds = 0.0
    for number, unit in _DURATION_PART.findall(text):
        if unit not in _DURATION_UNITS:
            raise ExpectedError(f'unknown unit "{unit}" (known: d, h, min, s): {expected}')
        seconds += float(number) * _DURATION_UNITS[unit]
    if not 0 < seconds < math.inf:
        raise ExpectedError(expected)
    return seconds
