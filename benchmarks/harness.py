"""Shared by the benchmarks: lines and their table, alternating sides, binding to one core, CPU
time, running an experiment."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.processes.environment_variables import worker_thread_settings
from orchestrator.machine import provenance, topology

if TYPE_CHECKING:
    import psutil

    import orchestrator
    from orchestrator.jobfile import Experiment

ROOT = Path(__file__).resolve().parents[1]
ORCHESTRATOR = (sys.executable, "-m", "orchestrator")
"""The program, as a command that runs in :data:`ROOT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    what: str
    measured: str
    target: str
    """Empty for a figure that is given for comparison only."""
    good: bool
    aim_met: bool | None = None
    """Whether the stricter aim is met; None where there is none."""
    values: Sequence[float] = ()
    """One value per repeat, where there are repeats."""

    @property
    def verdict(self) -> str:
        if not self.target:
            return ""
        if not self.good:
            return "**missed**"
        if self.aim_met is None:
            return "met"
        return "met, and the aim" if self.aim_met else "met, the aim missed"


def at_least(
    what: str, values: Sequence[float], least: float | None = None, aim: float | None = None
) -> Line:
    """The line of a figure whose median should be at least ``least``, and ideally ``aim``."""
    middle = statistics.median(values)
    target = "" if least is None else f"≥ {least:g}"
    if aim is not None:
        target += f", aim {aim:g}"
    return Line(
        what=what,
        measured=spread(values),
        target=target,
        good=least is None or middle >= least,
        aim_met=None if aim is None else middle >= aim,
        values=values,
    )


def at_most(what: str, values: Sequence[float], most: float | None = None) -> Line:
    """The line of a figure whose median should be at most ``most``."""
    good = most is None or statistics.median(values) <= most
    return Line(
        what=what,
        measured=spread(values),
        target="" if most is None else f"≤ {most:g}",
        good=good,
        values=values,
    )


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """Median and range."""
    if max(values) >= 100:
        form = ",.0f"
    middle = statistics.median(values)
    return f"{middle:{form}} ({min(values):{form}} – {max(values):{form}})"


def both_ways(number: int, *sides: Any) -> tuple[Any, ...]:
    """``sides``, in reverse order in every second repeat, so that a machine that becomes slower
    favours none."""
    return sides if number % 2 == 0 else sides[::-1]


def cpu_timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process over all threads, and the result of the call."""
    begun = time.process_time()
    result = call()
    return time.process_time() - begun, result


def cpu_share(processes: Sequence[psutil.Process], seconds: float) -> float:
    """The share of one core that these processes take together over the next ``seconds``."""

    def taken_s() -> float:
        return sum(
            times.user + times.system for times in (process.cpu_times() for process in processes)
        )

    before_s = taken_s()
    since = time.perf_counter()
    time.sleep(seconds)
    return (taken_s() - before_s) / (time.perf_counter() - since)


def keep_to_one_core() -> None:
    """Restrict this process and its children to one core and thread, before NumPy and torch are
    imported."""
    os.environ.update(worker_thread_settings(1))
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def run_quietly(experiment: Experiment, run_dir: Path) -> orchestrator.ExperimentResult:
    """Run, or resume, an experiment from this process, which prints nothing of it."""
    from orchestrator import api
    from orchestrator.client.options import RunOptions

    options = RunOptions(run_dir=run_dir)
    return api.finish(experiment, options, show=False, callbacks=None)


def print_table(
    description: str | None,
    parts: Mapping[str, Callable[[int], list[Line]]],
    options: argparse.ArgumentParser | None = None,
) -> None:
    """Measure the parts that the command line selects, and print their table.

    :param options: further ones, which the caller reads itself.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[] if options is None else [options],
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--only", default=",".join(parts), metavar="A,B", help=f"parts, of {','.join(parts)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - parts.keys():
        parser.error(f"--only {','.join(sorted(unknown))}: unknown; valid: {','.join(parts)}")
    if arguments.repeats < 1:
        parser.error(f"--repeats {arguments.repeats}: at least 1")
    here = topology.detect()
    print(
        f"{time.strftime('%Y-%m-%d')}, {len(here.cpus)} CPUs ({here.physical_cores} physical cores), "
        f"{here.memory_total_mib / 1024:.0f} GiB, Python {platform.python_version()}, "
        f"{arguments.repeats} repeats: median (least – most)\n"
    )
    print("| what | measured | target | |\n|---|---|---|---|", flush=True)
    record: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "cpus": len(here.cpus),
        "versions": provenance.versions(),
        "repeats": arguments.repeats,
        "parts": {},
    }
    for name in chosen:
        lines = parts[name](arguments.repeats)
        for line in lines:
            print(f"| {line.what} | {line.measured} | {line.target} | {line.verdict} |", flush=True)
        record["parts"][name] = [asdict(line) for line in lines]
        if arguments.json is not None:
            # After every part, so that an interrupted measurement keeps its figures.
            arguments.json.write_text(
                json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
