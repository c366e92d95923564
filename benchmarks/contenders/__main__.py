"""Train the same robots with several implementations of PPO, and compare their speed and what they
learn.

    python -m benchmarks.contenders speed   --cache DIR --out DIR [--only sb3,fast] [--robots Ant-v5] [--repeats 6]
    python -m benchmarks.contenders returns --cache DIR --out DIR [--only sb3,fast] [--robots Ant-v5] [--seeds 1]
    python -m benchmarks.contenders goals   --cache DIR --out DIR [--only sb3,fast] [--robots Ant-v5] [--goal 1000]

All contenders have one environment, two networks of 64-64 tanh units and Stable-Baselines3's
default hyperparameters. The contenders rl_games_own and mjbatch have the settings that rl_games and
an example of mjbatch have instead, fast_wide as many of those of rl_games as the fast learner has, and
envpool four environments. Each training is a process of its own, with one core and one thread.

speed    The contenders take turns on one core: one training of each is a repeat, in reverse order in every second
         repeat. The first iteration (a rollout and its update) of a training is not counted, as it compiles and warms
         caches. This needs an otherwise idle machine.
returns  Longer trainings, --at-once of them on a core each, whose return is reported: the mean of the last 100
         episodes of training, without normalisation or discount. Their speed is not reported.

goals    Trainings until the last 20 episodes have a mean return of --goal, or all of --return-steps are made: on one
         core, and on two with two threads, one after the other. Reported is how long that took. This needs an otherwise
         idle machine, too.

All write contenders.json and contenders.md into --out, which then has the results of all. After
Ctrl-C, the same command resumes: trainings in contenders.json are not repeated, except those of a
repeat that was interrupted.

sbx, envpool, mjbatch, rl_games and torchrl get a virtual environment of their own in the cache folder, from the
pinned versions in benchmarks/contenders/pins. Together they take about 7 GB. Their torch is the CPU
build. Where pip does not find it, set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu. A
contender that cannot be installed or that fails is a row that says why.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.contenders.contender import CONTENDERS, ContenderFailed, Training, python_of
from benchmarks.contenders.results import Report, Results, Unreadable
from benchmarks.contenders.turns import Measurement, Task
from orchestrator.core.files.atomic_files import write_whole

ROBOTS = ("HalfCheetah-v5", "Ant-v5")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contenders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("part", choices=("speed", "returns", "goals"))
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder of the virtual environments"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="folder of the results"
    )
    parser.add_argument(
        "--only", default=",".join(CONTENDERS), metavar="A,B", help=f"of {','.join(CONTENDERS)}"
    )
    parser.add_argument(
        "--robots", default=",".join(ROBOTS), metavar="A,B", help=f"of {','.join(ROBOTS)}"
    )
    parser.add_argument(
        "--repeats", type=int, default=6, help="trainings of each contender for speed (default: 6)"
    )
    parser.add_argument(
        "--speed-steps", type=int, default=16_384, help="env_steps of these (default: 16384)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        help="trainings of each contender for returns and goals (default: 1)",
    )
    parser.add_argument(
        "--return-steps", type=int, default=1_000_000, help="env_steps of these (default: 1000000)"
    )
    parser.add_argument(
        "--goal", type=float, default=1000.0, help="the return of goals (default: 1000)"
    )
    parser.add_argument(
        "--at-once", type=int, default=1, help="of the trainings for returns (default: 1)"
    )
    parser.add_argument(
        "--retry", action="store_true", help="train contenders again that have failed before"
    )
    parsed = parser.parse_args()
    parsed.only = parsed.only.split(",")
    parsed.robots = parsed.robots.split(",")
    for option, given, valid in (
        ("only", parsed.only, CONTENDERS),
        ("robots", parsed.robots, ROBOTS),
    ):
        if unknown := set(given) - set(valid):
            parser.error(
                f"--{option} {','.join(sorted(unknown))}: unknown; valid: {','.join(valid)}"
            )
    for option in ("repeats", "speed_steps", "seeds", "return_steps", "at_once"):
        if getattr(parsed, option) < 1:
            parser.error(f"--{option.replace('_', '-')} {getattr(parsed, option)}: at least 1")
    if parsed.at_once > len(cores):
        parser.error(f"--at-once {parsed.at_once}: this process may use {len(cores)} CPUs")
    if parsed.cache is None and (pinned := [name for name in parsed.only if CONTENDERS[name].pins]):
        parser.error(f"--cache DIR is missing: {', '.join(pinned)} would be installed there")
    parsed.cores = cores[-2:] if parsed.part == "goals" else cores[-parsed.at_once :]
    return parsed


def installed(
    names: Sequence[str], cache: Path, failed: Callable[[str, str], None]
) -> dict[str, Path]:
    """The interpreters of the contenders, by name; ``failed`` is called with the name and the
    reason of others."""
    pythons = {}
    for name in names:
        try:
            pythons[name] = python_of(CONTENDERS[name], cache)
        except ContenderFailed as error:
            failed(name, str(error))
    return pythons


def measure(asked: argparse.Namespace, results: Results, save: Callable[[], None]) -> None:
    def failed(name: str, reason: str) -> None:
        for robot in asked.robots:
            results.add_failure(asked.part, name, robot, reason)

    pythons = installed(asked.only, (asked.cache or Path()).resolve(), failed)
    for one in results.failures:
        if one["part"] == asked.part:
            print(
                "{robot}, {contender}: {reason} (left out; --retry tries again)".format(**one),
                file=sys.stderr,
            )

    def start(task: Task, core: int) -> Training:
        others = [one for one in asked.cores if one != core]
        cores = [core, *others][: task.threads]
        contender = CONTENDERS[task.contender]
        return Training(contender, pythons[task.contender], asdict(task), cores)

    measurement = Measurement(results=results, part=asked.part, start=start, save=save)
    if asked.part == "speed":
        core = asked.cores[-1]
        steps = asked.speed_steps
        measurement.speed(
            asked.only, asked.robots, repeats=asked.repeats, env_steps=steps, core=core
        )
    elif asked.part == "goals":
        measurement.goals(
            asked.only,
            asked.robots,
            seeds=asked.seeds,
            env_steps=asked.return_steps,
            goal=asked.goal,
            cores=asked.cores,
        )
    else:
        cores = asked.cores
        steps = asked.return_steps
        measurement.returns(
            asked.only, asked.robots, seeds=asked.seeds, env_steps=steps, cores=cores
        )


def main() -> int:
    asked = options()
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
        folder = os.open(asked.out, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
        results = Results.read(asked.out / "contenders.json")
    except BlockingIOError:
        print(
            f"Another command measures into {asked.out}. Wait for its end, or give another --out.",
            file=sys.stderr,
        )
        return 2
    except OSError as error:
        print(f"{asked.out} cannot be used: {error.strerror}. Give another --out.", file=sys.stderr)
        return 2
    except Unreadable as error:
        print(error, file=sys.stderr)
        return 2
    report = Report(
        results=results,
        speed_steps=asked.speed_steps,
        return_steps=asked.return_steps,
        goal=asked.goal,
    )
    if asked.retry:
        results.forget_failures(asked.only)

    def save() -> None:
        results.write(asked.out / "contenders.json")
        write_whole(asked.out / "contenders.md", report.text(), durable=False)

    try:
        measure(asked, results, save)
    except KeyboardInterrupt:
        print("\nInterrupted. The same command resumes.", file=sys.stderr)
        return 130
    save()
    print(report.text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
