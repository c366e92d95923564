"""The speed of a training on every core, with something beside it or without: trackers, viewers of
the live page."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import ORCHESTRATOR, ROOT, Line, both_ways
from orchestrator.analysis import run_reader
from orchestrator.machine import topology

ENV_STEPS = 614_400
MOST_SLOWER = 0.005


class Training(NamedTuple):
    env_steps_per_s: float
    waited: float
    """Share of the time in which it waited for a CPU, as the kernel counts it."""


def slower(
    what: str,
    repeats: int,
    *,
    env_steps: int = ENV_STEPS,
    tables: str = "",
    beside: Callable[[Path], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> list[Line]:
    """The shares by which a training is slower with ``tables`` in its job file, or with something
    beside it.

    Each repeat trains with and without; the order alternates. On a virtual machine, the speed of
    the same training changes by more than what is looked for. So a second line has what else takes
    of the cores: by how much more of its time a training waits for a CPU.

    :param beside: begins with the run directory as its argument, and lasts as long as the training.
    :raises subprocess.CalledProcessError: a run failed.
    """
    shares = []
    waits = []
    for number in range(repeats):
        found: dict[bool, Training] = {}
        for is_with in both_ways(number, False, True):
            with tempfile.TemporaryDirectory() as folder:
                run_dir = Path(folder) / "run"
                with beside(run_dir) if is_with else contextlib.nullcontext():
                    found[is_with] = _train(run_dir, env_steps, tables if is_with else "")
        shares.append(1 - found[True].env_steps_per_s / found[False].env_steps_per_s)
        waits.append(found[True].waited - found[False].waited)
    return [_line(what, shares), _line(f"{what}: more of the time waiting for a CPU", waits)]


def _line(what: str, shares: list[float]) -> Line:
    middle = statistics.median(shares)
    shown = f"{middle:+.2%} ({min(shares):+.2%} – {max(shares):+.2%})"
    return Line(
        what=what, measured=shown, target="< 0.5 %", good=middle < MOST_SLOWER, values=shares
    )


def _train(run_dir: Path, env_steps: int, tables: str) -> Training:
    """Means over jobs that train the hopper, one on every core.

    :param tables: of the job file, in addition.
    """
    path = run_dir.with_suffix(".toml")
    seeds = list(range(topology.detect().physical_cores))
    path.write_text(
        f'name = "speed"\n{tables}[defaults]\ntotal_timesteps = {env_steps}\neval_episodes = 0\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{ROOT / "mjcf" / "hopper.xml"}"\nseeds = {seeds}\n',
        encoding="utf-8",
    )
    command = [*ORCHESTRATOR, "run", str(path), "--run-dir", str(run_dir)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    jobs = [run_reader.iterations(table) for table in run_dir.glob("jobs/*/timings.csv")]
    wall_s = [sum(row.wall_s for row in job) for job in jobs]
    return Training(
        statistics.mean(env_steps / seconds for seconds in wall_s),
        statistics.mean(
            sum(row.run_delay_s or 0.0 for row in job) / seconds
            for job, seconds in zip(jobs, wall_s, strict=True)
        ),
    )
