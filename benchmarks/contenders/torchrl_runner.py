"""Trains PPO with TorchRL's parts: its environment, collector, advantages, loss and replay
buffer."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import gymnasium
import torch
from torch import nn

from benchmarks.contenders import stopwatch
from benchmarks.contenders.stopwatch import Asked, Stopwatch

collectors, data, envs, modules, objectives = (
    importlib.import_module(f"torchrl.{part}")
    for part in ("collectors", "data", "envs", "modules", "objectives")
)
value_estimators: Any = importlib.import_module("torchrl.objectives.value")
distributions: Any = importlib.import_module("tensordict.nn")


def environment(robot: str, seed: int) -> Any:
    """The robot with clipped actions, which reports the return of an episode as
    ``episode_reward``."""
    wrapped = envs.GymWrapper(gymnasium.wrappers.ClipAction(gymnasium.make(robot)), device="cpu")
    made = envs.TransformedEnv(wrapped, envs.Compose(envs.DoubleToFloat(), envs.RewardSum()))
    made.set_seed(seed)
    return made


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Two tanh layers, with Stable-Baselines3's initial weights."""
    sizes = (inputs, *stopwatch.HIDDEN)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [orthogonal(nn.Linear(before, after), 2**0.5), nn.Tanh()]
    return nn.Sequential(*layers, orthogonal(nn.Linear(sizes[-1], outputs), gain))


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def actor_and_critic(observation: int, actions: int) -> tuple[Any, Any]:
    with_scale = distributions.AddStateIndependentNormalScale(actions)
    mean_and_scale = nn.Sequential(network(observation, actions, 0.01), with_scale)
    actor = modules.ProbabilisticActor(
        distributions.TensorDictModule(
            mean_and_scale, in_keys=["observation"], out_keys=["loc", "scale"]
        ),
        in_keys=["loc", "scale"],
        distribution_class=modules.IndependentNormal,
        return_log_prob=True,
    )
    return actor, modules.ValueOperator(network(observation, 1, 1.0), in_keys=["observation"])


def train(asked: Asked) -> None:
    torch.manual_seed(asked.seed)
    watch = Stopwatch(asked.goal)
    env = environment(asked.robot, asked.seed)
    actor, critic = actor_and_critic(
        env.observation_spec["observation"].shape[-1], env.action_spec_unbatched.shape[-1]
    )
    env_steps = stopwatch.N_STEPS * stopwatch.iterations(asked.env_steps, stopwatch.N_STEPS)
    collector = collectors.Collector(
        env, actor, frames_per_batch=stopwatch.N_STEPS, total_frames=env_steps, device="cpu"
    )
    buffer = data.TensorDictReplayBuffer(
        storage=data.LazyTensorStorage(stopwatch.N_STEPS),
        sampler=data.SamplerWithoutReplacement(),
        batch_size=stopwatch.BATCH_SIZE,
    )
    advantage = value_estimators.GAE(
        gamma=stopwatch.GAMMA, lmbda=stopwatch.GAE_LAMBDA, value_network=critic
    )
    loss_of = objectives.ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=stopwatch.CLIP_RANGE,
        entropy_bonus=stopwatch.ENT_COEF > 0,
        critic_coeff=stopwatch.VF_COEF,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(
        loss_of.parameters(), stopwatch.LEARNING_RATE, eps=stopwatch.ADAM_EPS
    )
    returns: list[float] = []
    done = 0
    for batch in collector:
        ended = batch["next", "done"].squeeze(-1)
        returns += batch["next", "episode_reward"].squeeze(-1)[ended].tolist()
        with torch.no_grad():
            advantage(batch)
        buffer.extend(batch.reshape(-1))
        for _ in range(stopwatch.N_EPOCHS):
            for _ in range(stopwatch.N_STEPS // stopwatch.BATCH_SIZE):
                losses = loss_of(buffer.sample())
                optimizer.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss_of.parameters(), stopwatch.MAX_GRAD_NORM)
                optimizer.step()
        done += stopwatch.N_STEPS
        if watch.mark(done, returns):
            break
    collector.shutdown()
    watch.write(asked.result, returns)


if __name__ == "__main__":
    stopwatch.run(train, {"torchrl": (stopwatch.TORCH, stopwatch.GYMNASIUM)})
