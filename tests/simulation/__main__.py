"""``python -m tests.simulation --seeds 1000``: plays the scenarios of so many seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.play import play
from tests.simulation.scenario import made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        outcome = play(made(arguments.seed))
        print(made(arguments.seed).to_json())
        print("\n".join(outcome.trace))
        return bool(outcome.violation)
    begun = time.perf_counter()
    counts: Counter[str] = Counter()
    failed = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        outcome = play(made(seed))
        counts += outcome.counts
        if outcome.violation:
            failed.append(seed)
            print(f"seed {seed}: {outcome.violation}", flush=True)
    elapsed_s = time.perf_counter() - begun
    print(f"{arguments.seeds} seeds in {elapsed_s:.1f} s; {len(failed)} failed; {dict(counts)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
