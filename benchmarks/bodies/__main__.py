"""Tables of bodies, on which searches are compared.

python -m benchmarks.bodies make quadruped --bodies 64             trains the next 64 and adds them
python -m benchmarks.bodies make quadruped --bodies 64 --first 0   trains the first 64 again
python -m benchmarks.bodies show quadruped                         what the table has
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import table_of_bodies
from benchmarks.bodies import maker
from benchmarks.bodies.maker import Made, Part
from benchmarks.table_of_bodies import Table
from orchestrator.machine import topology


def main() -> int:
    options = _options()
    if options.what == "show":
        return _show(options.robot)
    if options.what == "train":
        part = Part(
            robot=options.robot,
            first=options.first or 0,
            bodies=options.bodies,
            run_dir=options.run_dir,
        )
        begun = time.monotonic()
        exit_code = maker.train(part).exit_code
        wall_s = time.monotonic() - begun
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = used.ru_utime + used.ru_stime
        print(f"supervisor: {cpu_s:.1f} s of a core in {wall_s:,.0f} s ({cpu_s / wall_s:.2%})")
        return exit_code
    with tempfile.TemporaryDirectory() as folder:
        return _make(options, options.run_dir or Path(folder) / "run")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bodies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("make", "show", "train"))
    parser.add_argument("robot", choices=table_of_bodies.ROBOTS)
    parser.add_argument(
        "--bodies", type=int, default=64, metavar="N", help="how many (default: 64)"
    )
    parser.add_argument(
        "--first",
        type=int,
        metavar="N",
        help="place of the first of them (default: the first that the table does not have)",
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="with make: the run directory, which is kept, and resumed if it is there",
    )
    parser.add_argument(
        "--kill-every",
        type=float,
        default=120.0,
        metavar="S",
        help="with make: mean time between kills of the supervisor; 0: none (default: 120)",
    )
    options = parser.parse_args()
    if options.first is not None and options.first < 0:
        parser.error(f"--first {options.first}: expected 0 or more")
    return options


def _make(options: argparse.Namespace, run_dir: Path) -> int:
    path = table_of_bodies.table_file(options.robot)
    before = table_of_bodies.load(path) if path.exists() else None
    there = 0 if before is None else before.bodies
    first = there if options.first is None else options.first
    if first > there:
        print(f"--first {first}: the table has {there} bodies; the next one is {there}")
        return 2
    part = Part(robot=options.robot, first=first, bodies=options.bodies, run_dir=run_dir)
    try:
        made = maker.make(part, kill_every_s=options.kill_every, seed=part.first)
        new = maker.read(part)
    except maker.EndedError as error:
        goes_on = "; the same command goes on" if options.run_dir else ""
        print(f"{path}: nothing was added, as the run has ended before its end ({error}){goes_on}")
        return 1
    (new if before is None else before.with_part(first, new)).save(path)
    print(
        f"{part.bodies} bodies × {new.seeds} seeds {_duration(made)}; {made.kills} kills;"
        f" {made.failed} trainings failed"
    )
    if before is not None and first < there:
        print(_difference(before.part(first, part.bodies), new))
    return _show(options.robot)


def _difference(before: Table, new: Table) -> str:
    """What was trained again, and had other returns or measures."""
    again = new.part(0, before.bodies)
    same = np.isclose(before.returns, again.returns, rtol=1e-5, equal_nan=True).all(axis=2)
    same &= np.isclose(before.measures, again.measures, rtol=1e-5, equal_nan=True).all(axis=2)
    return f"trained again: {same.size}; of these gave other values than before: {np.sum(~same)}"


def _duration(made: Made) -> str:
    """With the shares of the cores' time that had a training, where one command has made all."""
    cores = topology.detect().capacity
    spent = f"in {made.wall_s:,.0f} s on {cores} cores"
    if not made.is_of_one_command:
        return f"{spent}, the others by an earlier command"
    return (
        f"{spent}: a training on {made.trained_s / made.wall_s / cores:.3f} of them,"
        f" {made.trained_s / made.launching_s / cores:.3f} from the first launch to the last end"
    )


def _show(robot: str) -> int:
    found = table_of_bodies.load(table_of_bodies.table_file(robot))
    values = found.measure("eval_mean")
    trained = np.isfinite(values).all(axis=1)
    means = values[trained].mean(axis=1)
    noise = float(np.sqrt(values[trained].var(axis=1, ddof=1).mean()))
    print(f"{robot}: {found.bodies} bodies × {found.seeds} seeds, {len(found.rungs)} rungs")
    print(f"bodies of which a training failed: {np.sum(~trained)}")
    print(f"bodies with measures at rungs: {np.sum(found.is_measured)}")
    print(f"eval_mean of the bodies: median {np.median(means):,.0f}, best {means.max():,.0f}")
    print(f"deviation between bodies {means.std(ddof=1):,.0f}, between seeds {noise:,.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
