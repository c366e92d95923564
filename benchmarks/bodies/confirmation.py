"""Real searches among bodies of a robot that had no part in the choice of what ``sampler = "auto"``
is: does it choose better ones than random points?

Each of :data:`SAMPLERS` searches with the same budgets and seeds. Of each search two bodies are
chosen, the best seen and the best estimated. All of them are then trained again, with seeds that no
search has had, and a body is worth the mean of these. The question is that of the first of
:func:`_comparisons`; the others say what part the choice has in the answer. The test is that of two
groups, although the n-th searches of both samplers train with the same seed: it takes no advantage
of that.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import orchestrator
from benchmarks import table_of_bodies
from benchmarks.harness import Line, at_least, both_ways, run_quietly
from benchmarks.permutation_tests import Pair, interval, p_value
from orchestrator.features.search import ranking
from orchestrator.jobfile import from_mapping
from orchestrator.jobfile.job_names import without_seed

ROBOT = "eel"
SAMPLERS = ("random", "auto")
CHOICES: Mapping[str, str | None] = {"seen": None, "estimated": ranking.ESTIMATE}
"""Which of the best is chosen → what ``best --by`` takes for it."""
FRESH_SEEDS = tuple(range(1_000, 1_005))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Searches by one sampler, of each of which a body is chosen in one way."""

    sampler: str
    choice: str

    def __str__(self) -> str:
        return f"{self.sampler}, the best {self.choice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenBody:
    """What one search has come to."""

    arm: Arm
    search_seed: int
    params: Mapping[str, float]

    @property
    def job_name(self) -> str:
        return f"{self.arm.sampler}-{self.arm.choice}-{self.search_seed:03d}"


def confirmation(repeats: int, *, run_dir: Path | None) -> list[Line]:
    """:param repeats: searches by each sampler.
    :param run_dir: where they are kept, and go on if they are there; None: nowhere.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = run_dir or Path(temporary)
        chosen = [
            body
            for seed in range(repeats)
            for sampler in both_ways(seed, *SAMPLERS)
            for body in chosen_bodies(sampler, seed, folder / f"{sampler}-{seed:03d}")
        ]
        worth = true_values(chosen, folder / "chosen")
    return lines(repeats, worth)


def chosen_bodies(sampler: str, seed: int, run_dir: Path) -> list[ChosenBody]:
    """Run, or resume, a search, and choose a body of it in each of the :data:`CHOICES`."""
    content = dict(table_of_bodies.job_file(ROBOT))
    content["defaults"] = {**content["defaults"], "seeds": [seed]}
    content["search"] = {**content["search"], "sampler": sampler, "seed": seed}
    run(content, run_dir)
    chosen = []
    for choice, by in CHOICES.items():
        (best,) = ranking.read(run_dir, 1, by).shown
        params = {key.removeprefix("params."): value for key, value in best.point.items()}
        arm = Arm(sampler=sampler, choice=choice)
        chosen.append(ChosenBody(arm=arm, search_seed=seed, params=params))
    return chosen


def true_values(chosen: Sequence[ChosenBody], run_dir: Path) -> dict[Arm, list[float]]:
    """The mean evaluation over :data:`FRESH_SEEDS` of each body, by arm in the order of the
    searches. A training that diverges counts as 0, what a robot earns that does not move.

    :raises RuntimeError: a training has failed for another reason.
    """
    content = dict(table_of_bodies.job_file(ROBOT))
    del content["search"]
    (job,) = content["jobs"]
    content["defaults"] = {**content["defaults"], "seeds": list(FRESH_SEEDS)}
    content["jobs"] = [{**job, "name": body.job_name, "params": body.params} for body in chosen]
    results = run(content, run_dir)
    evaluations: dict[str, list[float]] = {body.job_name: [] for body in chosen}
    for result in results:
        assert result.job_id is not None
        if result.eval_mean is None and "diverged" not in (result.error or ""):
            raise RuntimeError(f"{result.job_id}: {result.error}")
        evaluations[without_seed(result.job_id, result.seed)].append(result.eval_mean or 0.0)
    worth: dict[Arm, list[float]] = {}
    for body in sorted(chosen, key=lambda body: body.search_seed):
        worth.setdefault(body.arm, []).append(statistics.fmean(evaluations[body.job_name]))
    return worth


def run(content: Mapping[str, Any], run_dir: Path) -> orchestrator.ExperimentResult:
    """Run, or resume, what would be in a job file of this folder.

    :raises RuntimeError: it has not come to its end.
    """
    experiment = from_mapping(content, source="benchmarks.bodies", base=table_of_bodies.FOLDER)
    done = run_quietly(experiment, run_dir)
    if done.exit_code not in (0, 1):  # 1: some bodies could not be trained
        raise RuntimeError(f"{run_dir}: ended with exit code {done.exit_code}")
    return done


def lines(searches: int, worth: Mapping[Arm, Sequence[float]]) -> list[Line]:
    content = table_of_bodies.job_file(ROBOT)
    search = content["search"]
    what = (
        f"{searches} searches of {search['trials']} trials of {ROBOT}, "
        f"{content['defaults']['total_timesteps']:,} env_steps each, {len(search['space'])} dimensions"
    )
    found = [
        at_least(f"{what}, {arm}: its body, mean of {len(FRESH_SEEDS)} fresh seeds", values)
        for arm, values in worth.items()
    ]
    if searches < 2:
        return found
    return found + [_compared(what, *pair, worth) for pair in _comparisons()]


def _comparisons() -> list[tuple[Arm, Arm]]:
    """What is compared with what: the first is the question, as it was asked before any search was
    run.
    """
    random, auto = SAMPLERS
    seen, estimated = CHOICES
    random_seen = Arm(sampler=random, choice=seen)
    auto_estimated = Arm(sampler=auto, choice=estimated)
    return [
        (random_seen, auto_estimated),
        (random_seen, Arm(sampler=auto, choice=seen)),
        (Arm(sampler=random, choice=estimated), auto_estimated),
    ]


def _compared(what: str, one: Arm, other: Arm, worth: Mapping[Arm, Sequence[float]]) -> Line:
    pair = Pair(np.array(worth[one]), np.array(worth[other]))
    p = p_value([pair])
    low, high = interval([pair])
    is_question = (one, other) == _comparisons()[0]
    p_text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return Line(
        what=f"{what}: {other}, against {one}, permutation test",
        measured=f"{p_text}, {pair.difference:+.2f} ({low:+.2f} – {high:+.2f}) standard deviations",
        target="better, p ≤ 0.05" if is_question else "",
        good=not is_question or (p <= 0.05 and pair.difference > 0),
        values=[p, pair.difference, low, high],
    )
