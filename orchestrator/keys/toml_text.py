"""Values as a user writes them in TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
LONGEST_SHOWN = 100
"""Characters of a value in a message."""


def toml(value: Any) -> str:
    """Return a bool, number, text, list or table as TOML; tables are inline."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():  # Python refuses to spell out numbers of thousands of digits
            return f"{value:_}" if abs(value) < 10**18 else "a number of more than 18 digits"
        case str():
            # Every escape of JSON is one of TOML, which allows DEL only as one.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case Mapping():
            entries = ", ".join(f"{_key(str(key))} = {toml(part)}" for key, part in value.items())
            return f"{{ {entries} }}" if entries else "{}"
        case None:
            return "nothing"
    return str(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.match(name) else toml(name)


def shown(value: Any) -> str:
    """Return ``value`` as TOML for a message; long ones are cut."""
    text = toml(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
