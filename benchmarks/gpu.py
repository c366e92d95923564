"""When is a GPU worth it? The same training on one core, and with its networks on a GPU beside that
core.

    python -m benchmarks.gpu [--repeats 5] [--only ppo-64,sac-256] [--json FILE]

Everything runs on one core with one thread, as a job does; on the GPU with deterministic
algorithms, as a job does too. The trainings take turns within one process, in alternating order,
after a warm-up. A repeat is the ratio of the wall times for the same number of env_steps; the table
gives the median and the range of the repeats. For PPO the fast learner, which needs no GPU, is
measured too: it is what a job with ``resources.gpus = 0`` uses.

Without a GPU the speeds on the core are measured alone.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.harness import ROOT, Line, at_least, both_ways, print_table, spread
from benchmarks.learner import gymnasium_spec
from orchestrator.core.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from orchestrator.worker.training.algorithms import Model

CORE = "one core"
GPU = "the GPU"
FAST = "the fast learner on one core"
LEAST_STEPS = 1024
"""Fewest env_steps of a training in a repeat; at least one rollout and its update are run."""
WIDE: Mapping[str, Any] = {"net_arch": [256, 256]}
ATARI: Mapping[str, Any] = {"n_steps": 128, "batch_size": 256, "n_epochs": 4}
"""As RL Baselines3 Zoo trains Atari games, with eight environments."""


def spec(**changes: Any) -> WorkerSpec:
    return replace(gymnasium_spec("Ant-v5"), learner="sb3", **changes)


CASES: Mapping[str, tuple[str, WorkerSpec]] = {
    "ppo-64": ("PPO 64-64 on Ant-v5, defaults", spec()),
    "ppo-256": ("PPO 256-256 on Ant-v5, defaults otherwise", spec(policy_kwargs=WIDE)),
    "sac-256": (
        "SAC 256-256 on Ant-v5, defaults",
        spec(algo="sac", hyperparameters={"buffer_size": 100_000}),
    ),
    "cnn": (
        "PPO with CnnPolicy, eight environments of images of 84 × 84 × 4",
        spec(
            n_envs=8,
            env=None,
            entry_point="benchmarks.image_env:make",
            policy="CnnPolicy",
            hyperparameters=ATARI,
        ),
    ),
}


class Trained:
    """A training of ``spec`` that goes on in pieces."""

    def __init__(self, spec: WorkerSpec) -> None:
        from stable_baselines3.common.logger import Logger

        from orchestrator.worker.envs import env_factory
        from orchestrator.worker.runtime import sb3_internals
        from orchestrator.worker.training import learners

        self._total = spec.total_timesteps
        venv = env_factory.make(spec, ROOT, n_envs=spec.n_envs, seed=spec.seed)
        self.model: Model = learners.build(spec, venv).model
        self.model.set_logger(Logger(folder=None, output_formats=[]))
        self._callback = sb3_internals.setup_learn(
            self.model, self._total, reset_num_timesteps=True
        )

    def seconds(self) -> float:
        """Wall time of an env_step, its share of the update included, over :data:`LEAST_STEPS` or
        more."""
        import torch

        from orchestrator.worker.training import algorithms

        model = self.model
        first = self.model.num_timesteps
        begun = time.perf_counter()
        assert model.env is not None
        while model.num_timesteps < first + LEAST_STEPS:
            before = model.num_timesteps
            algorithms.collect(model, model.env, self._callback)
            algorithms.update(model, model.num_timesteps - before, self._total)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / (model.num_timesteps - first)


def compare(what: str, spec: WorkerSpec, repeats: int) -> list[Line]:
    import torch

    from orchestrator.worker.runtime import cuda

    specs = {CORE: spec}
    if spec.algo == "ppo" and spec.policy == "MlpPolicy":
        specs[FAST] = replace(spec, learner="fast")
    if has_gpu := torch.cuda.is_available():
        specs[GPU] = replace(spec, device="cuda")
    seconds: dict[str, list[float]] = {name: [] for name in specs}
    if has_gpu:
        cuda.prepare_device(torch.device("cuda"))
    trained = {name: Trained(each) for name, each in specs.items()}
    for each in trained.values():
        each.seconds()
    for number in range(repeats):
        for name in both_ways(number, *trained):
            seconds[name].append(trained[name].seconds())
    if not has_gpu:
        lines = [(name, [1 / each for each in values]) for name, values in seconds.items()]
        return [
            *(
                Line(
                    what=f"{what}: env_steps/s, {name}",
                    measured=spread(speeds),
                    target="",
                    good=True,
                    values=speeds,
                )
                for name, speeds in lines
            ),
            Line(
                what=f"{what}: {GPU}",
                measured=f"no GPU: PyTorch {torch.__version__} sees none",
                target="",
                good=True,
            ),
        ]
    rates = {name: f"{1 / statistics.median(values):,.0f}" for name, values in seconds.items()}
    return [
        at_least(
            f"{what}: env_steps/s, {GPU} ({torch.cuda.get_device_name()}) / {name} ({rates[GPU]} / {rates[name]})",
            [one / other for one, other in zip(values, seconds[GPU], strict=True)],
        )
        for name, values in seconds.items()
        if name != GPU
    ]


PARTS: dict[str, Callable[[int], list[Line]]] = {
    name: functools.partial(compare, what, spec) for name, (what, spec) in CASES.items()
}


def main() -> None:
    harness.keep_to_one_core()
    print_table(__doc__, PARTS)


if __name__ == "__main__":
    main()
