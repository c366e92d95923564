"""``timings.csv``: one row an iteration, with the time spent in each phase.

Phases are measured on instances (one policy, one optimiser, one buffer); nothing that is saved with
a model changes. The clock is :func:`time.perf_counter` (monotonic), read twice a phase and step:
about 0.1 microseconds each.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Literal

import torch
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.timing_columns import COLUMNS
from orchestrator.worker.ranks.ranks import Ranks
from orchestrator.worker.runtime.csv_tables import CsvTable
from orchestrator.worker.runtime.resources import UsageReader
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.algorithms import Model, OffPolicy, OnPolicy
from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.loop_parts import LoopPart

TOTALS = ("cpu_s", "run_delay_s", "voluntary_switches", "involuntary_switches", "throttled_s")
"""Fields of :class:`ResourceUsage`; a row holds how much each has grown."""
DIGITS = 7
"""Digits of a second after the decimal point."""
OFF_VARIABLE = "ORCHESTRATOR_NO_TIMINGS"
"""Environment variable: with 1 no timings are written or measured, except by the fast learner
itself; used to measure the cost of measuring."""


class TimedVecEnv(VecEnvWrapper):
    """Measures an environment's steps in ``collect_rollouts``; the model keeps the environment
    itself.

    It is around every step, and so no part of the loop itself: :class:`Timings` is, which takes
    what was measured.
    """

    def __init__(self, venv: VecEnv, after_step: Callable[[], None]) -> None:
        super().__init__(venv)
        self.seconds = 0.0
        self._step = venv.step
        self._after_step = after_step

    def step(self, actions: Any) -> Any:
        begun = perf_counter()
        result = self._step(actions)
        self.seconds += perf_counter() - begun
        self._after_step()
        return result

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


class PhaseTimers:
    """Seconds spent in the phases of rollout and update since the last :meth:`take`.

    Random actions before ``learning_starts`` belong to no phase; off-policy algorithms have no
    ``gae_s``.
    """

    def __init__(self, model: Model, env: TimedVecEnv) -> None:
        self._env = env
        self._undo = contextlib.ExitStack()
        if isinstance(model, FastPPO):  # it measures itself
            self._seconds = model.seconds
            return
        self._seconds = dict.fromkeys(("policy_s", "gae_s", "backward_s", "optimizer_s"), 0.0)
        if isinstance(model, OffPolicy):
            self._time_method(model.policy, "predict", "policy_s")
        elif isinstance(model, OnPolicy):
            for acting in ("forward", "get_distribution", "predict_values"):
                self._time_method(model.policy, acting, "policy_s")
            self._time_method(model.rollout_buffer, "compute_returns_and_advantage", "gae_s")
        # Every minibatch has a new loss tensor: only the class can be instrumented.
        plain = torch.Tensor.backward
        torch.Tensor.backward = self._timed_function(plain, "backward_s")  # type: ignore[method-assign]
        self._undo.callback(setattr, torch.Tensor, "backward", plain)
        for optimizer in algorithms.optimizers(model).values():
            self._time_optimizer(optimizer)

    def remove(self) -> None:
        """Remove all measuring from model and torch."""
        self._undo.close()

    def take(self) -> dict[str, float]:
        """Seconds of each phase since the last call."""
        taken = {"env_s": self._env.seconds, **self._seconds}
        self._env.seconds = 0.0
        for phase in self._seconds:
            self._seconds[phase] = 0.0
        return taken

    def _timed_function(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        seconds = self._seconds

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = perf_counter()
            result = function(*args, **kwargs)
            seconds[phase] += perf_counter() - begun
            return result

        return timed

    def _time_method(self, owner: Any, method: str, phase: str) -> None:
        setattr(owner, method, self._timed_function(getattr(owner, method), phase))
        self._undo.callback(delattr, owner, method)

    def _time_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        seconds = self._seconds

        def before(*_: Any) -> None:
            seconds["optimizer_s"] -= perf_counter()

        def after(*_: Any) -> None:
            seconds["optimizer_s"] += perf_counter()

        self._undo.callback(optimizer.register_step_pre_hook(before).remove)
        self._undo.callback(optimizer.register_step_post_hook(after).remove)


class Timings(LoopPart):
    """Measures iterations and writes their rows.

    ``rollout_s`` and ``train_s`` include the search for non-finite numbers; ``wall_s`` is both and
    the writing of logs. Checkpoints fall between iterations.
    """

    def __init__(
        self, path: Path, model: Model, env: TimedVecEnv, ranks: Ranks, *, keep: int
    ) -> None:
        self._path = path
        self._keep = keep
        self._model = model
        self._env = env
        self._ranks = ranks

    def start(self) -> None:
        self._table = CsvTable(self._path, keep=self._keep, columns=COLUMNS)
        self._phases = PhaseTimers(self._model, self._env)
        self._reader = UsageReader()
        self._begin()

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        self._begin()
        return moment

    def _begin(self) -> None:
        self._phases.take()
        self._usage = self._reader.read()
        self._loop_s = {"rollout_s": 0.0, "train_s": 0.0}
        self._collectives_s = self._ranks.seconds
        self._began = perf_counter()
        self._phase_began = self._began

    def phase_done(self, phase: Literal["rollout_s", "train_s"]) -> None:
        """Count the time since the end of the phase before.

        The loop calls it of this part alone: with some algorithms every env_step is a rollout.
        """
        now = perf_counter()
        self._loop_s[phase] += now - self._phase_began
        self._phase_began = now

    def after_row(self, iteration: int) -> None:
        """Write the iteration's row. :raises OSError: it cannot be written."""
        now = perf_counter()
        clock_s = monotonic()
        before = self._usage
        usage = self._reader.read()
        self._table.append(
            {
                "iteration": iteration,
                "env_steps": self._model.num_timesteps,
                "wall_s": round(now - self._began, DIGITS),
                **{
                    name: round(value, DIGITS)
                    for name, value in (self._loop_s | self._phases.take()).items()
                },
                **{name: _growth(getattr(before, name), getattr(usage, name)) for name in TOTALS},
                "rss_mib": None if usage.rss_mib is None else round(usage.rss_mib, 1),
                "n_threads": usage.n_threads,
                "n_cpus": usage.n_cpus,
                "clock_s": round(clock_s, DIGITS),
                "allreduce_s": round(self._ranks.seconds - self._collectives_s, DIGITS),
            }
        )

    def saved(self) -> Mapping[str, Any]:
        return {"timings_rows": self._table.rows}

    def finish(self) -> None:
        """Remove all measuring from model and torch."""
        self._phases.remove()


class DisabledTimings(LoopPart):
    """Stands in for :class:`Timings` where nothing is measured."""

    def phase_done(self, phase: Literal["rollout_s", "train_s"]) -> None:
        """Nothing is measured."""


def make(
    path: Path, model: Model, env: TimedVecEnv, ranks: Ranks, *, keep: int
) -> Timings | DisabledTimings:
    """Timings into ``path``, keeping its first ``keep`` rows; none on ranks above 0 or with
    :data:`OFF_VARIABLE`.
    """
    if os.environ.get(OFF_VARIABLE) == "1" or ranks.rank > 0:
        return DisabledTimings()
    return Timings(path, model, env, ranks, keep=keep)


def _growth(before: float | None, now: float | None) -> float | None:
    return None if now is None or before is None else round(now - before, DIGITS)
