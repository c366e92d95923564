"""What one machine can show about scaling: one command that takes minutes, resumes, and needs no
network.

    python -m benchmarks.machine --out DIR [--minutes 8] [--only weak,ant]

Each section is an existing command with fixed settings, run at most once a call, in order of
importance. The next call with the same DIR measures what is missing: sections for which no time was
left, that were stopped, or that failed. DIR/machine.json holds all figures and DIR/machine.md their
tables; ``python -m orchestrator compare A/machine.json B/machine.json`` compares two machines. Use
an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine_figures as figures
from benchmarks.harness import ROOT, spread
from benchmarks.machine_figures import Content
from orchestrator.analysis.run_reader import read_json_object
from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.processes.child_process import end_group
from orchestrator.core.text import last_line
from orchestrator.features.bench import plan
from orchestrator.machine import provenance, topology
from orchestrator.machine.topology import Machine

FORMAT = 1
LEAST_S = 30.0
"""A section that can be continued is begun if so much time is left."""
PATIENCE = 2.0
"""A section is stopped after so many times its expected duration, so that the others get their
turn."""
STOP_S = 15.0
"""Time for a section to stop by itself."""
END_S = 20.0
"""Kept for stopping the last section and for the files."""


class Section(NamedTuple):
    title: str
    command: str
    """What follows ``python -m`` in the repository."""
    about_s: Callable[[int], float]
    """Expected seconds for a number of levels."""
    read: Callable[[Path], Content]
    """Reads the results in the folder of all of them. :raises UsageError: there are none."""
    continues: bool = True
    """Whether the command can be stopped, and continued by the next call."""


BENCH = "orchestrator bench --retakes 1 --run-dir {out}"
WEAK = "--arms pinned --levels {levels} --repeats 3 --seconds 3"
EXPERIMENT = "benchmarks.experiment --repeats 3"
SECTIONS: Mapping[str, Section] = {
    "weak": Section(
        "Weak scaling of robots.toml: copies of the quadruped",
        f"{BENCH}/quadruped jobs/robots.toml {WEAK} --no-strong",
        lambda count: 10 + 20 * count,
        partial(figures.of_scaling, "quadruped", "quadruped"),
    ),
    "supervisor": Section(
        "The supervisor with all slots busy",
        f"{EXPERIMENT} --only supervisor --json {{out}}/supervisor.json",
        lambda _: 50,
        partial(figures.of_experiment, "supervisor", figures.COST),
        continues=False,
    ),
    "ant": Section(
        "Weak scaling of gymnasium's Ant-v5",
        f"{BENCH}/ant benchmarks/ant.toml {WEAK} --no-strong",
        lambda count: 10 + 25 * count,
        partial(figures.of_scaling, "Ant-v5", "ant"),
    ),
    "strong": Section(
        "Strong scaling of the main job, robots.toml",
        f"{BENCH}/quadruped jobs/robots.toml {WEAK} --strong-seconds 30",
        lambda count: 90 + 5 * count,
        partial(figures.of_makespans, "quadruped"),
    ),
    "instant": Section(
        "1,000 instant jobs",
        f"{EXPERIMENT} --only instant --json {{out}}/instant.json",
        lambda _: 20,
        partial(figures.of_experiment, "instant", "measured"),
        continues=False,
    ),
    "unpinned": Section(
        "The libraries' default threads, and multiprocessing.Pool",
        f"{BENCH}/unpinned jobs/robots.toml --arms pinned,default,pool-fork,pool-spawn --levels {{few}} --repeats 1"
        " --seconds 2 --no-strong",
        lambda count: 10 + 70 * min(2, max(1, count - 1)),
        partial(figures.of_scaling, "quadruped for 2 s", "unpinned"),
    ),
    "ranks": Section(
        "One job over several processes",
        f"{BENCH}/ranks jobs/wide.toml --ranks 1,2,4,8 --repeats 1 --seconds 2",
        lambda count: 20 + 35 * min(3, count - 1),
        partial(figures.of_ranks, "ranks"),
    ),
}
"""By importance."""
NOT_MEASURED: Mapping[str, Any] = {
    "state": "not measured",
    "message": "",
    "seconds": 0.0,
    **Content()._asdict(),
}


def levels(machine: Machine) -> list[int]:
    """1, 2, 4 … processes up to one per core; where cores have SMT siblings, one per CPU as
    well."""
    numbers = {2**power for power in range(machine.capacity.bit_length())} | {
        machine.capacity,
        len(machine.cpus),
    }
    most = plan.max_processes(machine)
    return [
        one
        for one in sorted(numbers)
        if one == 1 or (one <= most and plan.has_slots(machine, one, 1))
    ]


def command(section: Section, machine: Machine, out: Path) -> list[str]:
    numbers = levels(machine)
    few = [level for level in numbers if level in (2, 4)] or numbers[:1]
    names = {"out": str(out), "levels": ",".join(map(str, numbers)), "few": ",".join(map(str, few))}
    return [sys.executable, "-m", *(part.format(**names) for part in section.command.split())]


def time_limit(section: Section, machine: Machine, left_s: float) -> float | None:
    """Seconds that the section may take; None where too little time is left to begin it."""
    about_s = section.about_s(len(levels(machine)))
    least_s = min(about_s, LEAST_S) if section.continues else about_s
    return None if left_s < least_s else min(left_s, PATIENCE * about_s)


def run(arguments: Sequence[str], log: Path, limit_s: float) -> tuple[str, str]:
    """Run a command in a session of its own. Returns the state of its section, and the reason.

    :param log: gets its standard error.
    """
    nothing = subprocess.DEVNULL
    with log.open("wb") as errors:
        popen = subprocess.Popen(
            arguments,
            cwd=ROOT,
            stdin=nothing,
            stdout=nothing,
            stderr=errors,
            start_new_session=True,
        )
        try:
            popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            return "stopped", "its time was over; the next call continues it"
        finally:
            stop(popen)
    if popen.returncode == 0:
        return "complete", ""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "failed", f"{last_line(text, f'exit code {popen.returncode}')} ({log.name} has the rest)"


def stop(popen: subprocess.Popen[bytes]) -> None:
    """Stop a command as Ctrl-C does, which keeps what is measured; kill what does not stop."""
    if popen.poll() is None:
        os.killpg(popen.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(STOP_S)
    end_group(popen)


def measure(name: str, machine: Machine, out: Path, limit_s: float) -> dict[str, Any]:
    """Run a section. Returns its entry in ``machine.json``."""
    begun = time.monotonic()
    section = SECTIONS[name]
    content = Content()
    state, message = run(command(section, machine, out), out / f"{name}.log", limit_s)
    try:
        content = section.read(out)
    except (UsageError, OSError, LookupError, TypeError, ValueError) as error:
        if state == "complete":
            state = "failed"
            message = f"its results cannot be read: {error}"
    return {
        "state": state,
        "message": message,
        "seconds": time.monotonic() - begun,
        **content._asdict(),
    }


def measure_missing(
    document: dict[str, Any], chosen: Collection[str], machine: Machine, out: Path, deadline: float
) -> None:
    """Measure the chosen sections that are not complete, and write both files after each."""
    entries = document["sections"]
    for name, section in SECTIONS.items():
        entry = entries.get(name, NOT_MEASURED)
        limit_s = time_limit(section, machine, deadline - time.monotonic())
        if name in chosen and entry["state"] != "complete":
            if limit_s is not None:
                print(f"{name}: about {section.about_s(len(levels(machine))):.0f} s", flush=True)
                new = measure(name, machine, out, limit_s)
                # What this call has not measured stays as in the call before.
                kept = {key: entry[key] for key in Content._fields if not new[key]}
                entry = {**new, **kept, "seconds": entry["seconds"] + new["seconds"]}
            elif entry["state"] == "not measured":
                entry = {**entry, "message": "no time left"}
            print(f"{name}: {in_words(entry)}", flush=True)
        entries[name] = entry
        write(out, document)


def begin(path: Path, machine: Machine) -> dict[str, Any]:
    """The file of an earlier call at ``path``, or else a new one.

    :raises UsageError: the file is of another machine or other versions, or cannot be read.
    """
    versions = dict(provenance.installed_versions())
    here = {"format": FORMAT, "machine": plan.machine_facts(machine), "versions": versions}
    if not path.exists():
        return {**here, "less_is_better": figures.LESS_IS_BETTER, "begun": now(), "sections": {}}
    document = read_json_object(path)
    if document is None:
        raise UsageError(f"{path}: cannot be read; remove it, or choose another --out")
    if changed := plan.differences(document, here):
        raise UsageError(
            f"{path}: holds figures of another machine or other versions: {'; '.join(changed)}. Choose another --out"
        )
    return document


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def write(out: Path, document: dict[str, Any]) -> None:
    document["updated"] = now()
    write_whole(out / "machine.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    write_whole(out / "machine.md", markdown(document))


def in_words(entry: Mapping[str, Any]) -> str:
    """``"stopped (84 s): its time was over; the next call continues it."``"""
    seconds = f" ({entry['seconds']:.0f} s)" if entry["seconds"] else ""
    return f"{entry['state']}{seconds}{': ' if entry['message'] else ''}{entry['message'].rstrip('.')}."


def markdown(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    versions = document["versions"]
    cpus = len(machine["cpus"])
    cores = machine["physical_cores"]
    quota = machine["cpu_quota"]
    facts = {
        "measured": f"{document['begun']} – {document['updated']}",
        "processor": machine["cpu_model"],
        "physical cores, NUMA nodes": f"{cores}, {machine['numa_nodes']}",
        "SMT": f"{cpus} CPUs on these cores"
        if cpus > cores
        else "none: one CPU per core, so nothing to compare",
        "CPU quota of the cgroup": "none" if quota is None else f"{quota:g} CPUs",
        "memory": f"{machine['memory_total_mib'] / 1024:.0f} GiB",
        "system": machine["platform"],
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }
    parts = [
        "# One machine",
        "",
        "| what | |",
        "|---|---|",
        *(f"| {name} | {fact} |" for name, fact in facts.items()),
    ]
    parts += ["", "Figures are medians (least – most) of the repeats; ≤ marks upper bounds.", ""]
    for name, section in SECTIONS.items():
        entry = document["sections"].get(name, NOT_MEASURED)
        state = in_words(entry)
        parts += [f"## {section.title}", "", f"{state[0].upper()}{state[1:]}", ""]
        parts += table(entry["cases"], entry["bounds"])
        parts += [*(f"- {note}" for note in entry["notes"]), ""] if entry["notes"] else []
    return "\n".join(parts)


def table(cases: Mapping[str, Mapping[str, Sequence[float]]], bounds: Collection[str]) -> list[str]:
    """A row per case and a column per figure; nothing without cases."""
    fullest_first = sorted(cases.values(), key=len, reverse=True)
    columns = list(dict.fromkeys(figure for values in fullest_first for figure in values))
    lines = [
        [case, *(cell(values.get(column, ()), is_bound=case in bounds) for column in columns)]
        for case, values in cases.items()
    ]
    rows = [["", *columns], ["---"] * (len(columns) + 1), *lines]
    return [*(f"| {' | '.join(row)} |" for row in rows), ""] if cases else []


def cell(values: Sequence[float], *, is_bound: bool) -> str:
    if not values:
        return ""
    text = spread(values)
    return f"{'≤ ' if is_bound else ''}{text if len(values) > 1 else text.partition(' (')[0] + ' (once)'}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of all results"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="time of this call (8)")
    parser.add_argument(
        "--only",
        default=",".join(SECTIONS),
        metavar="A,B",
        help=f"sections, of {','.join(SECTIONS)}",
    )
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes - END_S
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - SECTIONS.keys():
        parser.error(f"--only {','.join(sorted(unknown))}: unknown; valid: {','.join(SECTIONS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = arguments.out.absolute()
    machine = topology.detect()
    try:
        document = begin(out / "machine.json", machine)
        out.mkdir(parents=True, exist_ok=True)
        measure_missing(document, chosen, machine, out, deadline)
    except (UsageError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("Stopped. What is measured is kept. Run the same command again to continue.")
        return 130
    states = {name: entry["state"] for name, entry in document["sections"].items()}
    if missing := [name for name, state in states.items() if state != "complete"]:
        print(f"Missing: {', '.join(missing)}. Run the same command again to measure them.")
    print(f"Written: {out / 'machine.md'} and {out / 'machine.json'}")
    return 1 if "failed" in states.values() else 0


if __name__ == "__main__":
    sys.exit(main())
