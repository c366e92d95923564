"""What every contender's training uses: the hyperparameters, the stopwatch, and the file that it
writes.

Only Python's standard library is imported here, as this runs in the environments of all contenders.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
GOAL_EPISODES = 20
"""The last episodes, whose mean return has to reach the goal of a training that has one: fewer than
for the return that is reported, which follows later."""
TORCH = "torch._dynamo"
"""What torch imports when its first optimiser is made."""
GYMNASIUM = "gymnasium.envs.mujoco"
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
    "mjbatch",
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
    threads: int
    goal: float | None
    """The mean return at which the training ends before it has made all of ``env_steps``."""
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

    The first iteration is not counted for the speed: it compiles and warms caches. The time to the goal
    begins with the stopwatch, before the policy and the environments are made.
    """

    def __init__(self, goal: float | None = None) -> None:
        self._goal = goal
        self._begun_s = time.perf_counter()
        self._goal_s: float | None = None
        self._marks: list[Mark] = []

    def mark(self, env_steps: int, returns: Iterable[float]) -> bool:
        """An iteration has ended. Returns whether the training has reached its goal, and is to end.

        :param env_steps: of the training so far.
        :param returns: of all its episodes, or of the last ones, without discount.
        """
        self._marks.append(Mark(env_steps, time.perf_counter(), time.process_time()))
        if self._goal is None:
            return False
        recent = list(returns)[-GOAL_EPISODES:]
        if len(recent) < GOAL_EPISODES or sum(recent) / len(recent) < self._goal:
            return False
        self._goal_s = self._marks[-1].wall_s - self._begun_s
        return True

    def write(self, result: Path, returns: Iterable[float]) -> None:
        """Write the result of a training.

        :param returns: as for :meth:`mark`.
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
            "env_steps_per_s": counted / wall_s if counted else None,
            "goal_s": self._goal_s,
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


def run(training: Callable[[Asked], None], needed: Mapping[str, Sequence[str]]) -> None:
    """Run a runner with its command line: what is asked, as JSON, and the file of the result.

    :param needed: modules by contender, which are imported before the training, as imports are not part of
        its time.
    """
    command, result = sys.argv[1:]
    asked = Asked(**json.loads(command), result=Path(result))
    for module in needed[asked.contender]:
        importlib.import_module(module)
    training(asked)
