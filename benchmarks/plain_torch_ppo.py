"""PPO in plain PyTorch in a single file without a library, the style that CleanRL has made popular.

Our own, for comparison only: the same algorithm, networks, initial weights' distribution and
default hyperparameters as Stable-Baselines3's PPO, except that the value after a time limit is not
bootstrapped, which the style leaves out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    def __init__(self, observation: int, actions: int) -> None:
        super().__init__()

        def network(outputs: int, gain: float) -> nn.Sequential:
            hidden = [
                layer(observation, 64, math.sqrt(2)),
                nn.Tanh(),
                layer(64, 64, math.sqrt(2)),
                nn.Tanh(),
            ]
            return nn.Sequential(*hidden, layer(64, outputs, gain))

        self.actor = network(actions, 0.01)
        self.critic = network(1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(
        self, observations: Tensor, actions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns actions, their log-probabilities, entropies and values."""
        mean = self.actor(observations)
        distribution: Any = Normal(mean, self.log_std.exp().expand_as(mean))
        if actions is None:
            actions = distribution.sample()
        log_probs = distribution.log_prob(actions).sum(1)
        return (
            actions,
            log_probs,
            distribution.entropy().sum(1),
            self.critic(observations).flatten(),
        )


class PlainPPO:
    def __init__(
        self,
        venv: VecEnv,
        *,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        learning_rate: float = 3e-4,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float = 0.2,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        observation = venv.observation_space.shape or ()
        actions = venv.action_space.shape or ()
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.clip_range = clip_range
        self.ent_coef = ent_coef
        self.vf_coef = vf_coef
        self.max_grad_norm = max_grad_norm
        self.venv = venv
        self.agent = Agent(observation[0], actions[0])
        self.optimizer = torch.optim.Adam(self.agent.parameters(), learning_rate, eps=1e-5)
        self.observations = torch.zeros(n_steps, venv.num_envs, *observation)
        self.actions = torch.zeros(n_steps, venv.num_envs, *actions)
        self.log_probs, self.rewards, self.begins, self.values = torch.zeros(
            4, n_steps, venv.num_envs
        )
        self.next_observation = torch.as_tensor(np.asarray(venv.reset()), dtype=torch.float32)
        self.next_begin = torch.zeros(venv.num_envs)

    def collect_rollouts(self) -> None:
        space: Any = self.venv.action_space
        for step in range(self.n_steps):
            self.observations[step] = self.next_observation
            self.begins[step] = self.next_begin
            with torch.no_grad():
                actions, self.log_probs[step], _, self.values[step] = self.agent(
                    self.next_observation
                )
            self.actions[step] = actions
            observation, rewards, done, _ = self.venv.step(
                np.clip(actions.numpy(), space.low, space.high)
            )
            self.rewards[step] = torch.as_tensor(rewards)
            self.next_observation = torch.as_tensor(np.asarray(observation), dtype=torch.float32)
            self.next_begin = torch.as_tensor(done, dtype=torch.float32)

    def advantages(self) -> Tensor:
        """Generalised advantage estimates (Schulman et al. 2016), ``(n_steps, n_envs)``."""
        advantages = torch.zeros_like(self.rewards)
        with torch.no_grad():
            next_values = self.agent.critic(self.next_observation).flatten()
            last = torch.zeros(self.venv.num_envs)
        going_on = 1 - self.next_begin
        for step in reversed(range(self.n_steps)):
            delta = self.rewards[step] + self.gamma * next_values * going_on - self.values[step]
            last = delta + self.gamma * self.gae_lambda * going_on * last
            advantages[step] = last
            next_values = self.values[step]
            going_on = 1 - self.begins[step]
        return advantages

    def train(self) -> None:
        advantages = self.advantages()
        returns = (advantages + self.values).flatten()
        advantages = advantages.flatten()
        log_probs = self.log_probs.flatten()
        observations = self.observations.flatten(0, 1)
        actions = self.actions.flatten(0, 1)
        for _ in range(self.n_epochs):
            order = np.random.permutation(len(returns))
            for start in range(0, len(returns), self.batch_size):
                rows = order[start : start + self.batch_size]
                _, new_log_probs, entropies, values = self.agent(observations[rows], actions[rows])
                ratio = (new_log_probs - log_probs[rows]).exp()
                weights = advantages[rows]
                weights = (weights - weights.mean()) / (weights.std() + 1e-8)
                clipped = ratio.clamp(1 - self.clip_range, 1 + self.clip_range)
                policy_loss = -torch.min(weights * ratio, weights * clipped).mean()
                value_loss = nn.functional.mse_loss(values, returns[rows])
                loss = policy_loss - self.ent_coef * entropies.mean() + self.vf_coef * value_loss
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), self.max_grad_norm)
                self.optimizer.step()
