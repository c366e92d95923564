"""How much faster one job trains whose simulation runs on several cores (``resources.cores``).

    python -m benchmarks.physics_threads [--repeats 5] [--only 8,64] [--json FILE]

The quadruped of ``jobs/robots.toml`` trains with 8 and with 64 environments, on 1, 2, 4 … cores.
The trainings alternate within one process, in alternating order, whole iterations (a rollout and
its update) after one warm-up iteration. PyTorch and BLAS have one thread. All trainings of a
learner do the same work, and must end with the same weights. A repeat is the ratio of wall-clock
times, so the machine must be idle otherwise; the table gives the median and the range of the
repeats.
"""

from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.harness import ROOT, Line, at_least, both_ways, print_table
from benchmarks.learner import FAST, STOCK, built, ratios
from orchestrator import jobfile as job_files
from orchestrator.core.processes.environment_variables import worker_thread_settings
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.machine import topology

CPUS = list({(cpu.package, cpu.core): cpu.index for cpu in topology.detect().cpus}.values())
"""One for each physical core."""
LEAST = {8: 1.5, 64: 1.6}
"""Numbers of environments, and the least speed-up of the fast learner by a second core."""
ITERATIONS = 4
"""Number of iterations in a repeat."""


class WideTraining:
    """A training on the first ``cores`` CPUs, which has made one iteration."""

    def __init__(self, spec: WorkerSpec, learner: str, cores: int) -> None:
        from benchmarks.interleaved_learners import SB3Learner
        from orchestrator.worker.envs import env_factory

        self._cpus = CPUS[:cores]
        self._iterations = 0
        self._bind()  # threads of the simulation inherit it
        venv = env_factory.make(
            replace(spec, cores=cores), ROOT, n_envs=spec.n_envs, seed=spec.seed
        )
        self._learner = SB3Learner(
            built(spec, learner, env_factory.normalized_env(spec, venv) if spec.normalize else venv)
        )
        self.iterate()

    def _bind(self) -> None:
        os.sched_setaffinity(0, self._cpus)

    def iterate(self) -> float:
        """Wall-clock seconds of an iteration. Its random numbers depend on the number of the
        iteration alone."""
        from stable_baselines3.common.utils import set_random_seed

        set_random_seed(self._iterations)
        self._iterations += 1
        self._bind()
        gc.collect()
        begun = time.perf_counter()
        self._learner.collect()
        self._learner.model.train()
        return time.perf_counter() - begun

    @property
    def weights(self) -> str:
        from orchestrator.worker.training import weights

        return weights.sha256(self._learner.model)

    @property
    def env_steps(self) -> int:
        return self._learner.env_steps * ITERATIONS


def quadruped(n_envs: int) -> WorkerSpec:
    """With that many environments, and as many env_steps in an iteration as in ``robots.toml``."""
    job = next(
        job
        for job in job_files.load(ROOT / "jobs" / "robots.toml").jobs
        if job.spec.name == "quadruped"
    )
    n_steps = job.spec.steps_an_iteration // n_envs
    hyperparameters = {**job.spec.hyperparameters, "n_steps": n_steps}
    return replace(
        job.spec, xml=str(job.xml_source), n_envs=n_envs, hyperparameters=hyperparameters
    )


def speed_up(n_envs: int, repeats: int) -> list[Line]:
    return [line for learner in (FAST, STOCK) for line in _speed_up(learner, n_envs, repeats)]


def _speed_up(learner: str, n_envs: int, repeats: int) -> list[Line]:
    numbers = [1 << power for power in range(len(CPUS).bit_length())]
    if len(numbers) == 1:
        return [
            Line(
                what=f"{learner}, {n_envs} environments",
                measured="there is one core",
                target="",
                good=True,
            )
        ]
    trainings = {cores: WideTraining(quadruped(n_envs), learner, cores) for cores in numbers}
    seconds: dict[int, list[float]] = {cores: [] for cores in numbers}
    for number in range(repeats):
        spent = dict.fromkeys(numbers, 0.0)
        for turn in range(ITERATIONS):
            for cores in both_ways(number + turn, *numbers):
                spent[cores] += trainings[cores].iterate()
        for cores, sums in spent.items():
            seconds[cores].append(sums)
    if len({training.weights for training in trainings.values()}) > 1:
        raise RuntimeError(
            f"{learner}, {n_envs} environments: the weights depend on the number of cores"
        )

    def rate(cores: int) -> str:
        return f"{trainings[cores].env_steps * repeats / sum(seconds[cores]):,.0f}"

    return [
        at_least(
            f"quadruped, {n_envs} environments, {learner}: env_steps/s on {cores} cores / on one "
            f"({rate(cores)} / {rate(1)})",
            ratios(seconds[1], seconds[cores]),
            LEAST[n_envs] if (learner, cores) == (FAST, 2) else None,
        )
        for cores in numbers[1:]
    ]


PARTS: dict[str, Callable[[int], list[Line]]] = {
    str(n_envs): functools.partial(speed_up, n_envs) for n_envs in LEAST
}


def main() -> None:
    os.environ.update(worker_thread_settings(1))  # before NumPy and torch are imported
    print_table(__doc__, PARTS)


if __name__ == "__main__":
    main()
