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
    *("torch", "numpy", "gymnasium", "mujoco", "stable_baselines3"),
    *("sbx-rl", "jax", "rl-games", "envpool", "torchrl", "tensordict"),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line of a runner asks for."""

    contender: str
    robot: str
    env_steps: int
    seed: int
    result: Path


class Stopwatch:
    """Times of the ends of iterations, a rollout with its update each.

    The first iteration is not counted: it compiles and warms caches.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, float, float]] = []

    def mark(self, env_steps: int) -> None:
        """An iteration has ended.

        :param env_steps: of the training so far.
        """
        self._marks.append((env_steps, time.perf_counter(), time.process_time()))

    def write(self, result: Path, returns: Sequence[float]) -> None:
        """Write the result of a training.

        :param returns: of all episodes of the training, or of the last ones, without discount.
        """
        (first, begun, cpu_begun), (last, ended, cpu_ended) = self._marks[0], self._marks[-1]
        recent = list(returns)[-EPISODES:]
        record = {
            "env_steps": last,
            "counted_env_steps": last - first,
            "wall_s": ended - begun,
            "cpu_s": cpu_ended - cpu_begun,
            "env_steps_per_s": (last - first) / (ended - begun),
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
