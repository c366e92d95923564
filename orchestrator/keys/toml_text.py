"""Values as a user would write them in TOML, for messages."""

from __future__ import annotations

import datetime
from typing import Any

from orchestrator.keys.problems import place, quoted


def toml_text(value: Any) -> str:
    """``value`` as it is written; long texts are cut."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():  # Python refuses to spell out numbers of thousands of digits
            return f"{value:_}" if abs(value) < 10**18 else "a number of more than 18 digits"
        case str():
            return quoted(value if len(value) <= 60 else value[:60] + "…")
        case list():
            return f"[{', '.join(map(toml_text, value))}]"
        case dict():
            parts = ", ".join(f"{place(key)} = {toml_text(part)}" for key, part in value.items())
            return f"{{ {parts} }}" if parts else "{}"
        case datetime.date() | datetime.time():
            return f"the date or time {value}"
    return "nothing" if value is None else f"{value!r:.60}"


def toml_of(value: Any) -> str:
    """``value`` with what it is, as after "found": ``the text "abc"``, ``a table``."""
    text = toml_text(value)
    if isinstance(value, str):
        return f"the text {text}"
    if isinstance(value, (list, dict)):
        kind = "list" if isinstance(value, list) else "table"
        return f"the {kind} {text}" if len(text) <= 60 else f"a {kind}"
    return text
