"""Plays scenarios of a simulated world: supervisors that die, are disturbed and begin again.

python -m tests.simulation --seeds 1000            on all cores: what does not hold, and the shortest scenario
                           --keep FOLDER           which is kept there as a file, too
python -m tests.simulation --seed 7 --trace        all that happens in one of them
python -m tests.simulation --scenario FILE --trace the same of a scenario that was kept
python -m tests.simulation --mutations             after how many seeds planted faults are found
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.mutations import MUTATIONS, planted
from tests.simulation.mutations_elsewhere import ELSEWHERE
from tests.simulation.play import Outcome, play
from tests.simulation.scenario import Scenario, made
from tests.simulation.shrink import shrunk

NO_TROUBLES = ("lives", "points", "worlds", "deaths", "moves", "status", "refused commands")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many are played")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="in which they are played (cores)"
    )
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--scenario", type=Path, help="only the scenario in this file")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument("--keep", type=Path, help="folder for the shortest scenarios that fail")
    parser.add_argument("--mutations", action="store_true", help="plant faults, one after another")
    parser.add_argument("--only", default="", help="of these only those with this in their name")
    arguments = parser.parse_args()
    _import_all()
    if arguments.mutations:
        return _find_mutations(arguments.first, arguments.seeds, arguments.only)
    if arguments.scenario is not None:
        return _play_one(Scenario.from_json(arguments.scenario.read_text()), arguments.trace)
    if arguments.seed is not None:
        return _play_one(made(arguments.seed), arguments.trace)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return _play_many(seeds, arguments.processes, arguments.keep)


def _import_all() -> None:
    """Import now what would be imported late."""
    play(Scenario(jobs=made(0).jobs))


def _play_one(scenario: Scenario, with_trace: bool) -> int:
    outcome = play(scenario)
    if with_trace:
        print("\n".join(outcome.trace))
    elif outcome.violation:
        _print_shortest(scenario, outcome)
    print(f"{outcome.violation or 'all holds'}; digest {outcome.digest}")
    return bool(outcome.violation)


def _play_many(seeds: range, processes: int, keep: Path | None) -> int:
    begun = time.perf_counter()
    counts: Counter[str] = Counter()
    failed = []
    simulated_s = cpu_s = 0.0
    with ProcessPoolExecutor(processes, initializer=_import_all) as pool:
        for seed, (outcome, took_s) in zip(seeds, pool.map(_play_seed, seeds), strict=True):
            counts += outcome.counts
            simulated_s += outcome.simulated_s
            cpu_s += took_s
            if outcome.violation:
                failed.append(seed)
                print(f"seed {seed}: {outcome.violation}", flush=True)
                shortest = _print_shortest(made(seed), outcome)
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{seed}.json").write_text(shortest.to_json() + "\n")
    elapsed_s = time.perf_counter() - begun
    troubles = sum(number for kind, number in counts.items() if kind not in NO_TROUBLES)
    print(
        f"{len(seeds):,} seeds in {elapsed_s:.1f} s, {cpu_s:.1f} s of a core; {len(failed)} failed"
    )
    print(f"{simulated_s / 3600:,.1f} hours were simulated, with {counts['points']:,} points")
    for what, number in (
        ("seeds", len(seeds)),
        ("troubles", troubles),
        ("deaths and restarts", counts["deaths"]),
    ):
        print(f"{what}: {number:,}, {number / cpu_s * 3600:,.0f} in an hour of a core")
    print(", ".join(f"{kind} {number:,}" for kind, number in counts.most_common()))
    return bool(failed)


def _play_seed(seed: int) -> tuple[Outcome, float]:
    """How it was played, without its trace, and seconds of a core."""
    begun = time.process_time()
    outcome = play(made(seed))
    return dataclasses.replace(outcome, trace=[]), time.process_time() - begun


def _print_shortest(scenario: Scenario, outcome: Outcome) -> Scenario:
    shortest, _ = shrunk(scenario, outcome)
    print(shortest.to_json(), flush=True)
    return shortest


def _find_mutations(first: int, most: int, only: str) -> int:
    """After how many seeds each planted fault is found."""
    missed = 0
    for mutation in (one for one in (*MUTATIONS, *ELSEWHERE) if only in one.name):
        with planted(mutation):
            number, violation = _first_violation(first, most)
        missed += not violation
        found = f"{number:>6,}" if violation else f" >{most:,}"
        print(f"{found}  {mutation.name}: {violation or 'not found'}"[:160], flush=True)
    return bool(missed)


def _first_violation(first: int, most: int) -> tuple[int, str]:
    for number in range(1, most + 1):
        if violation := play(made(first + number - 1)).violation:
            return number, violation.partition("\n")[0]
    return most, ""


if __name__ == "__main__":
    sys.exit(main())
