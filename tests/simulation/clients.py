"""The users and their clients: they edit the job file, start runs, and leave requests."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.job import Job, Resources
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.server import offline
from orchestrator.server.declaration import job_values
from orchestrator.server.requests import Request, RequestFolder, Verb
from tests.simulation.machine import VERSION, Machine
from tests.simulation.monitor import LeftRequest, Monitor
from tests.simulation.scenario import JOB_VERBS, STEPS, Scenario, SimulatedJob, Trouble
from tests.simulation.world import HERE

LOOK_EVERY_S = 0.5
ELSEWHERE = "elsewhere"
DAMAGED = (
    '{"verb": "pa',
    '{"verb": "explode"}',
    '{"verb": "pause", "jobs": 7}',
    "",
    "[" * 50,
)


@dataclass(slots=True, kw_only=True)
class Clients:
    scenario: Scenario
    machine: Machine
    monitor: Monitor
    paths: RunPaths
    holder: str = ""
    """The supervisor that lives, or lived last."""
    on_change: str = "refuse"
    """How the next run adds the jobs; ``directory``: as they are in the ledger."""
    is_starter_dead: bool = False
    """Whether the client has died that started the run."""
    _folder: RequestFolder = field(init=False)
    _originals: dict[str, SimulatedJob] = field(init=False)
    _skips_invalid: bool = field(init=False)

    def __post_init__(self) -> None:
        self._folder = RequestFolder(self.paths.requests)
        self._originals = dict(self.machine.jobs)
        self._skips_invalid = self.scenario.skips_invalid

    # -- the job file

    def edit(self, trouble: Trouble) -> None:
        job = self.machine.jobs.get(trouble.job)
        if job is None:
            return
        match trouble.what:
            case "longer":
                job = replace(job, iterations=job.iterations + trouble.number)
            case "other":
                job = replace(job, version=job.version + 1)
            case "undo":
                job = replace(self._originals[trouble.job], is_declared=job.is_declared)
            case "retries":
                job = replace(job, max_retries=trouble.number)
            case "remove" | "add":
                job = replace(job, is_declared=trouble.what == "add")
            case "results":
                with self.machine.world.own_work():
                    self.paths.job(job.job_id).model.unlink(missing_ok=True)
                self.monitor.results_removed.add(job.job_id)
        self.machine.jobs[trouble.job] = job

    def declared(self) -> list[SimulatedJob]:
        """Return the jobs of the job file; never none."""
        jobs = [job for job in self.machine.jobs.values() if job.is_declared]
        return jobs or list(self.machine.jobs.values())[:1]

    def _addition(self, on_change: str) -> Mapping[str, Any]:
        """Return the arguments of a request to add the jobs of the job file."""
        if on_change == "directory":
            return {"as_it_is": True}
        names = {job.job_id for job in self.declared()}
        jobs = []
        for number, job in enumerate(self.declared()):
            after = tuple(name for name in job.after if name in names)
            jobs.append(_values(replace(job, after=after), number))
        return {
            "jobs": jobs,
            "whole": True,
            "on_change": on_change,
            "skip_invalid": self._skips_invalid,
            "order": "as-listed",
            "source": "jobs.toml",
            "text": "jobs",
        }

    # -- requests

    def start_run(self, holder: str) -> None:
        """Let the client of a new supervisor add the jobs."""
        self.holder = holder
        self.is_starter_dead = False
        how = self.on_change
        if how == "directory" and not self.monitor.rows:
            how = "refuse"
        self.on_change = "refuse"
        args = self._addition(how)
        first = Request(verb="add", args=args, supervisor=holder)
        self._leave(first, Trouble(kind="add", what=how), is_first=True)
        if self.scenario.held_s:
            self.machine.world.after(self.scenario.held_s, lambda: self._release(holder))

    def _release(self, holder: str) -> None:
        if self.holder == holder and self.machine.world.is_supervised:
            self._leave(Request(verb="release", supervisor=holder), Trouble(kind="release"))

    def give(self, trouble: Trouble) -> None:
        """Give a command, to the supervisor or, if none runs, to the run directory."""
        request = self._request(trouble)
        world = self.machine.world
        if world.is_supervised and not world.is_dead:
            self._leave(request, trouble)
        elif self.paths.ledger.exists() and trouble.kind != "add":
            self._apply_offline(request, trouble)

    def _request(self, trouble: Trouble) -> Request:
        verb: Verb = "resume" if trouble.kind == "promote" else trouble.kind  # type: ignore[assignment]
        args: Mapping[str, Any] = {}
        supervisor = None
        match trouble.kind:
            case "stop" | "stop-now":
                verb, supervisor = "stop", self.holder
                args = {"now": True} if trouble.kind == "stop-now" else {}
            case "set":
                args = {"max_parallel": trouble.number}
            case "promote":
                args = {"pause_at": trouble.number * STEPS or None}
            case "add":
                args = self._addition(trouble.what or "refuse")
        jobs = (trouble.job,) if trouble.kind in JOB_VERBS else ()
        if trouble.what == "unknown":
            jobs = (*jobs, "nobody-s0")
        return Request(verb=verb, jobs=jobs, args=args, supervisor=supervisor)

    def _leave(self, request: Request, trouble: Trouble, *, is_first: bool = False) -> None:
        world = self.machine.world
        with world.other_process(ELSEWHERE if trouble.client == "elsewhere" else HERE):
            try:
                id_ = self._folder.leave(request)
            except OSError:  # the disk is full
                world.log("a request cannot be left")
                self.is_starter_dead |= is_first or request.verb == "release"
                return
        left = LeftRequest(
            id=id_,
            request=request,
            client=trouble.client,
            holder=self.holder,
            left_at=world.now,
            is_first=is_first,
        )
        self.monitor.requests[id_] = left
        world.log(f"request {id_}: {trouble.kind} {trouble.what} {trouble.job}".rstrip())
        match trouble.client:
            case "withdraws":
                world.after(0.1, lambda: self._withdraw(left))
            case "here" | "elsewhere":
                world.after(LOOK_EVERY_S, lambda: self._look(left))

    def _file(self, id_: str) -> Any:
        return self.paths.requests / f"{id_}.json"

    def _withdraw(self, left: LeftRequest) -> None:
        """Remove a request whose answer nobody waits for."""
        with self.machine.world.other_process():
            left.is_withdrawn = True
            self._folder.remove(left.id)

    def _look(self, left: LeftRequest) -> None:
        """Look whether the answer is there. If the supervisor has gone without one, the client acts
        on the request itself.
        """
        if left.is_withdrawn or left.client == "dies":
            return
        world = self.machine.world
        is_gone = self.holder != left.holder or not world.is_supervised or world.is_dead
        with world.other_process(ELSEWHERE if left.client == "elsewhere" else HERE):
            if left.client == "elsewhere":
                found = self._folder.take_answer(left.id)
                error = None if found is None else found.error
            else:
                error = self.monitor.answers.get(left.id)
            if error is not None:
                if left.is_first and error:  # the user gives in
                    self.on_change = "restart"
                    self._skips_invalid = True
                return
        if not is_gone:
            world.after(LOOK_EVERY_S, lambda: self._look(left))
            return
        self._withdraw(left)
        is_open = left.id not in self.monitor.answers and not world.is_supervised
        is_verb = left.request.verb in ("cancel", "pause", "resume", "retry")
        if is_open and is_verb and left.client == "here" and self.paths.ledger.exists():
            self._apply_offline(left.request, Trouble(kind=left.request.verb))

    def _apply_offline(self, request: Request, trouble: Trouble) -> None:
        world = self.machine.world
        if world.is_supervised:  # its stack is not unwound yet
            return
        world.log(f"offline: {trouble.kind} {trouble.job}")
        left = LeftRequest(
            id=offline.OFFLINE, request=request, client="here", holder="", left_at=world.now
        )
        self.monitor.requests[offline.OFFLINE] = left
        self.monitor.answers.pop(offline.OFFLINE, None)
        self.monitor.offline_begins()
        with world.other_process():
            try:
                offline.apply(self.paths.root, request)
            except (OrchestratorError, OSError) as error:
                world.log(f"the command fails: {error}")
                left.is_withdrawn = True

    def damage(self, trouble: Trouble) -> None:
        """Leave a file that is no request."""
        world = self.machine.world
        if not self.paths.requests.is_dir():
            return
        id_ = f"0-{trouble.number}-{len(self.monitor.damaged)}"
        with world.own_work():
            self._file(id_).write_text(DAMAGED[trouble.number % len(DAMAGED)])
        self.monitor.damaged[id_] = world.now


@functools.lru_cache(maxsize=64)
def _values(job: SimulatedJob, number: int) -> Mapping[str, Any]:
    """Return a job in the types of a request."""
    has_rung = 0 < job.rung < job.iterations
    has_ranks = any(behaviour.ending == "rank-fails" for behaviour in job.behaviours)
    spec = WorkerSpec(
        job_id=job.job_id,
        name=job.name,
        seed=0,
        algo="ppo",
        learner="auto",
        total_timesteps=job.iterations * STEPS,
        n_envs=2,
        normalize=False,
        checkpoint_every=2 * STEPS,
        eval_episodes=0,
        env="CartPole-v1",
        env_kwargs={VERSION: job.version} if job.version else {},
        ranks=2 if has_ranks else 1,
        after=job.after,
        pause_at=job.rung * STEPS if has_rung else None,
    )
    resources = Resources(
        ranks=spec.ranks,
        cores=1 if has_ranks else job.cores,
        threads=1,
        memory_mib=job.memory_mib,
        gpus=0,
        timeout_s=job.timeout_s,
        stall_timeout_s=job.stall_timeout_s,
        min_free_disk_mib=job.min_free_disk_mib,
    )
    return job_values(
        Job(
            job_id=job.job_id,
            where=f"jobs[{number}]",
            spec=spec,
            resources=resources,
            max_retries=job.max_retries,
            xml_source=None,
        )
    )
