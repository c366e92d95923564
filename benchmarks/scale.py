"""The capacity of the driver: experiments on simulated clusters, streams from many nodes, and
pending jobs.

Supervisor, queue, slots, recorder, ledger and run directory are the real ones; nodes, workers and
the clock are simulated, and only the part ``ray`` needs Ray. Figures are CPU time of one core
unless they say otherwise.

    python -m benchmarks.scale                                     # everything: 10 to 10,000 nodes
    python -m benchmarks.scale --only clusters --nodes 1000 --worse 20

Each measurement runs in a process of its own, so that its memory can be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import ray_streams
from benchmarks.harness import ROOT
from benchmarks.node_streams import Load, measure
from benchmarks.simulated_cluster import Rates
from benchmarks.simulated_experiment import CORES, Outcome, resident_mib, simulate
from orchestrator.supervisor.events import Reporter
from orchestrator.terminal.run_view import LiveReporter

JOBS_A_NODE = 20
MOST_JOBS = 100_000
STREAMING_JOBS_A_NODE = 16
STREAMED_S = 60.0
"""Every job writes one checkpoint within this time."""
PENDING = (1_000, 10_000, 100_000)


# -- measurements, each in a process of its own


def cluster(root: Path, nodes: int, worse: float) -> dict[str, Any]:
    with _screen() as reporter:
        outcome = simulate(
            root,
            nodes,
            min(MOST_JOBS, JOBS_A_NODE * nodes),
            rates=Rates().worse(worse),
            reporter=reporter,
        )
    return asdict(outcome)


@contextlib.contextmanager
def _screen() -> Iterator[Reporter]:
    """The live table on a terminal that is discarded."""
    from rich.console import Console

    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        reporter = LiveReporter(Console(file=nowhere, force_terminal=True, width=160, height=50))
        try:
            yield reporter
        finally:
            reporter.close()


def stream(root: Path, nodes: int, report_every_s: float) -> dict[str, Any]:
    load = measure(
        root,
        nodes,
        jobs_a_node=STREAMING_JOBS_A_NODE,
        report_every_s=report_every_s,
        seconds=STREAMED_S,
    )
    return asdict(load)


def pending(root: Path, count: int) -> dict[str, Any]:
    """Resident memory of a driver while ``count`` jobs wait and one runs, with Ray loaded where it
    is installed."""
    from benchmarks.pending_jobs import supervise

    with contextlib.suppress(ImportError):
        importlib.import_module("ray")  # for the memory that it takes
    before = resident_mib()
    return {"jobs": count, "before_mib": before, "mib": supervise(root, count)}


def ray(_: Path, streams: int) -> dict[str, Any]:
    return ray_streams.measure(streams)


MEASURED: Mapping[str, Callable[..., dict[str, Any]]] = {
    "clusters": cluster,
    "streams": stream,
    "ray": ray,
    "pending": pending,
}


def in_a_process(what: str, *numbers: float, folder: Path | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", "--one", what, *map(str, numbers)]
    if folder is not None:
        command += ["--folder", str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


# -- tables


def cluster_row(measured: Mapping[str, Any]) -> Sequence[str]:
    outcome = Outcome(**measured)
    events = sum(outcome.events.values())
    offered = events / outcome.simulated_s
    shares = ("supervisor", "slots", "ledger", "summary files", "job directories", "view")
    return (
        f"{outcome.nodes:,}",
        f"{outcome.jobs:,}",
        f"{outcome.attempts:,} / {outcome.node_losses}",
        f"{outcome.lost}",
        f"{outcome.simulated_s / outcome.ideal_s:.3f}",
        f"{offered:,.0f}",
        f"{events / outcome.driver_s:,.0f}",
        f"{outcome.driver_s:,.0f} s",
        " · ".join(f"{outcome.of_driver(part):.0%}" for part in shares),
        f"{outcome.pending_mib:,.0f} / {outcome.peak_mib:,.0f}",
        f"{outcome.wall_s:,.0f} s",
    )


CLUSTER_HEAD = (
    "nodes",
    "jobs",
    "attempts / nodes lost",
    "jobs lost",
    "makespan / ideal",
    "events/s offered",
    "handled",
    "driver",
    "supervisor · slots · ledger · summary · directories · view",
    "MiB, pending / most",
    "wall",
)


def stream_row(measured: Mapping[str, Any]) -> Sequence[str]:
    load = Load(**measured)
    busy = sum(load.cpu_s.values())
    parts = ("unpickling", "files", "streams", "supervisor", "ledger", "summary files")
    return (
        f"{load.nodes:,}",
        f"{load.jobs:,}",
        f"{load.report_every_s:g} s",
        f"{load.batches_a_s:,.0f}",
        f"{busy:.3f}",
        f"{load.wall_s:.3f}",
        " · ".join(f"{load.cpu_s.get(part, 0.0) / busy:.0%}" for part in parts),
        f"{load.microseconds:.0f} µs",
        f"{load.nodes / busy:,.0f}",
        f"{load.nodes / max(busy, load.wall_s):,.0f}",
    )


STREAM_HEAD = (
    "nodes",
    "jobs",
    "reports every",
    "batches/s",
    "cores",
    "wall seconds a second",
    "unpickling · files · replies · supervisor · ledger · summary",
    "a batch",
    "fills a core at nodes",
    "falls behind at nodes",
)


def ray_row(measured: Mapping[str, Any]) -> Sequence[str]:
    return (
        f"{measured['streams']:,}",
        f"{measured['batch_cpu_us']:.0f} µs",
        f"{measured['look_cpu_us'] / 1000:.2f} ms",
        f"{measured['mib']:.0f}",
    )


RAY_HEAD = (
    "streams open",
    "CPU of a batch read",
    "CPU of a look at all",
    "MiB of a connected driver",
)


def print_rows(head: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=",".join(MEASURED), metavar="A,B", help=f"parts, of {', '.join(MEASURED)}"
    )
    parser.add_argument("--nodes", default="10,100,1000,10000", metavar="N,N")
    parser.add_argument(
        "--worse", type=float, default=1.0, help="factor on the published failure rates"
    )
    parser.add_argument("--folder", type=Path, help="folder of the temporary run directories")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, *texts = arguments.one
        numbers = [float(text) if "." in text else int(text) for text in texts]
        with tempfile.TemporaryDirectory(dir=arguments.folder) as root:
            print(json.dumps(MEASURED[what](Path(root), *numbers)))
        return
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - MEASURED.keys():
        parser.error(f"--only {','.join(sorted(unknown))}: unknown; valid: {', '.join(MEASURED)}")
    sizes = [int(nodes) for nodes in arguments.nodes.split(",")]
    record: dict[str, list[dict[str, Any]]] = {}

    def measured(what: str, *numbers: float) -> dict[str, Any]:
        record.setdefault(what, []).append(in_a_process(what, *numbers, folder=arguments.folder))
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return record[what][-1]

    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {CORES} cores a node")
    if "clusters" in chosen:
        print_rows(
            CLUSTER_HEAD,
            (cluster_row(measured("clusters", nodes, arguments.worse)) for nodes in sizes),
        )
    if "streams" in chosen:
        pairs = ((10, 1.0), (100, 1.0), (100, 3.0), (1000, 32.0))
        print_rows(STREAM_HEAD, (stream_row(measured("streams", *pair)) for pair in pairs))
    if "ray" in chosen:
        print_rows(RAY_HEAD, (ray_row(measured("ray", streams)) for streams in (100, 1000, 4000)))
    if "pending" in chosen:
        rows = (measured("pending", count) for count in PENDING)
        table_rows = (
            (f"{row['jobs']:,}", f"{row['before_mib']:.0f}", f"{row['mib']:.0f}") for row in rows
        )
        print_rows(("jobs pending", "MiB before", "MiB of the driver"), table_rows)


if __name__ == "__main__":
    main()
