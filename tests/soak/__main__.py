"""Trains a small experiment again and again, each time with a fault, and checks that nothing is lost.

python -m tests.soak [--minutes 10] [--seed N]    exit code 1: something fell short, and its files are kept
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.soak.campaign import play


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long new rounds begin")
    parser.add_argument("--seed", type=int, help="of the faults and their moments (random)")
    arguments = parser.parse_args()
    seed = arguments.seed
    if seed is None:
        seed = int.from_bytes(os.urandom(3), "big")
    print(f"seed {seed}", flush=True)
    result = play(seed, arguments.minutes, lambda line: print(line, flush=True))
    faults = sum(result.applied.values())
    kinds = len(result.applied)
    print(f"{faults} faults of {kinds} kinds; {len(result.shortfalls)} rounds fell short")
    if result.kept is not None:
        print(f"The files of what fell short are in {result.kept}")
    return 1 if result.shortfalls else 0


if __name__ == "__main__":
    sys.exit(main())
