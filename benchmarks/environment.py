"""The cost of the batched environment over bare physics, and its gain over gymnasium's.

    python -m benchmarks.environment [--repeats 5] [--only physics,gymnasium]

All on one core with one thread. A and B of a ratio go through the very same states with the same
actions, in turns within one process, now A first and now B. A repeat is the ratio of the CPU times
of all its turns (nothing here waits, so on an idle machine they are the wall's); the table gives
the repeats' median and range.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bare_physics import BarePhysics, trajectory_of_simulation
from benchmarks.harness import (
    ROOT,
    Line,
    at_least,
    both_ways,
    cpu_timed,
    keep_to_one_core,
    print_table,
    spread,
)

if TYPE_CHECKING:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecEnv

    from orchestrator.worker.envs.vec_env import MujocoVecEnv

N_ENVS = 8
TURNS = 6
"""Turns of each side in a repeat."""
STEPS = 250
"""Control steps per turn: two thousand env_steps with eight environments."""
TASKS = ("balance", "forward", "reach")
"""A robot is measured with the first of these tasks that fits it."""
OVER_PHYSICS: Mapping[str, float] = {"quadruped": 0.85, "runner": 0.75}
OVER_GYMNASIUM: Mapping[str, float] = {"Ant-v5": 1.1, "HalfCheetah-v5": 1.5}
PPO_ROBOT = "HalfCheetah-v5"
PPO_SETTINGS: tuple[tuple[str, dict[str, int], float | None], ...] = (
    ("n_steps 256, batch_size 512", {"n_steps": 256, "batch_size": 512}, 1.15),
    ("n_steps 256, batch_size 256", {"n_steps": 256, "batch_size": 256}, None),
    ("default hyperparameters", {}, None),
)
"""Description, settings, target. The smaller the minibatches, the larger the share of the update,
which is the same."""
MORE_ENVS = 256


def physics(repeats: int) -> list[Line]:
    """The batched environment against a loop of ``mj_step`` over one ``MjData`` per environment,
    for every robot."""
    lines = []
    for xml in sorted((ROOT / "mjcf").glob("*.xml")):
        venv, task = _fitting(xml)
        run = functools.partial(_against_bare, venv)
        wanted = OVER_PHYSICS.get(xml.stem)
        lines.append(
            _line(
                f"steps/s of {N_ENVS} environments / bare mj_step, {xml.stem} ({task})",
                run,
                wanted,
                repeats,
            )
        )
    return lines


def _fitting(xml: Path) -> tuple[MujocoVecEnv, str]:
    from orchestrator.worker.envs.vec_env import MujocoVecEnv

    problems = []
    for task in TASKS:
        try:
            return MujocoVecEnv(xml, task, n_envs=N_ENVS, seed=0), task
        except ValueError as problem:
            problems.append(str(problem))
    raise ValueError(f"{xml}: no task fits: {'; '.join(problems)}")


def _against_bare(venv: MujocoVecEnv) -> tuple[float, float]:
    """Seconds of the environment and of bare physics, over the same turns.

    Each turn is walked through once unmeasured, which tells at which steps from which states
    episodes begin; the bare loop then starts its own there, so that contacts are the same ones.
    """
    import numpy as np

    simulation = venv.simulation
    bounds = simulation.task.actions
    bare = BarePhysics(simulation.model, N_ENVS, simulation.task.frame_skip)
    rng = np.random.default_rng(0)
    seconds = [0.0, 0.0]
    venv.reset()
    for turn in range(TURNS):
        actions = rng.uniform(bounds.low, bounds.high, (STEPS, N_ENVS, simulation.model.nu)).astype(
            np.float32
        )
        before = simulation.get_state()
        trajectory = trajectory_of_simulation(simulation, actions)
        for side in both_ways(turn, 0, 1):
            if side == 0:
                simulation.set_state(before)
                seconds[side] += cpu_timed(functools.partial(_walk, venv, actions))[0]
            else:
                seconds[side] += bare.seconds(trajectory)
    return seconds[0], seconds[1]


def over_gymnasium(repeats: int) -> list[Line]:
    """The batched environment against ``DummyVecEnv`` from Stable-Baselines3's ``make_vec_env``."""
    from orchestrator.core.task_names import GYMNASIUM_TASKS

    lines = []
    for name in (task.removeprefix("gymnasium:") for task in GYMNASIUM_TASKS):
        run = functools.partial(_against_dummy, *_both(name))
        what = f"steps/s of {N_ENVS} environments / the same in a DummyVecEnv, {name}"
        lines.append(_line(what, run, OVER_GYMNASIUM.get(name), repeats))
    return lines


def _both(name: str) -> tuple[MujocoVecEnv, VecEnv]:
    from stable_baselines3.common.env_util import make_vec_env

    from orchestrator.worker.envs.vec_env import MujocoVecEnv
    from orchestrator.worker.tasks import gymnasium_tasks

    task = f"gymnasium:{name}"
    ours = MujocoVecEnv(gymnasium_tasks.default_xml(task), task, n_envs=N_ENVS, seed=0)
    return ours, make_vec_env(name, n_envs=N_ENVS, seed=0)


def _against_dummy(ours: MujocoVecEnv, theirs: VecEnv) -> tuple[float, float]:
    """Seconds of each. Both start from generators in the same state, so that their episodes are
    equal."""
    import numpy as np
    from gymnasium.utils import seeding

    rng = np.random.default_rng(0)
    ours.simulation.generators = [seeding.np_random(env)[0] for env in range(N_ENVS)]
    theirs.seed(0)
    ours.reset()
    theirs.reset()
    seconds = [0.0, 0.0]
    for turn in range(TURNS):
        space: Any = ours.action_space
        size = (STEPS, N_ENVS, *space.shape)
        actions = rng.uniform(space.low, space.high, size).astype(np.float32)
        last: list[Any] = [None, None]
        for side in both_ways(turn, 0, 1):
            walk = functools.partial(_walk, (ours, theirs)[side], actions)
            took_s, last[side] = cpu_timed(walk)
            seconds[side] += took_s
        assert np.abs(last[0] - last[1]).max() < 1e-9, "the environments took different ways"
    return seconds[0], seconds[1]


def _walk(venv: VecEnv, actions: Any) -> Any:
    """Returns the last observations."""
    for action in actions:
        observations = venv.step(action)[0]
    return observations


def ppo(repeats: int) -> list[Line]:
    """Stock PPO over the batched environment against ``DummyVecEnv``; whole iterations, update
    included."""
    lines = []
    for words, settings, wanted in PPO_SETTINGS:
        run = functools.partial(_against_stock, settings)
        what = f"env_steps/s of stock PPO, {words} / the same over a DummyVecEnv, {PPO_ROBOT}"
        lines.append(_line(what, run, wanted, repeats))
    return lines


def _against_stock(settings: dict[str, int]) -> tuple[float, float]:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger

    torch.set_num_threads(1)
    sides = [PPO("MlpPolicy", venv, seed=0, device="cpu", **settings) for venv in _both(PPO_ROBOT)]  # type: ignore[arg-type]
    for side in sides:
        # Its own logger makes a folder in the temporary directory at every call.
        side.set_logger(Logger(None, []))
        _learn(side)  # warm-up: torch loads and compiles at the first call
    seconds = [0.0, 0.0]
    for turn in range(2):
        for number in both_ways(turn, 0, 1):
            seconds[number] += cpu_timed(functools.partial(_learn, sides[number]))[0]
    return seconds[0], seconds[1]


def _learn(model: PPO) -> None:
    model.learn(model.n_steps * model.n_envs, reset_num_timesteps=False)


def memory(repeats: int) -> list[Line]:
    """Resident memory per additional environment; each side in a process of its own."""
    program = (
        "import sys, psutil, numpy as np\n"
        "from orchestrator.worker.envs.vec_env import MujocoVecEnv\n"
        "venv = MujocoVecEnv(sys.argv[1], 'forward', n_envs=int(sys.argv[2]), seed=0)\n"
        "venv.reset()\n"
        "for _ in range(20): venv.step(np.zeros((venv.num_envs, *venv.action_space.shape), np.float32))\n"
        "print(psutil.Process().memory_info().rss)\n"
    )
    lines = []
    for robot in ("hopper", "quadruped"):
        grown = []
        for number in range(repeats):
            resident = {}
            for n_envs in both_ways(number, N_ENVS, N_ENVS + MORE_ENVS):
                command = [
                    sys.executable,
                    "-c",
                    program,
                    str(ROOT / "mjcf" / f"{robot}.xml"),
                    str(n_envs),
                ]
                done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
                resident[n_envs] = int(done.stdout)
            grown.append((resident[N_ENVS + MORE_ENVS] - resident[N_ENVS]) / MORE_ENVS / 2**20)
        good = statistics.median(grown) < 1.0
        what = f"resident MiB for each environment more, {robot}"
        lines.append(Line(what=what, measured=spread(grown), target="< 1", good=good))
    return lines


def _line(
    what: str, run: Callable[[], tuple[float, float]], wanted: float | None, repeats: int
) -> Line:
    """:param run: returns seconds of the batched environment and of the reference."""
    ratios = []
    for _ in range(repeats):
        ours, other = run()
        ratios.append(other / ours)
    return at_least(what, ratios, wanted)


PARTS: dict[str, Callable[[int], list[Line]]] = {
    "physics": physics,
    "gymnasium": over_gymnasium,
    "ppo": ppo,
    "memory": memory,
}


def main() -> None:
    keep_to_one_core()
    print_table(__doc__, PARTS)


if __name__ == "__main__":
    main()
