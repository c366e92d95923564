"""Does a policy that was trained with randomisation lose less on changed robots than one that was
trained without?

    python -m benchmarks.randomization_grid [--repeats 5] [--env-steps N] [--run-dir DIR] [--figures FOLDER]

The quadruped, rewarded for its speed as in ``jobs/evolve.toml``, is trained with masses and
friction of ±30 %, and without, ``--repeats`` seeds each. All policies are evaluated on a grid of
mass × friction. What a policy loses is the difference between its mean return over the grid and its
return on the robot of the file, as a share of the latter. With a ``--run-dir``, the same command
resumes.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import search_figures
from benchmarks.harness import ROOT, Line, at_least, print_table, run_quietly, spread
from benchmarks.permutation_tests import Pair, p_value
from orchestrator.analysis import run_reader
from orchestrator.analysis.run_reader import EvaluatedPoint
from orchestrator.analysis.statistics import location
from orchestrator.core.paths import JobPaths
from orchestrator.jobfile import from_mapping
from orchestrator.report import grid_section
from orchestrator.report.grid_section import GridPanel

MASS = "body.*.mass"
FRICTION = "geom.*.friction"
"""Friction is the larger one of two geoms that touch, so that all of them must change."""
SHARES = ("*0.7", "*0.85", "*1", "*1.15", "*1.3")
RANDOMIZE = {MASS: "scale(0.7, 1.3)", FRICTION: "scale(0.7, 1.3)"}
TRAININGS: Mapping[str, Mapping[str, str]] = {"without": {}, "with": RANDOMIZE}
ENV_STEPS = 614_400
DEFAULTS: dict[str, Any] = {
    "preset": "quick",
    "task": "forward",
    "task_options": {"forward_reward_weight": 5.0, "healthy_reward": 0.2},
    "eval_episodes": 4,
    "preview": False,
    "checkpoint_every": "10min",
}


def grid(repeats: int, *, env_steps: int, run_dir: Path | None, figures: Path | None) -> list[Line]:
    """Train, evaluate on the grid, and compare."""
    with tempfile.TemporaryDirectory() as temporary:
        points = evaluated(repeats, env_steps, run_dir or Path(temporary) / "run")
    search_figures.write(
        figures, "randomization-grid", grid_section.draw, [_panel(*one) for one in points.items()]
    )
    losses = {name: list(map(loss, seeds)) for name, seeds in points.items()}
    worst = {name: [min(map(mean_of, seed)) for seed in seeds] for name, seeds in points.items()}
    own = {name: list(map(own_return, seeds)) for name, seeds in points.items()}
    means = {name: list(map(mean_return, seeds)) for name, seeds in points.items()}
    what = f"quadruped, {env_steps:,} env_steps, ±30 % mass × friction"
    lines = [
        at_least(f"{what}, {name} randomisation: return on the robot of the file", own[name])
        for name in own
    ]
    lines += [
        at_least(f"{what}, {name} randomisation: mean return over the grid", means[name])
        for name in means
    ]
    lines += [
        at_least(f"{what}, {name} randomisation: lowest return on the grid", worst[name])
        for name in worst
    ]
    lines += [
        Line(
            what=f"{what}, {name} randomisation: share of the return that the grid costs",
            measured=spread(values),
            target="",
            good=True,
            values=values,
        )
        for name, values in losses.items()
    ]
    if repeats > 1:
        pair = Pair(np.array(losses["without"]), np.array(losses["with"]))
        p = p_value([pair])
        lines.append(
            Line(
                what=f"{what}: losses with against without, permutation test",
                measured=f"p = {p:.3f}, {pair.difference:+.2f} standard deviations",
                target="less, p ≤ 0.05",
                good=p <= 0.05 and pair.difference < 0,
                values=[p],
            )
        )
    return lines


def evaluated(
    repeats: int, env_steps: int, run_dir: Path
) -> dict[str, list[Sequence[EvaluatedPoint]]]:
    """Name of the training → for each seed the points of the grid."""
    content = {
        "name": "randomization-grid",
        "defaults": {**DEFAULTS, "total_timesteps": env_steps, "seeds": list(range(repeats))},
        "jobs": [
            {
                "name": name,
                "xml": str(ROOT / "mjcf/quadruped.xml"),
                "randomize": dict(randomize),
                "evaluate": {MASS: list(SHARES), FRICTION: list(SHARES)},
            }
            for name, randomize in TRAININGS.items()
        ],
    }
    experiment = from_mapping(content, source="benchmarks.randomization_grid", base=ROOT)
    result = run_quietly(experiment, run_dir)
    points: dict[str, list[Sequence[EvaluatedPoint]]] = {name: [] for name in TRAININGS}
    for one in result:
        assert one.ok, one.error
        assert one.job_id is not None
        assert one.job_dir is not None
        file = run_reader.evaluation(JobPaths(one.job_dir).eval)
        assert file is not None
        points[one.job_id.rpartition("-s")[0]].append(file["grid"])
    return points


def loss(points: Sequence[EvaluatedPoint]) -> float:
    """1 − mean return over the grid / return on the robot of the file."""
    return 1 - mean_return(points) / own_return(points)


def mean_return(points: Sequence[EvaluatedPoint]) -> float:
    return float(np.mean(list(map(mean_of, points))))


def own_return(points: Sequence[EvaluatedPoint]) -> float:
    return next(mean_of(point) for point in points if set(point["at"].values()) == {"*1"})


def mean_of(point: EvaluatedPoint) -> float:
    assert point["mean"] is not None
    return point["mean"]


def _panel(name: str, seeds: Sequence[Sequence[EvaluatedPoint]]) -> GridPanel:
    """Medians over the seeds, as shares of the return on the robot of the file."""
    shares = np.array(
        [[mean_of(point) / own_return(points) for point in points] for points in seeds]
    )
    return GridPanel(
        f"{name} randomisation",
        (MASS, FRICTION),
        (SHARES, SHARES),
        [
            {"at": point["at"], "mean": location(values).facts()}
            for point, values in zip(seeds[0], shares.T.tolist(), strict=True)
        ],
    )


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--env-steps", type=int, default=ENV_STEPS, help="of each training")
    options.add_argument("--run-dir", type=Path, metavar="DIR", help="run directory, which is kept")
    options.add_argument("--figures", type=Path, metavar="FOLDER", help="write the figure there")
    given, _ = options.parse_known_args()
    part = functools.partial(
        grid, env_steps=given.env_steps, run_dir=given.run_dir, figures=given.figures
    )
    print_table(__doc__, {"grid": part}, options)


if __name__ == "__main__":
    main()
