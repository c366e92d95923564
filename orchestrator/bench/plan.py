"""What is to be measured, and on what machine: ``bench/plan.json``; and what was measured: ``bench/cells.jsonl``."""

from __future__ import annotations

import json
import os
import platform
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis import samples
from orchestrator.bench.runner import Cell
from orchestrator.bench.workload import Work
from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import UsageError
from orchestrator.core.procfs import text_of
from orchestrator.machine import provenance
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Machine

FORMAT = 1
PROCESS_MIB = 400
"""The most that a process takes: one of a stock learner, as the default arms have it."""
SAME = (
    *("format", "jobs", "fingerprint", "robot_hash", "learner", "arms", "levels", "repeats", "seconds", "seed"),
    "machine",
)
"""What must not change when a benchmark is continued: figures of unlike things do not belong in one table."""


def levels(text: str, machine: Machine, cores: int) -> tuple[int, ...]:
    """``"1,2,4"`` → those; ``"auto"``: 1, 2, 4 … up to what the machine runs at once, then twice that.

    Those that its memory cannot hold are left out of ``"auto"``.

    :param cores: that each process takes.
    :raises UsageError: for anything else, and for levels that memory cannot hold.
    """
    held = most_held(machine)
    if text == "auto":
        most = max(1, machine.capacity // cores)
        doubling = [2**power for power in range(most.bit_length())]
        return tuple(level for level in sorted({*doubling, most, 2 * most}) if level <= held)
    try:
        numbers = {int(part) for part in text.split(",") if part.strip()}
    except ValueError:
        numbers = set()
    if not numbers or min(numbers) < 1:
        raise UsageError(f'--levels {text}: expected "auto" or numbers of processes such as 1,2,4')
    if max(numbers) > held:
        raise UsageError(
            f"--levels {text}: {max(numbers)} processes of {PROCESS_MIB} MiB do not fit into the"
            f" {machine.memory_total_mib:,} MiB of this machine; at most {held} do"
        )
    return tuple(sorted(numbers))


def most_held(machine: Machine) -> int:
    """Processes that its memory can hold."""
    return max(1, machine.memory_total_mib // PROCESS_MIB)


def has_slots(machine: Machine, level: int, cores: int) -> bool:
    """Whether the supervisor would ever run so many jobs at once here."""
    pool = SlotPool(machine, level)
    return all(pool.acquire(cores) is not None for _ in range(level))


def order(arms: Sequence[str], levels: Sequence[int], repeats: int, seed: int) -> list[Cell]:
    """All cells. Each repeat has every one of them once, in a random order of its own.

    So a machine that gets slower with time favours no arm, and what an interruption leaves is as even as it can be.
    """
    rng = random.Random(seed)
    cells = []
    for repeat in range(repeats):
        block = [Cell(arm=arm, level=level, repeat=repeat) for arm in arms for level in levels]
        rng.shuffle(block)
        cells += block
    return cells


def machine_facts(machine: Machine) -> dict[str, Any]:
    return {
        "cpu_model": _cpu_model(),
        "cpus": [cpu.index for cpu in machine.cpus],
        "physical_cores": machine.physical_cores,
        "numa_nodes": len({cpu.numa_node for cpu in machine.cpus}),
        "cpu_quota": machine.quota,
        "capacity": machine.capacity,
        "memory_total_mib": machine.memory_total_mib,
        "platform": platform.platform(),
    }


def _cpu_model() -> str:
    for line in (text_of(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def document(
    work: Work,
    machine: Machine,
    *,
    name: str,
    source: str,
    arms: Mapping[str, str],
    levels: Sequence[int],
    repeats: int,
    seconds: float,
    seed: int,
    notes: Sequence[str],
) -> dict[str, Any]:
    """``plan.json`` as it is before anything was measured.

    :param arms: with what they are.
    """
    spec = work.job.spec
    return {
        "format": FORMAT,
        "name": name,
        "source": source,
        "jobs": [work.job.job_id],
        "fingerprint": spec.fingerprint(),
        "robot_hash": work.robot_hash,
        "work": {
            "task": work.task or spec.env or spec.entry_point,
            "n_envs": spec.n_envs,
            "steps_an_iteration": work.steps_an_iteration,
            "updates_an_iteration": work.updates_an_iteration,
            "cores": work.job.resources.cores,
            "threads": work.job.resources.threads,
        },
        "learner": spec.learner,
        "arms": list(arms),
        "about_arms": dict(arms),
        "levels": list(levels),
        "repeats": repeats,
        "seconds": seconds,
        "seed": seed,
        "order": [[cell.arm, cell.level, cell.repeat] for cell in order([*arms], levels, repeats, seed)],
        "machine": machine_facts(machine),
        "versions": provenance.versions(),
        "notes": list(notes),
        "reference_s": None,
        "calibration": None,
    }


def begin(path: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """The plan to go by: the one at ``path`` where a benchmark is continued, or else ``wanted``, written there.

    :raises UsageError: when that one measures something else, naming the differences, or cannot be read.
    """
    if not path.exists():
        write(path, wanted)
        return wanted
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        changed = differences({name: found.get(name) for name in SAME}, {name: wanted[name] for name in SAME})
    except (ValueError, AttributeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); choose another --run-dir, or remove this one") from error
    if changed:
        raise UsageError(
            f"{path.parent.parent}: holds a benchmark with other settings: {'; '.join(changed)}."
            " Give the same ones to go on with it, or another --run-dir"
        )
    return dict(found)


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """``["seconds was 20, is 5", "machine.cpu_quota was null, is 2.0"]``."""
    said = []
    for name, value in wanted.items():
        before = found.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            said += [f"{name}.{one}" for one in differences(before, value)]
        elif before != value:
            said.append(f"{name} was {_short(before)}, is {_short(value)}")
    return said


def write(path: Path, plan: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(plan, indent=1) + "\n")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(slots=True)
class Cells:
    """``cells.jsonl``: one finished cell a line, each on the disk before the next one begins."""

    path: Path

    def read(self) -> list[Mapping[str, Any]]:
        """Every whole line; a torn one is left out, and its cell is taken again."""
        return samples.records(self.path)[0]

    def append(self, record: Mapping[str, Any]) -> None:
        self._mend()
        with self.path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _mend(self) -> None:
        """Cut off a line that was torn by a sudden end."""
        if self.path.exists():
            content = self.path.read_bytes()
            if not content.endswith(b"\n") and content:
                os.truncate(self.path, content.rfind(b"\n") + 1)

    def times_disturbed(self, cell: Cell) -> int:
        return sum(record["status"] == "disturbed" and _cell(record) == cell for record in self.read())

    def missing(self, wanted: Sequence[Cell], retakes: int) -> list[Cell]:
        """What is still to be measured, in order: failed cells too, and disturbed ones up to ``retakes`` times."""
        records = self.read()
        done = {_cell(record) for record in records if record["status"] in ("ok", "cut")}
        disturbed = Counter(_cell(record) for record in records if record["status"] == "disturbed")
        done |= {cell for cell, times in disturbed.items() if times > retakes}
        return [cell for cell in wanted if cell not in done]


def _cell(record: Mapping[str, Any]) -> Cell:
    return Cell(arm=record["arm"], level=record["level"], repeat=record["repeat"])
