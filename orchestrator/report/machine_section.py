"""The machine and the versions: the last section of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.analysis.run_reader import finite
from orchestrator.report.document import Columns, Section, Text, table
from orchestrator.report.number_format import number, one_line

LONGEST = 400


def machine_section(facts: Mapping[str, Any]) -> Section:
    """Return a table of the machine and its software.

    :param facts: an entry of ``provenance.json``, or the machine facts of a benchmark.
    """
    if not facts:
        none = Text(sentences=["There is no record of the machine."])
        return Section(title="Machine", parts=[none])
    columns: Columns[str] = {
        "property": lambda key: one_line(key).replace("_", " "),
        "value": lambda key: one_line(_value(key, facts[key]), LONGEST),
    }
    caption = "The machine and the versions with which the results were obtained."
    return Section(title="Machine", parts=[table(facts, columns, caption=caption, text=columns)])


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(finite(value))
    if key == "cpus" and isinstance(value, list):
        return str(len(value))
    if key == "git" and isinstance(value, dict) and value.get("commit"):
        changed = " with uncommitted changes" if value.get("dirty") else ""
        return f"{value['commit']}{changed}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items() if part is not None)
    if isinstance(value, list):
        separator = " " if key == "command" else ", "
        return separator.join(_value("", one) for one in value) or "none"
    return "none" if value is None else str(value)
