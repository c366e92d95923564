"""Tables of bodies, on which samplers are compared.

python -m benchmarks.bodies show                            what the tables hold
python -m benchmarks.bodies compare --searches 64           regret of each sampler
python -m benchmarks.bodies make runner --bodies 64 --run-dir DIR
                                                            trains the next 64 bodies and adds them
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import optuna

from benchmarks.bodies import maker, simulator, table


def show() -> int:
    for robot in table.SPACES:
        found = table.load(table.table_file(robot))
        values = found.measure("eval_mean")
        trained = np.isfinite(values).all(axis=1)
        means = values[trained].mean(axis=1)
        noise = float(np.sqrt(values[trained].var(axis=1, ddof=1).mean()))
        print(
            f"{robot}: {found.bodies} bodies × {values.shape[1]} seeds, {len(found.rungs)} rungs; "
            f"eval_mean: median {np.median(means):,.0f}, best {means.max():,.0f}, deviation "
            f"between bodies {means.std(ddof=1):,.0f}, between seeds {noise:,.0f}"
        )
    return 0


def compare(options: argparse.Namespace) -> int:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print("| robot | sampler | regret / that of random points |\n|---|---|---|")
    for robot in options.robots.split(","):
        land = simulator.landscape(robot, table.load(table.table_file(robot)))
        for sampler in options.samplers.split(","):
            ratio = simulator.compare(
                land,
                sampler,
                searches=options.searches,
                trainings=options.trainings,
                finalists=options.finalists,
            )
            print(f"| {robot} | {sampler} | {ratio} |", flush=True)
    return 0


def make(options: argparse.Namespace) -> int:
    path = table.table_file(options.robot)
    before = table.load(path)
    part = maker.Part(robot=options.robot, first=before.bodies, bodies=options.bodies)
    new = maker.make(part, options.run_dir)
    if new is None:
        print("The run was stopped; the same command goes on with it.")
        return 1
    before.extended(new).save(path)
    return show()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show")
    comparing = commands.add_parser("compare")
    comparing.add_argument("--robots", default=",".join(table.SPACES), metavar="A,B")
    comparing.add_argument("--samplers", default=",".join(simulator.SAMPLERS), metavar="A,B")
    comparing.add_argument("--searches", type=int, default=64)
    comparing.add_argument("--trainings", type=int, default=60)
    comparing.add_argument(
        "--finalists", type=int, default=0, help="bodies that get further seeds (0: none)"
    )
    making = commands.add_parser("make")
    making.add_argument("robot", choices=table.SPACES)
    making.add_argument("--bodies", type=int, default=64)
    making.add_argument("--run-dir", type=Path, required=True, help="resumed if it is there")
    options = parser.parse_args()
    if options.command == "compare":
        return compare(options)
    return make(options) if options.command == "make" else show()


if __name__ == "__main__":
    raise SystemExit(main())
