"""``VecNormalize`` with less Python per step: the same numbers to the last bit, in a third of the
time.

The stock class calls a dozen of NumPy's Python-level functions per step, each of which copies and
converts. Here the same sums, products and quotients are computed in the same order and precision by
ufuncs that write into preallocated arrays. Scalars are passed as 0-d arrays, because NumPy is fastest
where it need not convert.
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

# Looking these up costs as much as a small ufunc.
_add = np.add
_subtract = np.subtract
_multiply = np.multiply
_divide = np.divide
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
        self.old_obs = observations
        self.old_reward = rewards
        if not observations.flags.c_contiguous or observations.dtype != fast.dtype:
            observations = np.ascontiguousarray(observations, fast.dtype)
        if self.training:
            fast.update_moments(self.obs_rms, observations)  # type: ignore[arg-type]
            self.returns = fast.update_returns(self.ret_rms, self.returns, self.gamma, rewards)
        normalized = fast.scaled_observations(self, observations)
        scaled = (
            fast.scaled_rewards(self, rewards) if self.norm_reward else rewards.astype(np.float32)
        )
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
    """The arithmetic of a step for observations of one shape ``(n_envs, …)`` and dtype. Its
    preallocated arrays carry nothing from step to step.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._n_envs = shape[0]
        row = shape[1:]
        # Of the moments of observations.
        self._deviations = np.empty(shape, dtype)
        self._mean = np.empty(row, dtype)
        self._variance = np.empty(row, dtype)
        self._wide = np.empty(row)
        self._changes = np.empty((2, *row))
        self._delta = self._changes[0]
        self._square = self._changes[1]
        self._moment = np.empty(row)
        self._n = np.array(self._n_envs, np.float64)
        self._n_in_dtype = np.array(self._n_envs, dtype)
        # Of rewards and returns.
        self._returns = np.empty(self._n_envs)
        # 0-d arrays: NumPy need not convert them.
        self._count = np.zeros(())
        self._total = np.zeros(())
        self._number = np.zeros(())
        # Of what is normalised.
        self._values = np.empty(shape)
        self._spread = np.empty(row)

    def update_moments(self, rms: RunningMeanStd, batch: NDArray[Any]) -> None:
        """Do as ``RunningMeanStd.update`` does.

        :param batch: ``(n_envs, …)``
        """
        mean = self._mean
        variance = self._variance
        n = self._n_in_dtype
        if self._n_envs == 1:
            mean[...] = batch[0]
            # Zero, or not a number where the observation is not finite.
            _subtract(mean, mean, variance)
        else:
            deviations = self._deviations
            _divide(_sum(batch, 0, None, mean), n, mean)
            deviations[...] = mean
            _subtract(batch, deviations, deviations)
            _multiply(deviations, deviations, deviations)
            _sum(deviations, 0, None, variance)
            _multiply(_divide(variance, n, variance), n, variance)
        changes = self._changes
        delta = self._delta
        square = self._square
        moment = self._moment
        wide = self._wide  # mean, then variance of the batch in float64
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

    def update_returns(
        self, rms: RunningMeanStd, returns: NDArray[np.float64], gamma: float, rewards: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Add the discounted returns to ``rms``, and return them, a new array ``(n_envs,)``. Scalars
        are Python floats, which are faster.
        """
        n = self._n_envs
        scratch = self._returns
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

    def scaled_observations(
        self, env: VecNormalize, observations: NDArray[Any]
    ) -> NDArray[np.float32]:
        """Return observations ``(n_envs, …)`` normalised by the statistics of ``env``, a new array."""
        rms: Any = env.obs_rms
        values = self._values
        spread = self._spread
        values[...] = observations
        _subtract(values, rms.mean, values)
        self._number[()] = env.epsilon
        _add(rms.var, self._number, spread)
        _divide(values, np.sqrt(spread, spread), values)
        return self._clipped(values, env.clip_obs)

    def scaled_rewards(self, env: VecNormalize, rewards: NDArray[Any]) -> NDArray[np.float32]:
        """Return rewards ``(n_envs,)`` in the same way."""
        values = self._returns
        values[...] = rewards
        self._number[()] = math.sqrt(env.ret_rms.var + env.epsilon)
        _divide(values, self._number, values)
        return self._clipped(values, env.clip_reward)

    def _clipped(self, values: NDArray[np.float64], limit: float) -> NDArray[np.float32]:
        self._number[()] = -limit
        np.maximum(values, self._number, out=values)
        self._number[()] = limit
        np.minimum(values, self._number, out=values)
        return values.astype(np.float32)
