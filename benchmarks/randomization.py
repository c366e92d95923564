"""What domain randomisation costs: CPU time of a training of the quadruped with and without it.

    python -m benchmarks.randomization [--repeats 5] [--only robot,disturbances,terrain] [--json FILE]

The trainings have the hyperparameters of ``jobs/robots.toml`` and alternate within one process,
iteration by iteration. A repeat is the ratio of their CPU times per env_step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

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
DISTURBANCES = {
    "observation.noise": "normal(0, 0.01)",
    "observation.delay": "choice(0, 1)",
    "action.delay": "choice(0, 1, 2)",
    "push.speed": "uniform(0, 0.3)",
}


def cost(what: str, randomize: Mapping[str, str], least: float | None, repeats: int) -> list[Line]:
    from benchmarks.interleaved_learners import SB3Learner, interleave
    from orchestrator.worker.envs import env_factory

    measured = {}
    for name, drawn in (("without", {}), ("with", randomize)):
        spec = replace(quadruped(8), randomize=drawn)
        venv = env_factory.make(spec, ROOT, n_envs=spec.n_envs, seed=spec.seed)
        measured[name] = SB3Learner(built(spec, FAST, env_factory.normalized_env(spec, venv)))
    times = interleave(measured, repeats)
    shares = ratios(times["without"].learner_s, times["with"].learner_s)
    return [at_least(f"quadruped: env_steps/s with {what} / without", shares, least)]


PARTS: dict[str, Callable[[int], list[Line]]] = {
    "robot": functools.partial(cost, "random masses, friction and gains", ROBOT, LEAST),
    "disturbances": functools.partial(cost, "noise, delays and pushes", DISTURBANCES, None),
    "terrain": functools.partial(cost, "rough terrain", {"terrain": "rough(0.03)"}, None),
}


def main() -> None:
    harness.keep_to_one_core()
    print_table(__doc__, PARTS)


if __name__ == "__main__":
    main()
