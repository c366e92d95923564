"""``VecNormalize`` with less Python per step: the same numbers to the last bit, in a third of the
time.

The stock class calls a dozen of NumPy's Python-level functions per step, each of which copies and
converts. Here the same sums, products and quotients are computed in the same order and precision by
ufuncs that write into preallocated arrays. Scalars are passed as 0-d arrays and rows as full
tables, because NumPy is fastest where it neither converts nor broadcasts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from orchestrator.worker.runtime.sb3_internals import update_returns

_add = np.add
_subtract = np.subtract
_multiply = np.multiply
_divide = np.divide
_sqrt = np.sqrt
_maximum = np.maximum
_minimum = np.minimum
_sum: Any = np.add.reduce


class FastVecNormalize(VecNormalize):
    """Stock ``VecNormalize`` to the bit; faster where observations are one ``Box`` of float32 or
    float64.

    Statistics, returns and settings are the stock class's attributes, and may be read or replaced
    between any two steps. Every step returns new arrays and puts new arrays into the statistics.
    Pickling gives a stock ``VecNormalize``, which loads where this package is not installed.

    :param settings: those of ``VecNormalize``.
    """

    def __init__(self, venv: VecEnv, **settings: Any) -> None:
        super().__init__(venv, **settings)
        space = self.observation_space
        self._fast: _FastStep | None = None
        if (
            isinstance(space, spaces.Box)
            and space.shape
            and space.dtype in (np.float32, np.float64)
        ):
            self._fast = _FastStep((self.num_envs, *space.shape), np.dtype(space.dtype))

    def step_wait(self) -> VecEnvStepReturn:
        fast = self._fast
        if fast is None or not self.norm_obs:
            return super().step_wait()
        observations: Any
        observations, rewards, dones, infos = self.venv.step_wait()
        obs_rms: Any = self.obs_rms
        ret_rms = self.ret_rms
        self.old_obs = observations
        self.old_reward = rewards
        normalized: Any
        if fast.fits(observations):
            if self.training:
                fast.moments.update(obs_rms, observations)
                self.returns = fast.returns.update(ret_rms, self.returns, self.gamma, rewards)
            normalized, scaled = fast.scaling.scale(
                observations,
                rewards,
                obs_rms=obs_rms,
                ret_rms=ret_rms,
                epsilon=self.epsilon,
                clip_obs=self.clip_obs,
                clip_reward=self.clip_reward,
            )
            if not self.norm_reward:
                scaled = rewards.astype(np.float32)
        else:
            if self.training:
                obs_rms.update(observations)
                update_returns(self, rewards)
            normalized = self.normalize_obs(observations)
            scaled = self.normalize_reward(rewards)
        if np.count_nonzero(dones):
            for env in dones.nonzero()[0]:
                info = infos[env]
                if "terminal_observation" in info:
                    info["terminal_observation"] = self.normalize_obs(info["terminal_observation"])
            self.returns[dones] = 0
        return normalized, scaled, dones, infos

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_fast"]
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        return object.__new__, (VecNormalize,), self.__getstate__()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


class _FastStep:
    """Preallocated arrays for steps of one shape ``(n_envs, …)`` and dtype; they carry nothing from
    step to step.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape = shape
        self._dtype = dtype
        self.moments = _Moments(shape, dtype)
        self.returns = _Returns(shape[0])
        self.scaling = _Scaling(shape)

    def fits(self, observations: Any) -> bool:
        """Whether they have the space's shape and dtype, in C order, on which the bits of sums
        depend.
        """
        return (
            type(observations) is np.ndarray
            and observations.flags.c_contiguous
            and observations.shape == self._shape
            and observations.dtype == self._dtype
        )


class _Moments:
    """``RunningMeanStd.update`` for observations."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._n_envs = shape[0]
        row = shape[1:]
        self._deviations = np.empty(shape, dtype)
        self._mean = np.empty(row, dtype)
        self._variance = np.empty(row, dtype)
        self._changes = np.empty((2, *row))
        # Views of the changes: of the mean, and its square.
        self._delta = self._changes[0]
        self._square = self._changes[1]
        self._wide = np.empty(row)
        """Mean or variance of the batch in float64."""
        self._moment = np.empty(row)
        self._n = np.array(self._n_envs, np.float64)
        self._n_in_dtype = np.array(self._n_envs, dtype)
        self._count = np.zeros(())
        self._total = np.zeros(())

    def update(self, rms: RunningMeanStd, batch: NDArray[Any]) -> None:
        """:param batch: ``(n_envs, …)``"""
        mean, variance = self._mean_and_sum_of_squares(batch)
        changes = self._changes
        delta = self._delta
        square = self._square
        moment = self._moment
        wide = self._wide
        count = self._count
        total = rms.count + self._n_envs
        count[()] = rms.count
        self._total[()] = total
        wide[...] = mean
        _subtract(wide, rms.mean, delta)
        _multiply(delta, delta, square)
        _multiply(square, count, square)
        _multiply(changes, self._n, changes)
        _divide(changes, self._total, changes)
        wide[...] = variance
        _multiply(rms.var, count, moment)
        _add(moment, wide, moment)
        _add(moment, square, moment)
        rms.mean = _add(rms.mean, delta)
        rms.var = _divide(moment, self._total)
        rms.count = total

    def _mean_and_sum_of_squares(self, batch: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Mean, and ``n_envs`` times the variance, in the batch's own dtype."""
        mean = self._mean
        variance = self._variance
        deviations = self._deviations
        n = self._n_in_dtype
        if self._n_envs == 1:
            mean[...] = batch[0]
            # Zero, or not a number where the observation is not finite.
            _subtract(mean, mean, variance)
            return mean, variance
        _divide(_sum(batch, 0, None, mean), n, mean)
        deviations[...] = mean
        _subtract(batch, deviations, deviations)
        _multiply(deviations, deviations, deviations)
        _sum(deviations, 0, None, variance)
        _multiply(_divide(variance, n, variance), n, variance)
        return mean, variance


class _Returns:
    """``VecNormalize._update_reward``; scalars are Python floats."""

    def __init__(self, n_envs: int) -> None:
        self._n_envs = n_envs
        self._scratch = np.empty(n_envs)
        self._number = np.zeros(())

    def update(
        self, rms: RunningMeanStd, returns: NDArray[np.float64], gamma: float, rewards: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Returns the discounted returns, a new array ``(n_envs,)``, and adds them to ``rms``."""
        n = self._n_envs
        scratch = self._scratch
        number = self._number
        scratch[...] = rewards
        number[()] = gamma
        returns = _multiply(returns, number)
        _add(returns, scratch, returns)
        if n == 1:
            mean = returns.item()
            variance = mean - mean
        else:
            mean = float(_sum(returns)) / n
            number[()] = mean
            _subtract(returns, number, scratch)
            _multiply(scratch, scratch, scratch)
            variance = float(_sum(scratch)) / n
        before = float(rms.mean)
        count = rms.count
        total = count + n
        delta = mean - before
        moment = float(rms.var) * count + variance * n + delta * delta * count * n / total
        rms.mean = np.float64(before + delta * n / total)  # type: ignore[assignment]
        rms.var = np.float64(moment / total)  # type: ignore[assignment]
        rms.count = total
        return returns


class _Scaling:
    """``VecNormalize.normalize_obs`` and ``normalize_reward``, with observations and rewards in one
    array, so that one call divides and one call clips both.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._values = _ObservationsAndRewards(shape)
        self._spreads = _ObservationsAndRewards(shape)
        self._lowest = _ObservationsAndRewards(shape)
        self._highest = _ObservationsAndRewards(shape)
        self._spread = np.empty(shape[1:])
        self._epsilon = np.zeros(())
        self._clip_obs: float | None = None
        self._clip_reward: float | None = None

    def scale(
        self,
        observations: NDArray[Any],
        rewards: NDArray[Any],
        *,
        obs_rms: RunningMeanStd,
        ret_rms: RunningMeanStd,
        epsilon: float,
        clip_obs: float,
        clip_reward: float,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Observations ``(n_envs, …)`` and rewards ``(n_envs,)``, new arrays.

        :param clip_obs: bound of the absolute values of observations, as ``clip_reward`` of
            rewards.
        """
        if clip_obs != self._clip_obs or clip_reward != self._clip_reward:
            self._set_clips(clip_obs, clip_reward)
        values = self._values
        spreads = self._spreads
        spread = self._spread
        # Until the spreads are there, their place has the means.
        values.observations[...] = observations
        spreads.observations[...] = obs_rms.mean
        values.rewards[...] = rewards
        _subtract(values.observations, spreads.observations, values.observations)
        self._epsilon[()] = epsilon
        _add(obs_rms.var, self._epsilon, spread)
        spreads.observations[...] = _sqrt(spread, spread)
        spreads.rewards.fill(math.sqrt(ret_rms.var + epsilon))
        _divide(values.all, spreads.all, values.all)
        _maximum(values.all, self._lowest.all, out=values.all)
        _minimum(values.all, self._highest.all, out=values.all)
        return values.observations.astype(np.float32), values.rewards.astype(np.float32)

    def _set_clips(self, clip_obs: float, clip_reward: float) -> None:
        self._clip_obs = clip_obs
        self._clip_reward = clip_reward
        self._lowest.observations[...] = -clip_obs
        self._highest.observations[...] = clip_obs
        self._lowest.rewards[...] = -clip_reward
        self._highest.rewards[...] = clip_reward


class _ObservationsAndRewards:
    """Numbers for observations ``shape = (n_envs, …)`` and for rewards ``(n_envs,)`` in one array."""

    __slots__ = ("all", "observations", "rewards")

    def __init__(self, shape: tuple[int, ...]) -> None:
        size = math.prod(shape)
        self.all = np.zeros(size + shape[0])
        self.observations = self.all[:size].reshape(shape)
        """A view, as :attr:`rewards`."""
        self.rewards = self.all[size:]
