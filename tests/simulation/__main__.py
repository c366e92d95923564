"""Plays scenarios of a simulated world: supervisors that die, are disturbed and begin again.

python -m tests.simulation                         seeds 0 to 499, as the tests do, on all cores
                           --seeds 1000 --seed 500 a thousand others, beginning with 500
                           --seeds 1 --seed 7 --trace
                                                   all that happens in one of them
                           --plant N               with the N-th planted fault, until it is found

Prints what does not hold, and the shortest scenario that shows it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.drawing import made
from tests.simulation.planted import FAULTS, first_seed
from tests.simulation.play import play
from tests.simulation.shrink import shrunk


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many are played")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument("--plant", type=int, help="plant a fault")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    if arguments.plant is not None:
        fault = FAULTS[arguments.plant]
        seed, violation = first_seed(fault, seeds)
        print(f"{fault.name}: {'not found' if seed is None else f'seed {seed}: {violation}'}")
        return seed is None
    begun = time.perf_counter()
    counts: Counter[str] = Counter()
    failed = 0
    with ProcessPoolExecutor() as pool:
        for seed, outcome in zip(seeds, pool.map(play, map(made, seeds)), strict=True):
            counts += outcome.counts
            if arguments.trace:
                print("\n".join(outcome.trace))
            if outcome.violation:
                failed += 1
                shortest, _ = shrunk(made(seed), outcome)
                print(f"seed {seed}: {outcome.violation}\n{shortest.to_json()}", flush=True)
    print(f"{len(seeds):,} scenarios in {time.perf_counter() - begun:.1f} s; {failed:,} failed")
    print(", ".join(f"{name} {number:,}" for name, number in sorted(counts.items())))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
