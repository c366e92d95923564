"""Is this version as fast as another one? Both are measured in turn, in one run.

    git worktree add ../before COMMIT
    python -m benchmarks.versions --before ../before [--repeats 5] [--only commands,learner]

Every figure is a ratio, of this checkout to the other one, as the median over the repeats with
their range. Each side runs in processes of its own, with its own code and job files. Run it on an
otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import ROOT, Line, both_ways, print_table, spread

T = TypeVar("T")
INSTANT_JOBS = "from benchmarks.experiment import instant_jobs;print(instant_jobs(1)[0].values[0])"
LEARNER_STEPS = 300_000
"""env_steps of a training of which the speed is taken."""
LEARNERS: Mapping[str, str] = {
    "quadruped": 'xml = "{checkout}/mjcf/quadruped.xml"\ntask = "forward"',
    "HalfCheetah-v5": 'env = "HalfCheetah-v5"',
}
"""Name of a training → what it trains."""
LEARNER_FILE = """
name = "versions"
[defaults]
total_timesteps = {steps}
learner = "fast"
n_envs = 8
eval_episodes = 0
checkpoint_every = 1_000_000_000
[defaults.ppo]
n_steps = 256
batch_size = 256
[[jobs]]
name = "{name}"
{trains}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A checkout of the program."""

    checkout: Path

    def python(self, *arguments: str) -> str:
        """Standard output of this Python with the checkout's code; raises if it fails."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.checkout,
            env={**os.environ, "PYTHONPATH": str(self.checkout)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.checkout}: {arguments}\n{done.stdout}{done.stderr}")
        return done.stdout

    def orchestrator(self, *arguments: str) -> float:
        """Wall seconds of a command of the program."""
        begun = time.perf_counter()
        self.python("-m", "orchestrator", *arguments)
        return time.perf_counter() - begun


HERE = Side(checkout=ROOT)


def in_turn(before: Side, repeats: int, measure: Callable[[Side], T]) -> list[tuple[T, T]]:
    """What is measured here and before, a pair for each repeat."""
    pairs = []
    for number in range(repeats):
        measured = {side: measure(side) for side in both_ways(number, before, HERE)}
        pairs.append((measured[HERE], measured[before]))
    return pairs


def ratio(what: str, pairs: Sequence[tuple[float, float]]) -> Line:
    """The line of what was measured here, divided by what was before."""
    ratios = [here / there for here, there in pairs]
    return Line(what=what, measured=spread(ratios, ".2f"), target="", good=True, values=ratios)


def commands(before: Side, repeats: int) -> list[Line]:
    """``--help``, and ``status`` of a run directory that each side has made."""
    with tempfile.TemporaryDirectory() as name:
        run_dirs = {side: Path(name) / str(number) for number, side in enumerate((before, HERE))}
        for side, run_dir in run_dirs.items():
            side.orchestrator("run", "jobs/smoke.toml", "--run-dir", str(run_dir))
        helps = in_turn(before, 4 * repeats, lambda side: side.orchestrator("--help"))
        statuses = in_turn(
            before, 4 * repeats, lambda side: side.orchestrator("status", str(run_dirs[side]))
        )
    return [ratio("--help, seconds", helps), ratio("status, seconds", statuses)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpeed:
    first_step_s: float
    """From exec to the first env_step."""
    env_steps_per_s: float
    """From then on."""


def learner(before: Side, repeats: int) -> list[Line]:
    """Start and speed of the fast learner, in trainings that are alone."""
    lines = []
    for name in LEARNERS:
        pairs = in_turn(before, repeats, partial(_trained, name))
        speeds = [(here.env_steps_per_s, there.env_steps_per_s) for here, there in pairs]
        starts = [(here.first_step_s, there.first_step_s) for here, there in pairs]
        lines.append(ratio(f"{name}, env_steps/s of the fast learner", speeds))
        lines.append(ratio(f"{name}, seconds from exec to the first env_step", starts))
    return lines


def _trained(name: str, side: Side) -> TrainingSpeed:
    """Train one of :data:`LEARNERS`."""
    with tempfile.TemporaryDirectory() as folder:
        job_file = Path(folder) / "versions.toml"
        run_dir = Path(folder) / "run"
        job_file.write_text(
            LEARNER_FILE.format(
                steps=LEARNER_STEPS,
                name=name,
                trains=LEARNERS[name].format(checkout=side.checkout),
            )
        )
        side.orchestrator("run", str(job_file), "--run-dir", str(run_dir))
        (exit_record,) = run_dir.glob("jobs/*/attempts/0/exit.json")
        record = json.loads(exit_record.read_text())
    first_step_s = record["first_step_s"]
    return TrainingSpeed(
        first_step_s=first_step_s,
        env_steps_per_s=record["env_steps"] / (record["wall_s"] - first_step_s),
    )


def instant(before: Side, repeats: int) -> list[Line]:
    """1,000 jobs whose worker is /bin/true."""
    rates = in_turn(before, repeats, lambda side: float(side.python("-c", INSTANT_JOBS)))
    return [ratio("1,000 instant jobs, jobs/s", rates)]


def main_job(before: Side, repeats: int) -> list[Line]:
    """Wall seconds of ``run jobs/robots.toml``, from the command to its end."""
    return [ratio("the main job, seconds", in_turn(before, repeats, _main_job_s))]


def _main_job_s(side: Side) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return side.orchestrator("run", "jobs/robots.toml", "--run-dir", f"{folder}/run")


PARTS = {"commands": commands, "learner": learner, "instant": instant, "main": main_job}


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--before", type=Path, required=True, metavar="CHECKOUT", help="the other version"
    )
    known, _ = options.parse_known_args()
    before = Side(checkout=known.before.resolve())
    if not (before.checkout / "orchestrator").is_dir():
        options.error(f"--before {known.before}: no checkout of this program")
    if before == HERE:
        options.error(f"--before {known.before}: this checkout itself; name another one")
    print_table(__doc__, {name: partial(part, before) for name, part in PARTS.items()}, options)


if __name__ == "__main__":
    main()
