"""What domain randomisation, and observations that a real robot has, cost: CPU time of a training of
the quadruped with and without them.

    python -m benchmarks.randomization [--repeats 5] [--only robot,history,both] [--json FILE]

The trainings have the hyperparameters of ``jobs/robots.toml`` and alternate within one process,
iteration by iteration. A repeat is the ratio of their CPU times per env_step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks import harness
from benchmarks.harness import ROOT, Line, at_least, print_table
from benchmarks.learner import FAST, built, ratios
from benchmarks.physics_threads import quadruped

LEAST = 0.95
ROBOT = {
    "body.*.mass": "scale(0.8, 1.2)",
    "geom.floor.friction": "uniform(0.4, 1.2)",
    "actuator.*.kp": "scale(0.9, 1.1)",
}
PROPRIOCEPTION = {"observe": "proprioception"}
DISTURBANCES = {
    "observation.noise": "normal(0, 0.01)",
    "observation.delay": "choice(0, 1)",
    "action.delay": "choice(0, 1, 2)",
    "push.speed": "uniform(0, 0.3)",
}


Part = Callable[[int], list[Line]]


def cost(
    what: str,
    without: Mapping[str, Any],
    added: Mapping[str, Any],
    least: float | None,
    repeats: int,
) -> list[Line]:
    """:param without: fields of the job's spec in both trainings; ``added`` are in one of them."""
    from benchmarks.interleaved_learners import SB3Learner, interleave
    from orchestrator.worker.envs import env_factory

    measured = {}
    for name, fields in (("without", without), ("with", {**without, **added})):
        spec = replace(quadruped(8), **fields)
        venv = env_factory.make(spec, ROOT, n_envs=spec.n_envs, seed=spec.seed)
        measured[name] = SB3Learner(built(spec, FAST, env_factory.normalized_env(spec, venv)))
    times = interleave(measured, repeats)
    shares = ratios(times["without"].learner_s, times["with"].learner_s)
    return [at_least(f"quadruped: env_steps/s with {what}", shares, least)]


def drawing(what: str, randomize: Mapping[str, str], least: float | None) -> Part:
    return functools.partial(cost, f"{what} / without", {}, {"randomize": randomize}, least)


def observing(what: str, full: Mapping[str, Any], other: Mapping[str, Any]) -> Part:
    """:param full: options of the task; ``other`` replace them."""
    return functools.partial(cost, what, {"task_options": full}, {"task_options": other}, None)


PARTS: dict[str, Part] = {
    "robot": drawing("random masses, friction and gains", ROBOT, LEAST),
    "disturbances": drawing("noise, delays and pushes", DISTURBANCES, None),
    "terrain": drawing("rough terrain", {"terrain": "rough(0.03)"}, None),
    "proprioception": observing("proprioception / full", {}, PROPRIOCEPTION),
    "history": observing("history = 3 / history = 1, of full", {}, {"history": 3}),
    "both": observing(
        "proprioception with history = 3 / full", {}, {**PROPRIOCEPTION, "history": 3}
    ),
}


def main() -> None:
    harness.keep_to_one_core()
    print_table(__doc__, PARTS)


if __name__ == "__main__":
    main()
