"""What a search learns for its env_steps: rungs, inheritance and samplers, each against training
everything.

All robots are the quadruped of ``jobs/variants.toml`` and ``jobs/evolve.toml``, with their
hyperparameters. What is compared are env_steps and returns, not times: what else the machine does
changes nothing but the order in which trials of an asynchronous search end.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import orchestrator
from benchmarks import search_figures
from benchmarks.harness import ROOT, Line, at_least, at_most, run_quietly
from benchmarks.permutation_tests import Pair, p_value
from benchmarks.search_figures import Curve
from orchestrator.analysis import run_reader
from orchestrator.core.paths import JobPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import report_data
from orchestrator.jobfile import from_mapping
from orchestrator.jobfile.job_names import without_seed

ROBOT = ROOT / "mjcf/quadruped.xml"
HIPS = "model.body.*_thigh.pos"
SERVOS = "model.actuator.*.forcerange"
LEARNING_RATE = "ppo.learning_rate"
JOB: dict[str, Any] = {
    "task": "forward",
    "task_options": {"forward_reward_weight": 5.0, "healthy_reward": 0.2},
    "n_envs": 8,
    "eval_episodes": 4,
    "preview": False,
    "checkpoint_every": 1_000_000_000,
    "ppo": {
        "learning_rate": "linear(1e-3, 0)",
        "n_steps": 256,
        "batch_size": 256,
        "n_epochs": 8,
        "gamma": 0.98,
    },
    "resources": {"start": "fork"},
}

GRID_ENV_STEPS = 81_920
MATRIX: dict[str, list[Any]] = {
    HIPS: ["*0.7", "*0.9", "*1.1", "*1.3"],
    SERVOS: ["*0.6", "*0.9", "*1.2", "*1.6"],
    LEARNING_RATE: [1e-4, 3e-4, 1e-3, 3e-3],
}
"""64 points."""
BOX: dict[str, dict[str, Any]] = {
    HIPS: {"low": 0.7, "high": 1.3, "multiply": True},
    SERVOS: {"low": 0.6, "high": 1.6, "log": True, "multiply": True},
    LEARNING_RATE: {"low": 1e-4, "high": 3e-3, "log": True},
}
"""The same space, without gaps."""
RUNGS: dict[str, Any] = {"kind": "asha", "min_env_steps": 10_240, "factor": 3}
RUNG_EPISODES = 16
"""Rungs compare the last two episodes of each environment: 100 episodes would be the whole
training."""

WIDE: dict[str, dict[str, Any]] = {
    **BOX,
    "ppo.gamma": {"low": 0.9, "high": 0.995},
    "ppo.ent_coef": {"low": 1e-4, "high": 1e-1, "log": True},
    "ppo.n_epochs": {"low": 1, "high": 12},
}
"""Six dimensions around usual values: at most points the robot stands or shuffles, at some it walks
well."""
SAMPLED_ENV_STEPS = 61_440
SAMPLED_TRIALS = 60
SAMPLERS = ("random", "tpe")
"""The first is what the others are compared with."""

VARIANTS = ROOT / "jobs/variants.toml"
CHILD_ENV_STEPS = 122_880


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Every point of :data:`MATRIX` trained to its end with one seed, and what rungs had chosen by
    then."""

    values: Mapping[str, float]
    """``eval_mean`` by the name of a job without its seed."""
    error: float
    """The standard error of the best of them over the episodes of its evaluation."""
    chosen: str
    """The best of those that ASHA has let train to their end."""
    spent: int
    """env_steps when ASHA had chosen."""
    whole: int
    """env_steps of training all of them."""

    @property
    def best(self) -> str:
        """The choice after training all of them."""
        return max(self.values, key=self.values.__getitem__)


def asha(repeats: int) -> list[Line]:
    """Rungs over a matrix of 64 points, against training each to its end.

    A choice is judged twice. In its own seed, its policy is compared with the best policy of all
    points. But the best value of one seed is partly chance. So the choice's point is also judged by
    its mean over all seeds, and so is the choice after training all points to their ends.
    """
    grids = [grid(seed) for seed in range(repeats)]
    near = [each.values[each.chosen] >= each.values[each.best] - each.error for each in grids]
    ratios = [each.values[each.chosen] / each.values[each.best] for each in grids]
    means = {
        name: statistics.fmean(each.values[name] for each in grids) for name in grids[0].values
    }
    best = max(means, key=means.__getitem__)
    error = (
        statistics.stdev(each.values[best] for each in grids) / repeats**0.5 if repeats > 1 else 0.0
    )
    what = f"ASHA on {len(means)} points of quadruped"
    lines = [
        at_most(
            f"{what}: env_steps / training all to the end",
            [each.spent / each.whole for each in grids],
            1 / 3,
        ),
        _within(
            f"{what}: choices within a standard error of the best policy of the same seed",
            near,
            ratios,
        ),
        at_least(f"{what}: eval_mean of the choice / of the best policy of the same seed", ratios),
    ]
    for title, choices, is_asha in (
        (what, [each.chosen for each in grids], True),
        ("the same, chosen after training all to the end", [each.best for each in grids], False),
    ):
        found = [means[choice] for choice in choices]
        near = [mean >= means[best] - error for mean in found]
        title_near = (
            f"{title}: choices whose mean over the seeds is within a standard error of the best"
        )
        lines += [
            _within(title_near, near, found, has_target=is_asha),
            at_least(
                f"{title}: mean of the choice / of the best", [mean / means[best] for mean in found]
            ),
        ]
    return lines


def _within(
    what: str, near: Sequence[bool], values: Sequence[float], *, has_target: bool = True
) -> Line:
    """How many choices are ``near``; the target is all of them."""
    measured = f"{sum(near)} of {len(near)}"
    target = f"{len(near)} of {len(near)}" if has_target else ""
    return Line(
        what=what, measured=measured, target=target, good=all(near) or not has_target, values=values
    )


@functools.cache
def grid(seed: int) -> Grid:
    """Train the matrix with rungs, and then what waits there to its end."""
    with tempfile.TemporaryDirectory() as name:
        defaults = {**JOB, "ppo": _rung_ppo(), "total_timesteps": GRID_ENV_STEPS, "seeds": [seed]}
        content = {
            "defaults": defaults,
            "jobs": [{"name": "quadruped", "xml": str(ROBOT), "matrix": MATRIX}],
        }
        first = run(Path(name), {**content, "scheduler": RUNGS})
        finished = {
            _point(result): result.eval_mean
            for result in first
            if result.ok and result.eval_mean is not None
        }
        every = run(Path(name), content)
        assert every.ok
        return Grid(
            values={
                _point(result): result.eval_mean for result in every if result.eval_mean is not None
            },
            chosen=max(finished, key=lambda point: finished[point]),
            error=_standard_error(max(every, key=orchestrator.Result.fitness)),
            spent=sum(result.env_steps for result in first),
            whole=sum(result.env_steps for result in every),
        )


def _rung_ppo() -> dict[str, Any]:
    return {**JOB["ppo"], "stats_window_size": RUNG_EPISODES}


def inheritance(repeats: int, *, figures: Path | None) -> list[Line]:
    """env_steps of each body of ``jobs/variants.toml`` to the return of the unchanged one, with its
    policy or not."""
    ratios = []
    children = list[tuple[int, int]]()
    for seed in range(repeats):
        with tempfile.TemporaryDirectory() as name:
            pairs = _pairs(Path(name), seed)
        children += pairs
        ratios.append(statistics.median(inherited / alone for inherited, alone in pairs))
    search_figures.write(
        figures, "search-inheritance", search_figures.children, children, CHILD_ENV_STEPS
    )
    what = "bodies of variants.toml: env_steps to the parent's return, inherited / from nothing, median of 24"
    return [at_most(what, ratios, 1 / 3)]


def _pairs(folder: Path, seed: int) -> list[tuple[int, int]]:
    content = tomllib.loads(VARIANTS.read_text(encoding="utf-8"))
    defaults = {
        **content["defaults"],
        "seeds": [seed],
        "eval_episodes": 0,
        "resources": JOB["resources"],
    }
    body: dict[str, Any] = {"xml": str(ROBOT)}
    (parent,) = run(folder / "parent", {"defaults": defaults, "jobs": [{**body, "name": "parent"}]})
    assert parent.ok
    assert parent.ep_rew_mean is not None
    body["matrix"] = content["jobs"][0]["matrix"]
    both = [{**body, "name": "alone"}, {**body, "name": "child", "init": str(parent.model)}]
    defaults["total_timesteps"] = CHILD_ENV_STEPS
    children = run(folder / "children", {"defaults": defaults, "jobs": both})
    assert children.ok
    needed = [_needed(result, parent.ep_rew_mean) for result in children]
    return list(zip(needed[len(needed) // 2 :], needed[: len(needed) // 2], strict=True))


def _standard_error(result: orchestrator.Result) -> float:
    assert result.job_dir is not None
    evaluation = run_reader.evaluation(JobPaths(result.job_dir).eval)
    assert evaluation is not None
    std = evaluation["deterministic"]["std"]
    assert std is not None
    return float(std / (JOB["eval_episodes"] - 1) ** 0.5)


def _needed(result: orchestrator.Result, value: float) -> int:
    """env_steps until the mean return was first at least ``value``; all of them if it never was."""
    assert result.job_dir is not None
    curve = run_reader.learning_curve(JobPaths(result.job_dir).progress_csv)
    return next((int(env_steps) for env_steps, mean in curve if mean >= value), CHILD_ENV_STEPS)


def samplers(repeats: int, *, figures: Path | None) -> list[Line]:
    """Random points against samplers that learn from values, at equal env_steps."""
    curves: dict[str, list[Curve]] = {name: [] for name in SAMPLERS}
    settings = {
        "total_timesteps": SAMPLED_ENV_STEPS,
        "trials": SAMPLED_TRIALS,
        "eval_episodes": 2,
        "order": "fixed",
    }
    for seed, sampler in itertools.product(range(repeats), SAMPLERS):
        curves[sampler].append(search(seed, space=WIDE, sampler=sampler, **settings))
    search_figures.write(figures, "search-samplers", search_figures.best_so_far, curves)
    found = {sampler: [curve.values[-1] for curve in each] for sampler, each in curves.items()}
    what = f"{SAMPLED_TRIALS} trials of {SAMPLED_ENV_STEPS:,} env_steps in {len(WIDE)} dimensions"
    lines = [
        at_least(f"{what}, {sampler}: best eval_mean", values) for sampler, values in found.items()
    ]
    return lines + [_against_random(what, sampler, found) for sampler in SAMPLERS[1:]]


def _against_random(what: str, sampler: str, found: Mapping[str, Sequence[float]]) -> Line:
    """:param found: the best values by sampler, one for each seed."""
    pair = Pair(np.array(found["random"]), np.array(found[sampler]))
    several = len(found[sampler]) > 1
    p = p_value([pair]) if several else 1.0
    return Line(
        what=f"{what}: {sampler} against random, permutation test",
        measured=f"p = {p:.3f}, {pair.difference:+.2f} standard deviations"
        if several
        else "one seed",
        target="better, p ≤ 0.05",
        good=p <= 0.05 and pair.difference > 0,
        values=[p],
    )


def together(repeats: int, *, figures: Path | None) -> list[Line]:
    """CMA-ES, rungs and inheritance: env_steps until a robot is as good as the best of the grid.

    Beside it, random points with rungs and inheritance, and what both have found for a quarter of
    the grid's env_steps.
    """
    ratios = []
    curves = list[Curve]()
    found: dict[str, list[float]] = {"random": [], "cmaes": []}
    for seed in range(repeats):
        reference = grid(seed)
        budget = reference.whole // 4
        settings = {
            "total_timesteps": GRID_ENV_STEPS,
            "max_env_steps": budget,
            "start": "nearest",
        }
        for sampler, values in found.items():
            own = {"sampler": sampler, "scheduler": RUNGS, "ppo": _rung_ppo()}
            curve = search(seed, space=BOX, trials=64, **own, **settings)
            values.append(curve.best(budget))
        curves.append(curve)
        needed = curve.until(reference.values[reference.best])
        ratios.append(0.0 if needed is None else reference.whole / needed)
    grids = [(one.values[one.best], one.whole) for one in map(grid, range(repeats))]
    search_figures.write(figures, "search-together", search_figures.beside_grids, curves, grids)
    what = "env_steps of 64 points of quadruped / of CMA-ES, ASHA and inheritance to the same eval_mean (0: never)"
    equal = "with ASHA and inheritance, at a quarter of these env_steps"
    lines = [
        at_least(f"{sampler} {equal}: best eval_mean", values) for sampler, values in found.items()
    ]
    return [at_least(what, ratios, 4), *lines, _against_random(equal, "cmaes", found)]


def run(run_dir: Path, content: Mapping[str, Any]) -> orchestrator.ExperimentResult:
    """Run, or resume, what would be in a job file."""
    experiment = from_mapping(
        {"name": "quadruped", **content}, source="benchmarks.search", base=ROOT
    )
    return run_quietly(experiment, run_dir)


def _point(result: orchestrator.Result) -> str:
    assert result.job_id is not None
    return without_seed(result.job_id, result.seed)


def search(seed: int, **settings: Any) -> Curve:
    """Run a search, and read its best value so far."""
    with tempfile.TemporaryDirectory() as name:
        one = orchestrator.Search(
            xml=ROBOT, run_dir=Path(name) / "run", seed=seed, seeds=[seed], **{**JOB, **settings}
        )
        one.run()
        paths = run_directory.existing_run(one.run_dir)
        with run_directory.reading_ledger(paths) as ledger:
            facts = report_data.gather(paths, ledger)
    assert facts is not None
    steps = facts["improvements"]["eval_mean"]
    return Curve(
        env_steps=[step["env_steps"] for step in steps],
        values=[step["value"] for step in steps],
        whole=facts["env_steps"],
    )
