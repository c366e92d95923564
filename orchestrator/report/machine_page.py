"""What machine it was, and with what versions: the last section of every report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.report.document import Cell, Column, Section, Table, Text
from orchestrator.report.number_format import number, plain

NAMES = {
    "host": "host",
    "platform": "system",
    "cpu_model": "CPU",
    "physical_cores": "physical cores",
    "cpus": "CPUs",
    "capacity": "cores that trainings can have",
    "cpu_quota": "CPU quota of the cgroup",
    "memory_total_mib": "memory (MiB)",
    "gpus": "GPUs",
    "jobs_at_once": "jobs at once",
    "executor": "executor",
    "ray_address": "Ray cluster",
    "nodes": "nodes",
    "versions": "versions",
    "git": "revision",
    "thread_variables": "thread variables",
    "command": "command",
    "started_at": "started",
}


def machine_section(facts: Mapping[str, Any]) -> Section:
    """:param facts: an entry of ``provenance.json``, or the machine facts of a benchmark."""
    rows = [
        [Cell(text=NAMES.get(key, plain(key).replace("_", " "))), Cell(text=_shown(key, facts[key]))]
        for key in [*(key for key in NAMES if key in facts), *(key for key in facts if key not in NAMES)]
    ]
    if not rows:
        return Section(title="Machine", parts=[Text(sentences=["No record of the machine was left."])])
    columns = [Column(name="what"), Column(name="value")]
    caption = "The machine and the versions that the figures belong to."
    return Section(title="Machine", parts=[Table(columns=columns, rows=rows, caption=caption)])


def _shown(key: str, value: Any) -> str:
    if key == "cpus" and isinstance(value, list):
        return str(len(value))
    if key == "nodes" and isinstance(value, list):
        return plain(", ".join(f"{node['name']} ({node['cores']} cores)" for node in value), 400)
    if key == "git" and isinstance(value, Mapping) and value.get("commit"):
        return plain(value["commit"]) + (" with changes that are not committed" if value.get("dirty") else "")
    if key == "command" and isinstance(value, list):
        return plain(" ".join(map(str, value[1:])), 300)
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, Mapping):
        known = {name: part for name, part in value.items() if part is not None}
        return plain(", ".join(f"{name} {part}" for name, part in known.items()) or "none set", 400)
    if isinstance(value, list):
        return plain(", ".join(map(str, value)), 400)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(float(value)) if isinstance(value, int | float) else plain(value, 400)
