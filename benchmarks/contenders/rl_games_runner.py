"""Trains rl_games' PPO over EnvPool, with the common hyperparameters or with those that rl_games
recommends."""

from __future__ import annotations

import collections
import contextlib
import importlib
from pathlib import Path
from typing import Any

from benchmarks.contenders import stopwatch
from benchmarks.contenders.stopwatch import Asked, Stopwatch

ON_ONE_CORE = {
    "device": "cpu",
    "mixed_precision": False,
    "save_best_after": 10**9,
    "print_stats": False,
}
NEEDED = (
    stopwatch.TORCH,
    "envpool.mujoco.gym",
    "rl_games.common.algo_observer",
    "rl_games.torch_runner",
    "yaml",
)
"""Modules that the trainings import."""
PARTS = {"HalfCheetah-v5": "halfcheetah", "Ant-v5": "ant"}


class GoalReached(Exception):
    """Ends a training, which rl_games has no other way for."""


def own_settings(robot: str) -> dict[str, Any]:
    """The parameters in the package's file for this robot over EnvPool."""
    yaml = importlib.import_module("yaml")
    package = importlib.import_module("rl_games")
    file = Path(package.__path__[0]) / "configs" / "mujoco" / f"{PARTS[robot]}_envpool.yaml"
    params: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["params"]
    return params


def common_settings() -> dict[str, Any]:
    """The hyperparameters of all contenders, in rl_games' words.

    ``tau`` is GAE's lambda. The loss has half of the squared error times ``critic_coef``: 1 is 0.5
    elsewhere.
    """
    continuous = {
        "mu_activation": "None",
        "sigma_activation": "None",
        "mu_init": {"name": "orthogonal_initializer", "gain": 0.01},
        "sigma_init": {"name": "const_initializer", "val": 0},
        "fixed_sigma": True,
    }
    orthogonal = {"name": "orthogonal_initializer", "gain": 2**0.5}
    return {
        "algo": {"name": "a2c_continuous"},
        "model": {"name": "continuous_a2c_logstd"},
        "network": {
            "name": "actor_critic",
            "separate": True,
            "space": {"continuous": continuous},
            "mlp": {
                "units": list(stopwatch.HIDDEN),
                "activation": "tanh",
                "initializer": orthogonal,
            },
        },
        "config": {
            "env_name": "envpool",
            "normalize_input": False,
            "normalize_value": False,
            "value_bootstrap": True,
            "normalize_advantage": True,
            "reward_shaper": {"scale_value": 1},
            "gamma": stopwatch.GAMMA,
            "tau": stopwatch.GAE_LAMBDA,
            "learning_rate": stopwatch.LEARNING_RATE,
            "lr_schedule": None,
            "grad_norm": stopwatch.MAX_GRAD_NORM,
            "truncate_grads": True,
            "entropy_coef": stopwatch.ENT_COEF,
            "e_clip": stopwatch.CLIP_RANGE,
            "clip_value": False,
            "critic_coef": 2 * stopwatch.VF_COEF,
            "bounds_loss_coef": 0.0,
            "num_actors": 1,
            "horizon_length": stopwatch.N_STEPS,
            "minibatch_size": stopwatch.BATCH_SIZE,
            "mini_epochs": stopwatch.N_EPOCHS,
        },
    }


def train(asked: Asked) -> None:
    params = own_settings(asked.robot) if asked.contender == "rl_games_own" else common_settings()
    config = params["config"]
    watch = Stopwatch(asked.goal)
    of_one = config["num_actors"] * config["horizon_length"]
    epochs = stopwatch.iterations(asked.env_steps, of_one)
    params["seed"] = asked.seed
    config.update(ON_ONE_CORE, name="contender", max_epochs=epochs)
    config["env_config"] = {
        "env_name": asked.robot,
        "env_type": "gym",
        "seed": asked.seed,
        "num_threads": asked.threads,
    }

    observers = importlib.import_module("rl_games.common.algo_observer")
    returns: collections.deque[float] = collections.deque(maxlen=stopwatch.EPISODES)

    class Observer(observers.AlgoObserver):  # type: ignore[misc,name-defined]
        def after_init(self, algo: Any) -> None:
            self.algo = algo

        def process_infos(self, infos: Any, done_indices: Any) -> None:
            if len(done_indices):
                returns.extend(self.algo.current_rewards[done_indices].flatten().tolist())

        def after_print_stats(self, frame: int, epoch_num: int, total_time: float) -> None:
            if watch.mark(epoch_num * of_one, returns):
                raise GoalReached

    runner = importlib.import_module("rl_games.torch_runner").Runner(Observer())
    runner.load({"params": params})
    with contextlib.suppress(GoalReached):
        runner.run({"train": True, "play": False})
    watch.write(asked.result, returns)


if __name__ == "__main__":
    stopwatch.run(train, dict.fromkeys(("rl_games", "rl_games_own"), NEEDED))
