"""Does a curriculum pay? A biped learns to stand under full pushes, which begin gently or at once.

    python -m orchestrator run benchmarks/curriculum.toml --run-dir runs/curriculum
    python -m benchmarks.curriculum runs/curriculum [--output docs/figures]

All jobs have the same env_steps and are evaluated under full pushes. Prints Markdown, and writes
``curriculum.png``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import learning_figures
from benchmarks.learning import mean_std, tested
from benchmarks.learning_runs import LEAST_SEEDS, Trained, read, values
from benchmarks.permutation_tests import Pair
from orchestrator.core.errors import OrchestratorError, UsageError

REFERENCE = "full"
"""The job of benchmarks/curriculum.toml with full pushes from the start."""
ROBOT = "biped"


def report(jobs: Mapping[str, Sequence[Trained]]) -> str:
    """The returns of every job, and how each curriculum compares with the reference, as Markdown.

    :raises UsageError: a job is missing, has too few seeds, or has not been evaluated.
    """
    found = {job: np.array(values(trained, "evaluated")) for job, trained in jobs.items()}
    if REFERENCE not in found or len(found) < 2:
        raise UsageError(
            f"expected jobs of benchmarks/curriculum.toml, {REFERENCE} among them; found {', '.join(found)}"
        )
    for job, returns in found.items():
        if returns.size < LEAST_SEEDS:
            raise UsageError(
                f"{job}: {returns.size} evaluated seeds; expected at least {LEAST_SEEDS}"
            )
    others = [job for job in found if job != REFERENCE]
    pairs = {job: Pair(found[REFERENCE], found[job]) for job in others}
    (env_steps,) = {one.env_steps for trained in jobs.values() for one in trained}
    lines = [
        f"Mean return of the deterministic evaluation under full pushes after {env_steps:,} env_steps; mean ± standard "
        "deviation over seeds.",
        "",
        "| pushes | return | each seed | difference in standard deviations (95 %) | p | p, Holm |",
        "|---|---|---|---|---|---|",
        f"| {REFERENCE} | {mean_std(found[REFERENCE].tolist())} | {_each(found[REFERENCE])} | | | |",
    ]
    for job, cells in zip(pairs, tested(pairs.values()), strict=True):
        lines.append(f"| {job} | {mean_std(found[job].tolist())} | {_each(found[job])} | {cells} |")
    return "\n".join(lines)


def _each(returns: np.ndarray) -> str:
    return ", ".join(f"{one:.0f}" for one in returns)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="where the figure goes, as docs/figures"
    )
    given = parser.parse_args(arguments)
    try:
        jobs = read(given.run_dir).robots
        print(report(jobs))
        if given.output is not None:
            sides = [{ROBOT: trained} for trained in jobs.values()]
            picture = learning_figures.side_by_side(
                "curriculum", "A curriculum of pushes", list(jobs), sides
            )
            learning_figures.write(given.output, [picture])
    except (OrchestratorError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
