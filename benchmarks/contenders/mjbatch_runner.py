"""Trains PPO over mjbatch with the hyperparameters, networks and normalisation of mjbatch's example
(``examples/go1_joystick.py`` of its repository), in our own code and on gymnasium's HalfCheetah-v5.

There are 64 environments in place of the example's 1,024, in which no episode of 1,000 steps would end
before a million env_steps. What belongs to its robot alone, the symmetry of left and right, is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.contenders import stopwatch
from benchmarks.contenders.stopwatch import Asked, Stopwatch

ROBOT = "HalfCheetah-v5"
N_ENVS = 64
N_STEPS = 24
N_EPOCHS = 5
MINIBATCHES = 4
LEARNING_RATES = (1e-3, 5e-4)
"""At first, and from two thirds of the training on."""
HIDDEN = 128
INITIAL_STD = 0.5
ENT_COEF = 0.005
MAX_GRAD_NORM = 1.0

FRAME_SKIP = 5
TIME_LIMIT = 1000
CTRL_COST_WEIGHT = 0.1
RESET_NOISE = 0.1


def default_xml() -> str:
    """gymnasium's robot. The package is not imported: it needs another MuJoCo than mjbatch."""
    spec = importlib.util.find_spec("gymnasium")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "envs/mujoco/assets/half_cheetah.xml")


class HalfCheetahs:
    """gymnasium's HalfCheetah-v5, so many at once: it never falls, and ends by its time limit alone."""

    def __init__(self, seed: int, threads: int) -> None:
        model = importlib.import_module("mujoco").MjModel.from_xml_path(default_xml())
        self._batch = importlib.import_module("mjbatch").Batch(model, N_ENVS, num_threads=threads)
        self._qpos, self._qvel, self._ctrl = map(self._batch.bind, ("qpos", "qvel", "ctrl"))
        self._dt_s = FRAME_SKIP * model.opt.timestep
        self._rng = np.random.default_rng(seed)
        # Their episodes end one after the other, as with several environments that fall.
        self._steps = np.arange(N_ENVS) * (TIME_LIMIT // N_ENVS)
        self._sums = np.full(N_ENVS, np.nan)
        self.returns: list[float] = []
        self.sizes = model.nq - 1 + model.nv, model.nu
        """Of an observation and of an action."""
        self.reset(np.arange(N_ENVS))

    def reset(self, rows: np.ndarray) -> None:
        self._batch.reset(rows)
        shape = len(rows), self._qpos.shape[1]
        self._qpos[rows] += self._rng.uniform(-RESET_NOISE, RESET_NOISE, shape)
        self._qvel[rows] += RESET_NOISE * self._rng.standard_normal(
            (len(rows), self._qvel.shape[1])
        )

    def observations(self) -> Tensor:
        """``(N_ENVS, observation) float32``, without the place along the track."""
        return torch.as_tensor(
            np.concatenate([self._qpos[:, 1:], self._qvel], 1), dtype=torch.float32
        )

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rewards, and which episodes have ended; the ended ones are still as they were."""
        clipped = np.clip(actions, -1.0, 1.0)
        before = self._qpos[:, 0].copy()
        self._ctrl[:] = clipped
        self._batch.step(nstep=FRAME_SKIP)
        cost = CTRL_COST_WEIGHT * np.square(clipped).sum(1)
        rewards = (self._qpos[:, 0] - before) / self._dt_s - cost
        self._steps += 1
        self._sums += rewards
        ended = self._steps >= TIME_LIMIT
        # The first episode of each has begun amid its time, and has no return.
        self.returns += [value for value in self._sums[ended].tolist() if not math.isnan(value)]
        self._steps[ended] = 0
        self._sums[ended] = 0.0
        return rewards, ended


class ActorCritic(nn.Module):
    """Policy and value function over normalised observations."""

    def __init__(self, observation: int, actions: int) -> None:
        super().__init__()

        def network(outputs: int) -> nn.Sequential:
            hidden = [nn.Linear(observation, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, HIDDEN), nn.ELU()]
            return nn.Sequential(*hidden, nn.Linear(HIDDEN, outputs))

        self.actor = network(actions)
        self.critic = network(1)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(INITIAL_STD)))
        self._mean = torch.zeros(observation)
        self._var = torch.ones(observation)
        self._count = 1e-4

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean actions, and values."""
        normalised = (observations - self._mean) / (self._var.sqrt() + 1e-5)
        return self.actor(normalised), self.critic(normalised).squeeze(-1)

    def log_probs(self, actions: Tensor, means: Tensor) -> Tensor:
        distribution: Any = torch.distributions.Normal(means, self.log_std.exp())
        found: Tensor = distribution.log_prob(actions).sum(-1)
        return found

    def take_in(self, observations: Tensor) -> None:
        """Into the running statistics (Chan, Golub, LeVeque 1983)."""
        count = len(observations)
        whole = self._count + count
        delta = observations.mean(0) - self._mean
        spread = self._var * self._count + observations.var(0, correction=0) * count
        self._var = (spread + delta**2 * self._count * count / whole) / whole
        self._mean = self._mean + delta * count / whole
        self._count = whole


class Rollout:
    """What :data:`N_STEPS` steps of all environments have brought, ``(N_STEPS, N_ENVS, …)``."""

    def __init__(self, observation: int, actions: int) -> None:
        self.observations = torch.zeros(N_STEPS, N_ENVS, observation)
        self.actions = torch.zeros(N_STEPS, N_ENVS, actions)
        self.log_probs, self.values, self.rewards, self.going_on = torch.zeros(4, N_STEPS, N_ENVS)

    @torch.no_grad()
    def collect(self, net: ActorCritic, env: HalfCheetahs) -> Tensor:
        """Returns the values of what comes next."""
        for step in range(N_STEPS):
            observations = env.observations()
            means, values = net(observations)
            actions = means + net.log_std.exp() * torch.randn_like(means)
            rewards, ended = env.step(actions.numpy())
            self.observations[step] = observations
            self.actions[step] = actions
            self.log_probs[step] = net.log_probs(actions, means)
            self.values[step] = values
            self.rewards[step] = torch.as_tensor(rewards)
            self.going_on[step] = torch.as_tensor(~ended)
            if ended.any():  # by the time limit: what would have come is added
                self.rewards[step, ended] += stopwatch.GAMMA * net(env.observations()[ended])[1]
                env.reset(np.flatnonzero(ended))
        last: Tensor = net(env.observations())[1]
        return last

    def advantages(self, next_values: Tensor) -> Tensor:
        """Generalised advantage estimates (Schulman et al. 2016)."""
        advantages = torch.zeros_like(self.rewards)
        after = torch.zeros(N_ENVS)
        for step in reversed(range(N_STEPS)):
            discount = stopwatch.GAMMA * self.going_on[step]
            delta = self.rewards[step] + discount * next_values - self.values[step]
            after = delta + discount * stopwatch.GAE_LAMBDA * after
            advantages[step] = after
            next_values = self.values[step]
        return advantages


def update(
    net: ActorCritic, optimizer: torch.optim.Adam, rollout: Rollout, next_values: Tensor
) -> None:
    advantages = rollout.advantages(next_values)
    returns = (advantages + rollout.values).flatten()
    advantages = advantages.flatten()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    observations = rollout.observations.flatten(0, 1)
    actions = rollout.actions.flatten(0, 1)
    old_log_probs = rollout.log_probs.flatten()
    for _ in range(N_EPOCHS):
        for rows in torch.randperm(len(returns)).chunk(MINIBATCHES):
            means, values = net(observations[rows])
            ratio = (net.log_probs(actions[rows], means) - old_log_probs[rows]).exp()
            clipped = ratio.clamp(1 - stopwatch.CLIP_RANGE, 1 + stopwatch.CLIP_RANGE)
            policy_loss = -torch.min(ratio * advantages[rows], clipped * advantages[rows]).mean()
            value_loss = stopwatch.VF_COEF * (values - returns[rows]).square().mean()
            loss = policy_loss + value_loss - ENT_COEF * net.log_std.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), MAX_GRAD_NORM)
            optimizer.step()
    net.take_in(observations)


def train(asked: Asked) -> None:
    if asked.robot != ROBOT:
        raise SystemExit(f"over mjbatch there is {ROBOT} alone here, not {asked.robot}")
    watch = Stopwatch(asked.goal)
    torch.manual_seed(asked.seed)
    env = HalfCheetahs(asked.seed, asked.threads)
    net = ActorCritic(*env.sizes)
    rollout = Rollout(*env.sizes)
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATES[0], fused=True)
    of_one = N_STEPS * N_ENVS
    count = stopwatch.iterations(asked.env_steps, of_one)
    for number in range(count):
        rate = np.interp(number, (0, 2 * count / 3), LEARNING_RATES)
        optimizer.param_groups[0]["lr"] = float(rate)
        update(net, optimizer, rollout, rollout.collect(net, env))
        if watch.mark((number + 1) * of_one, env.returns):
            break
    watch.write(asked.result, env.returns)


if __name__ == "__main__":
    stopwatch.run(train, {"mjbatch": (stopwatch.TORCH, "mujoco", "mjbatch")})
