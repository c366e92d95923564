"""What every contender's training uses: the hyperparameters, the stopwatch, and the file that it
writes.

Only Python's standard library is imported here, as this runs in the environments of all contenders.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

N_STEPS = 2048
BATCH_SIZE = 64
N_EPOCHS = 10
LEARNING_RATE = 3e-4
GAMMA = 0.99
GAE_LAMBDA = 0.95
CLIP_RANGE = 0.2
ENT_COEF = 0.0
VF_COEF = 0.5
MAX_GRAD_NORM = 0.5
ADAM_EPS = 1e-5
HIDDEN = (64, 64)
"""Units of the two tanh layers, of the policy and again of the value function."""
EPISODES = 100
"""The last episodes of training, of which the mean return is reported: the sums of the rewards of
gymnasium's robot."""
PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "mujoco",
    "stable_baselines3",
    "sbx-rl",
    "jax",
    "rl-games",
    "envpool",
    "torchrl",
    "tensordict",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line of a runner asks for."""

    contender: str
    robot: str
    env_steps: int
    seed: int
    result: Path


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of an iteration."""

    env_steps: int
    """Of the training so far."""
    wall_s: float
    """By the clock of the machine, and ``cpu_s`` by that of the process."""
    cpu_s: float


class Stopwatch:
    """Times of the ends of iterations, a rollout with its update each.

    The first iteration is not counted: it compiles and warms caches.
    """

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def mark(self, env_steps: int) -> None:
        """An iteration has ended.

        :param env_steps: of the training so far.
        """
        self._marks.append(Mark(env_steps, time.perf_counter(), time.process_time()))

    def write(self, result: Path, returns: Sequence[float]) -> None:
        """Write the result of a training.

        :param returns: of all episodes of the training, or of the last ones, without discount.
        """
        first = self._marks[0]
        last = self._marks[-1]
        counted = last.env_steps - first.env_steps
        wall_s = last.wall_s - first.wall_s
        recent = list(returns)[-EPISODES:]
        record = {
            "env_steps": last.env_steps,
            "counted_env_steps": counted,
            "wall_s": wall_s,
            "cpu_s": last.cpu_s - first.cpu_s,
            "env_steps_per_s": counted / wall_s,
            "episode_return": sum(recent) / len(recent) if recent else None,
            "episodes": len(recent),
            "versions": installed(),
        }
        result.write_text(json.dumps(record), encoding="utf-8")


def iterations(env_steps: int, of_one: int) -> int:
    """Number of iterations for at least ``env_steps``, and at least four, of which the first is not
    counted."""
    return max(4, -(-env_steps // of_one))


def installed() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"python": sys.version.split()[0], **found}


def run(training: Callable[[Asked], None]) -> None:
    """Run a runner with its command line: contender, robot, env_steps, seed, and the file of the
    result."""
    contender, robot, env_steps, seed, result = sys.argv[1:]
    training(Asked(contender, robot, int(env_steps), int(seed), Path(result)))
