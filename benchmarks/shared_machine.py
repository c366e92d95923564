"""Runs of several users at once beside a program bound to the first core: which CPU each job got,
and how it waited.

    python -m benchmarks.shared_machine [--users 1001,1002] [--runs 4] [--program FOLDER] [--env-steps 300000]
    python -m benchmarks.shared_machine --disturbed [--repeats 5]

As root, each run is a process of one of the users, in turns, who must be able to read Python and
FOLDER; otherwise all are this user's. Each has one job, and begins when the job before has been
launched. ``--program`` names another checkout of this repository, to compare with, and ``--python``
a Python of this version that the users can run.

``--disturbed``: a job trains alone on CPU 0; then the same with a program that is bound to that CPU
two seconds after the launch. The two alternate. Printed are the CPUs that it had, how soon it was
moved, and the env_steps/s of iterations after the move (or the arrival of the program, where it is
not moved) as a share of those of the undisturbed one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, both_ways, busy_loop, spread

PATIENCE_S = 120.0
ARRIVAL_S = 2.0
"""When the program comes, after the launch of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    program: Path
    python: str
    users: Sequence[int]
    runs: int
    env_steps: int
    repeats: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, default=ROOT)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--users", default="1001,1002")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--disturbed", action="store_true")
    given = parser.parse_args()
    users = [int(uid) for uid in given.users.split(",")] if os.geteuid() == 0 else [os.getuid()]
    options = Options(
        program=given.program.resolve(),
        python=given.python,
        users=users,
        runs=given.runs,
        env_steps=given.env_steps,
        repeats=given.repeats,
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        if given.disturbed:
            compare_disturbed(options, Path(folder))
        else:
            show_placement(options, Path(folder))


def show_placement(options: Options, folder: Path) -> None:
    with busy_loop(0), contextlib.ExitStack() as stack:
        runs = []
        for number in range(options.runs):
            runs.append(
                Run(options, folder / f"run-{number}", options.users[number % len(options.users)])
            )
            stack.enter_context(runs[-1].running())
            runs[-1].until_launched()
        for run in runs:
            run.until_ended()
        print(f"{'run':6} {'user':>6}  {'CPUs, in order':16} {'waited':>7}")
        for number, run in enumerate(runs):
            cpus = " → ".join(",".join(map(str, span)) for span in run.cpus())
            print(f"{number:<6} {run.uid:>6}  {cpus:16} {run.wait_share():>7.0%}")


def compare_disturbed(options: Options, folder: Path) -> None:
    ratios: list[float] = []
    for repeat in range(options.repeats):
        speeds: dict[bool, float] = {}
        for is_disturbed in both_ways(repeat, False, True):
            run = Run(options, folder / f"{repeat}-{is_disturbed}", os.getuid())
            with run.running(), contextlib.ExitStack() as loops:
                (cpu,) = run.until_launched()
                if is_disturbed:
                    time.sleep(ARRIVAL_S)
                    loops.enter_context(busy_loop(cpu))
                    arrived_at = time.time()
                run.until_ended()
            moved_at = run.moved_at()
            begin = (moved_at or arrived_at) if is_disturbed else 0.0
            speeds[is_disturbed] = run.speed_since(begin)
            how = "undisturbed"
            if is_disturbed:
                how = "stayed" if moved_at is None else f"moved after {moved_at - arrived_at:.1f} s"
            about = f"{how}; CPUs {run.cpus()}; weights {run.weights()[:12]}"
            print(f"repeat {repeat}: {about}", flush=True)
        ratios.append(speeds[True] / speeds[False])
    print(f"env_steps/s, disturbed / undisturbed: {spread(ratios, '.3f')}")


class Run:
    """An experiment with one job, in a directory of its own."""

    def __init__(self, options: Options, folder: Path, uid: int) -> None:
        self.uid = uid
        self._folder = folder
        self._options = options
        folder.mkdir()
        shutil.copy(ROOT / "mjcf/hopper.xml", folder)
        keys = f"total_timesteps = {options.env_steps}\neval_episodes = 0\npreview = false"
        (folder / "jobs.toml").write_text(
            f'name = "{folder.name}"\n[[jobs]]\nxml = "hopper.xml"\n{keys}\n'
        )
        if os.geteuid() == 0:
            os.chown(folder, uid, uid)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        who = []
        if os.geteuid() == 0:
            who = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        command = [
            *who,
            self._options.python,
            "-m",
            "orchestrator",
            "run",
            "jobs.toml",
            "--max-parallel",
            "1",
        ]
        search_path = os.pathsep.join([str(self._options.program), sysconfig.get_path("purelib")])
        environment = {**os.environ, "HOME": str(self._folder), "PYTHONPATH": search_path}
        with (self._folder / "output").open("w") as output:
            self._process = subprocess.Popen(
                [*command, "--run-dir", "run"],
                cwd=self._folder,
                env=environment,
                stdout=output,
                stderr=output,
            )
            try:
                yield
            finally:
                self._process.terminate()
                self._process.wait()

    def until_launched(self) -> list[int]:
        """The CPUs of the job."""
        deadline = time.monotonic() + PATIENCE_S
        while not (rows := self._rows()) or not rows[0]["cpus"]:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit((self._folder / "output").read_text())
            time.sleep(0.1)
        cpus: list[int] = rows[0]["cpus"]
        return cpus

    def until_ended(self) -> None:
        if self._process.wait() != 0:
            raise SystemExit((self._folder / "output").read_text())

    def cpus(self) -> list[list[int]]:
        """Where the job ran, in order."""
        return [span["cpus"] for span in self._spans()]

    def moved_at(self) -> float | None:
        """Seconds since the epoch; None where it was not moved."""
        spans = self._spans()
        return spans[1]["since"] if len(spans) > 1 else None

    def wait_share(self) -> float:
        rows = self._timings()
        return sum(float(row["run_delay_s"]) for row in rows) / sum(
            float(row["wall_s"]) for row in rows
        )

    def speed_since(self, begin: float) -> float:
        """Mean env_steps/s of the iterations that began after ``begin`` (seconds since the
        epoch)."""
        rows = self._timings()
        ends_at = self._file("timings.csv").stat().st_mtime
        left_s = 0.0
        counted: list[tuple[float, float]] = []
        for earlier, row in zip(reversed(rows[:-1]), reversed(rows[1:]), strict=True):
            left_s += float(row["wall_s"])
            if ends_at - left_s > begin:
                counted.append(
                    (float(row["env_steps"]) - float(earlier["env_steps"]), float(row["wall_s"]))
                )
        return sum(steps for steps, _ in counted) / sum(wall_s for _, wall_s in counted)

    def weights(self) -> str:
        return str(self._rows()[0]["weights_sha256"])

    def _rows(self) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError):
            rows: list[dict[str, Any]] = json.loads((self._folder / "run/summary.json").read_text())
            return rows
        return []

    def _spans(self) -> list[dict[str, Any]]:
        from orchestrator.core.paths import RunPaths
        from orchestrator.ledger import Ledger

        with contextlib.closing(
            Ledger.open(RunPaths(self._folder / "run").ledger, read_only=True)
        ) as ledger:
            return [dict(span) for attempt in ledger.attempts() for span in attempt["cpu_spans"]]

    def _timings(self) -> list[dict[str, str]]:
        with self._file("timings.csv").open() as file:
            return list(csv.DictReader(file))

    def _file(self, name: str) -> Path:
        (job,) = (self._folder / "run/jobs").iterdir()
        return job / name


if __name__ == "__main__":
    main()
