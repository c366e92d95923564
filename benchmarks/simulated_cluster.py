"""A simulated cluster: nodes that fail and are repaired, jobs with work to do, and what happens to
them.

All times are simulated seconds. The source of each figure stands beside it; docs/measurements/nodes.md
names the sources.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job import Job, Resources
from orchestrator.core.messages import Progress
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.base import Launch
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine.slots import RankSlot, Slot
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.supervisor import Supervisor

DAY_S = 86_400.0
MIB_A_CORE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Failure rates."""

    losses_a_node_day: float = 6.5e-3
    """Losses per node and day: the worse of two clusters in Kokolis et al. 2025. The training of
    Llama 3 was interrupted 419 times in 54 days on 2,048 nodes: 3.8e-3."""
    weibull_shape: float = 0.75
    """Of the time between losses of a node: below 1, as Schroeder and Gibson 2006 found (decreasing
    hazard)."""
    repair_mean_s: float = 6 * 3600.0
    repair_sigma: float = 1.0
    """Of its logarithm: repairs are lognormal, with means from under an hour to over a day (same
    study)."""
    notice_s: float = 15.0
    """Time until a lost node is detected. Attempts that are launched on it meanwhile are lost with
    it."""
    killed: float = 5e-3
    """Share of the jobs that are killed once, for example out of memory. This and the next two are
    our own guesses."""
    hung: float = 1e-3
    """Share of the jobs that hang once."""
    faulty: float = 2e-3
    """Share of the jobs that fail by an error of their own, which would recur."""

    def worse(self, times: float) -> Rates:
        """All rates multiplied by ``times``; at most every tenth job is affected in each way."""
        return Rates(
            losses_a_node_day=self.losses_a_node_day * times,
            killed=min(0.1, self.killed * times),
            hung=min(0.1, self.hung * times),
            faulty=min(0.1, self.faulty * times),
        )


class Nodes(ClusterSlots):
    """Slots of a simulated cluster whose nodes are lost and return after repair."""

    def __init__(
        self, count: int, cores: int, rates: Rates, now: Callable[[], float], chance: random.Random
    ) -> None:
        super().__init__()
        self.losses = 0
        """Detected losses of nodes so far."""
        self._cores_each = cores
        self._rates = rates
        self._now = now
        self._chance = chance
        for node in range(count):
            self._join(node)
        mean_s = DAY_S / rates.losses_a_node_day
        self._scale_s = mean_s / math.gamma(1 + 1 / rates.weibull_shape)
        self._lost_at = [self._first_loss() for _ in range(count)]
        self._agenda = [(when + rates.notice_s, node) for node, when in enumerate(self._lost_at)]
        heapq.heapify(self._agenda)

    def _join(self, node: int) -> None:
        self.add(
            str(node), cores=self._cores_each, gpus=0, memory_mib=MIB_A_CORE * self._cores_each
        )

    def _first_loss(self) -> float:
        """The first loss of a node in a cluster that has long been running: the rest of the current
        interval.

        Longer intervals are more likely to contain the start: such an interval is distributed as
        ``scale * gamma(1 + 1/shape) ** (1/shape)``.
        """
        shape = self._rates.weibull_shape
        interval_s = self._scale_s * math.pow(
            self._chance.gammavariate(1 + 1 / shape, 1.0), 1 / shape
        )
        return interval_s * self._chance.random()

    def lost_at(self, place: RankSlot) -> float:
        """When the node of ``place`` will be lost."""
        return self._lost_at[int(place.node)]

    def acquire(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1
    ) -> Slot | None:
        self._catch_up()
        return super().acquire(cores, gpus, memory_mib=memory_mib, ranks=ranks)

    def _catch_up(self) -> None:
        """Apply the losses and repairs that have been detected since the last call."""
        while self._agenda[0][0] <= self._now():
            when, node = self._agenda[0]
            if str(node) in self._free:
                self.remove(str(node))
                self.losses += 1
                sigma = self._rates.repair_sigma
                median_s = self._rates.repair_mean_s / math.exp(sigma**2 / 2)
                then = when + 60.0 + self._chance.lognormvariate(math.log(median_s), sigma)
            else:
                self._join(node)
                self._lost_at[node] = when + self._chance.weibullvariate(
                    self._scale_s, self._rates.weibull_shape
                )
                then = self._lost_at[node] + self._rates.notice_s
            heapq.heapreplace(self._agenda, (then, node))


STEPS_PER_S = 1000.0
HYPERPARAMETERS = {
    "n_steps": 512,
    "batch_size": 256,
    "learning_rate": "linear(3e-4, 0)",
    "gamma": 0.99,
    "n_epochs": 10,
}


def make_jobs(
    count: int, chance: random.Random, *, max_retries: int, stall_timeout_s: float
) -> Iterator[Job]:
    """Trainings of 10 to 40 minutes (truncated lognormal); half of them with one core, the others
    with two or four."""
    for number in range(count):
        cores = chance.choices((1, 2, 4), (50, 30, 20))[0]
        work_s = min(max(chance.lognormvariate(math.log(1200.0), 0.4), 600.0), 2400.0)
        job_id = f"robot-{number:06}-s0"
        yield Job(
            job_id=job_id,
            where=f"jobs[{number}]",
            spec=WorkerSpec(
                job_id=job_id,
                name=f"robot-{number:06}",
                seed=0,
                algo="ppo",
                learner="auto",
                total_timesteps=int(STEPS_PER_S * work_s),
                n_envs=8,
                normalize=True,
                checkpoint_every=int(STEPS_PER_S * CHECKPOINT_EVERY_S),
                eval_episodes=10,
                xml="robot/robot.xml",
                task="forward",
                hyperparameters=HYPERPARAMETERS,
                threads=cores,
            ),
            resources=Resources(
                cores=cores,
                threads=cores,
                memory_mib=2048,
                gpus=0,
                timeout_s=7 * DAY_S,
                stall_timeout_s=stall_timeout_s,
            ),
            max_retries=max_retries,
            xml_source=None,
        )


def entered(paths: RunPaths, jobs: Iterable[Job]) -> Ledger:
    """A new ledger in the run directory ``paths`` with ``jobs`` pending, in this order."""
    ledger = Ledger.create(paths.ledger)
    ledger.put_jobs(DeclaredJob(position=place, job=job) for place, job in enumerate(jobs))
    ledger.commit()
    return ledger


def endless_supervisor(
    root: Path, jobs: Iterable[Job], *, nodes: int, cores: int, reporter: Reporter
) -> Supervisor:
    """The supervisor of jobs that never end, on ``nodes`` nodes with ``cores`` cores each."""
    fake = FakeExecutor(behave=lambda _: Behaviour(after_s=NEVER))
    pool = ClusterSlots()
    for node in range(nodes):
        pool.add(str(node), cores=cores, gpus=0, memory_mib=1 << 20)
    paths = RunPaths(root)
    ledger = entered(paths, jobs)
    return Supervisor(
        paths=paths,
        rows=ledger.jobs(),
        ledger=ledger,
        executor=fake,
        slots=pool,
        reporter=reporter,
        now=fake.now,
        available_memory_mib=lambda: 1 << 40,
    )


PLACING_S = 1.0
"""Time until the node of an attempt has started it."""
START_S = 10.0
"""Time until a worker trains: imports, compilation, loading its checkpoint."""
CHECKPOINT_EVERY_S = 300.0


class Work:
    """The remaining work of each job. :meth:`behave` is for a :class:`FakeExecutor`."""

    def __init__(
        self,
        jobs: Sequence[Job],
        rates: Rates,
        nodes: Nodes,
        now: Callable[[], float],
        *,
        progress_every_s: float,
    ) -> None:
        self._whole_s = {job.job_id: job.spec.total_timesteps / STEPS_PER_S for job in jobs}
        self._left_s = dict(self._whole_s)
        self._rates = rates
        self._nodes = nodes
        self._now = now
        self._progress_every_s = progress_every_s
        self.redone_s = 0.0
        """Training time lost: since the last checkpoint before an attempt was lost."""

    def is_faulty(self, job_id: str) -> bool:
        return self._lot(job_id) < self._rates.faulty

    def _lot(self, job_id: str) -> float:
        return random.Random(job_id).random()

    def behave(self, launch: Launch) -> Behaviour:
        left_s = self._left_s[launch.job_id]
        lost_s = self._nodes.lost_at(launch.rank_slots[0]) - self._now()
        own = self._own_fate(launch, left_s)
        if lost_s < min(own.after_s, own.hangs_after_s):
            self._lose(launch.job_id, lost_s)
            return self._fate(
                launch.job_id, max(0.0, lost_s + self._rates.notice_s), None, hangs_after_s=lost_s
            )
        if own.returncode != ExitCode.SUCCEEDED:
            self._lose(launch.job_id, min(own.after_s, own.hangs_after_s))
        return own

    def _own_fate(self, launch: Launch, left_s: float) -> Behaviour:
        """The end of the attempt if its node survives. Failures happen in the middle."""
        rates = self._rates
        lot = self._lot(launch.job_id)
        middle_s = START_S + left_s / 2
        if lot < rates.faulty:
            return self._fate(launch.job_id, middle_s, int(ExitCode.ERROR))
        if launch.number == 0 and lot < rates.faulty + rates.killed:
            return self._fate(launch.job_id, middle_s, -9)
        if launch.number == 0 and lot < rates.faulty + rates.killed + rates.hung:
            return self._fate(launch.job_id, NEVER, None, hangs_after_s=middle_s)
        return self._fate(launch.job_id, START_S + left_s, int(ExitCode.SUCCEEDED))

    def _fate(
        self, job_id: str, after_s: float, returncode: int | None, hangs_after_s: float = NEVER
    ) -> Behaviour:
        before_s = self._whole_s[job_id] - self._left_s[job_id]

        def progress(since_s: float) -> Progress:
            steps = int(STEPS_PER_S * (before_s + max(0.0, since_s - START_S)))
            return Progress(
                phase="training",
                env_steps=steps,
                iteration=steps // 4096,
                ep_rew_mean=float(steps),
                env_steps_per_s=STEPS_PER_S,
                cpu_share=0.99,
                run_delay_share=0.0,
                learner="fast",
            )

        return Behaviour(
            after_s=after_s,
            returncode=returncode,
            placed_after_s=PLACING_S,
            hangs_after_s=hangs_after_s,
            progress_every_s=self._progress_every_s,
            progress=progress,
            rss_mib=((START_S, 400.0),),
            exits_within_s=2.0,
        )

    def _lose(self, job_id: str, ran_s: float) -> None:
        trained_s = min(max(0.0, ran_s - START_S), self._left_s[job_id])
        kept_s = trained_s // CHECKPOINT_EVERY_S * CHECKPOINT_EVERY_S
        self._left_s[job_id] -= kept_s
        self.redone_s += trained_s - kept_s
