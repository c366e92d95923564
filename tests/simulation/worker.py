"""Simulated workers: they train as real ones do, as far as a supervisor can see."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.messages import Progress
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from tests.simulation.scenario import STEPS, Behaviour, SimulatedJob
from tests.simulation.world import Violation, World

if TYPE_CHECKING:
    from tests.simulation.ranks import Ranks

VERSION = "version"
"""Key of ``env_kwargs`` of jobs that are declared otherwise."""

CHECKPOINT_EVERY = 2
"""Iterations."""
KEPT = 2
"""Checkpoints."""
SLOW_S = 1.5
"""How much longer a slow worker takes to save a checkpoint when it is asked to end."""
SWAPPING_S = 6.0
"""How long an iteration of one takes that has grown."""
LINGERS_S = 6.0
"""How long one that lingers goes on without its supervisor."""
CODES = {
    "error": ExitCode.ERROR,
    "diverged": ExitCode.DIVERGED,
    "full": ExitCode.DISK_FULL,
    "leaves": ExitCode.INTERRUPTED,
    "orphaned": ExitCode.ORPHANED,
}
SIGNALS = {
    "killed": signal.SIGKILL,
    "crashed": signal.SIGSEGV,
    "oom": signal.SIGKILL,
    "rank-dies": signal.SIGKILL,  # of the only rank
}


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """The process of one attempt. It is one event of the agenda at a time."""

    world: World
    job: SimulatedJob
    behaviour: Behaviour
    number: int
    paths: JobPaths
    spec: WorkerSpec
    """As it has read it."""
    pid: int
    cpus: tuple[int, ...]
    report: Callable[[Progress], None]
    ended: Callable[[int], None]
    """Told once, with the exit code, when the process is gone."""
    ranks: Ranks
    """Of its attempt; it is the first."""
    exit_record: ExitRecord | None = None
    """What it has written of its end."""
    began: float = 0.0
    env_steps: int = 0
    resumed_from: int = 0
    iterations: int = 0
    """Of this attempt."""
    rss_mib: float = 50.0
    grew_at: float | None = None
    """When it came to hold more than it may."""
    lost_before_it_grew: int = 0
    """How many events had been lost by then."""
    is_alive: bool = True
    is_finished: bool = False
    """Whether all of the training is done, and its results are written."""
    asked_at: float | None = None
    was_killed: bool = False
    """By its supervisor."""
    saves_next: bool = False
    is_orphan: bool = False
    reported: float = 0.0
    """When it last reported anything."""

    def start(self) -> None:
        self.began = self.reported = self.world.now
        self.world.after(self.behaviour.start_s, lambda: self._step(self._load))

    @property
    def is_asked(self) -> bool:
        """Whether its supervisor wants it to save a checkpoint and exit."""
        return self.asked_at is not None

    def request_exit(self) -> None:
        if self.asked_at is None:
            self.asked_at = self.world.now

    def request_checkpoint(self) -> None:
        self.saves_next = True

    def kill(self) -> None:
        self._exit(-signal.SIGKILL)

    def lose_ranks(self, _code: int) -> None:
        """Another rank has ended. One that is deaf waits for it for ever."""
        if self.behaviour.asked != "deaf":
            self._step(self._leave_alone)

    def orphan(self) -> None:
        """Its supervisor has died."""
        self.is_orphan = True
        if self.behaviour.lingers:
            self.world.after(LINGERS_S, self.kill)
        else:
            self.kill()

    def _step(self, what: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self.paths.attempt(self.number + 1).root.exists():  # superseded, as real ones see it
            self._exit(ExitCode.ORPHANED)
            return
        with self.world.other_process(self.pid):
            try:
                what()
            except OSError:
                self._exit(ExitCode.DISK_FULL)

    def _load(self) -> None:
        if not self.ranks.is_complete:  # the other ranks are to come
            self.world.after(0.2, lambda: self._step(self._load))
            return
        saved = self.paths.checkpoints_by_steps()
        self.env_steps = self.resumed_from = max(saved, default=0)
        if saved and saved[self.env_steps].read_text() not in self._fingerprints:
            raise Violation(f"{self.job.job_id} finds a checkpoint of another training")
        self._next()

    @property
    def _fingerprints(self) -> list[str]:
        """Of the trainings whose checkpoints it goes on from; its own is the first."""
        totals = (None, *self.spec.extended_from)
        return [self.spec.fingerprint(total) for total in totals]

    def _next(self) -> None:
        """What comes at the end of an iteration, or before the first one."""
        ending = self.behaviour.ending
        if ending != "done" and self.iterations >= self.behaviour.after:
            if ending == "hangs":
                return
            if ending == "rank-dies" and self.ranks.followers:
                self.ranks.lose_one()
                return
            if ending == "grows":
                self.rss_mib = self.job.all_memory_mib + 50.0
                if self.grew_at is None:
                    self.grew_at = self.world.now
                    self.lost_before_it_grew = self.world.counts["lost"]
            else:
                self._end_badly()
                return
        if self.is_asked and self.behaviour.asked != "deaf":
            delay_s = SLOW_S if self.behaviour.asked == "slow" else 0.01
            self.world.after(delay_s, lambda: self._step(self._leave))
        elif self.env_steps >= self.spec.total_timesteps:
            self._report("evaluating")
            self.world.after(0.05, lambda: self._step(self._finish))
        else:
            iteration_s = self.behaviour.iteration_s if self.grew_at is None else SWAPPING_S
            self.world.after(iteration_s, lambda: self._step(self._iterate))

    def _iterate(self) -> None:
        self.iterations += 1
        self.env_steps += STEPS
        self._report("training")
        if self.saves_next or self.iterations % CHECKPOINT_EVERY == 0:
            self.saves_next = False
            self._save()
        self._next()

    def _leave(self) -> None:
        self._save()
        self._record(ExitCode.INTERRUPTED)
        self._exit(ExitCode.INTERRUPTED)

    def _leave_alone(self) -> None:
        self._record(ExitCode.RANK_LOST)
        self._exit(ExitCode.RANK_LOST)

    def _finish(self) -> None:
        version = self.spec.env_kwargs.get(VERSION, 0)
        write_whole(self.paths.model, f"{self.job.job_id} {self.env_steps} {version}")
        self.is_finished = True
        self.world.after(0.02, lambda: self._step(self._record_end))

    def _record_end(self) -> None:
        self._record(ExitCode.SUCCEEDED)
        self.world.after(0.02, lambda: self._step(lambda: self._exit(ExitCode.SUCCEEDED)))

    def _end_badly(self) -> None:
        ending = self.behaviour.ending
        if ending in CODES:
            self._record(CODES[ending])
            self._exit(CODES[ending])
        elif ending in SIGNALS:
            self._exit(-SIGNALS[ending])
        elif ending == "garbled":
            write_whole(self._attempt / "exit.json", '{"code": 0, "mess')
            self._exit(ExitCode.SUCCEEDED)
        else:
            self._exit(ExitCode.SUCCEEDED)

    def _save(self) -> None:
        self.paths.checkpoints.mkdir(exist_ok=True)
        path = self.paths.checkpoints / f"checkpoint-{self.env_steps:012d}.pt"
        write_whole(path, self._fingerprints[0])
        for steps in sorted(self.paths.checkpoints_by_steps())[:-KEPT]:
            (self.paths.checkpoints / f"checkpoint-{steps:012d}.pt").unlink()

    def _record(self, code: int) -> None:
        record = ExitRecord(
            code=int(code),
            message="" if code == ExitCode.SUCCEEDED else f"=ended with {int(code)}",
            env_steps=self.env_steps,
            resumed_from=self.resumed_from,
            first_step_s=self.behaviour.start_s,
            wall_s=round(self.world.now - self.began, 3),
            ep_rew_mean_first=0.5,
            ep_rew_mean=1.0,
        )
        self.exit_record = record
        write_whole(self._attempt / "exit.json", record.to_json())

    @property
    def _attempt(self) -> Path:
        return self.paths.attempt(self.number).root

    def _report(self, phase: str) -> None:
        self.reported = self.world.now
        line = {
            "phase": phase,
            "env_steps": self.env_steps,
            "iteration": self.resumed_from // STEPS + self.iterations,
            "env_steps_per_s": STEPS / self.behaviour.iteration_s,
            "ep_rew_mean": float(self.env_steps),
            "learner": "fast",
        }
        self.report(Progress.from_line(json.dumps(line).encode()))

    def _exit(self, code: int) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.lives.pop(self.pid, None)
        self.world.log(f"worker {self.job.job_id}/{self.number} ends with {int(code)}")
        self.ended(int(code))
