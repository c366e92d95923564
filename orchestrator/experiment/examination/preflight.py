"""Examines robots and environments before anything is launched, in child processes.

MuJoCo and gymnasium are imported only there. A model that crashes a C library, hangs or exhausts
the memory gets a verdict like any other. Every distinct pair of robot and task is examined once,
from the copy that its jobs will train.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from orchestrator.core.errors import DiskFullError, Problem
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS, how_it_ended, is_killed_from_outside
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import Job
from orchestrator.core.messages import INIT_SUFFIX, ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import (
    child_environment,
    end_group,
    has_ended,
    spawn,
    working_directory,
)
from orchestrator.core.processes.parent_death import command_of_child
from orchestrator.core.processes.readable import readable
from orchestrator.core.text import last_line
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.examination import training_time
from orchestrator.machine.topology import available_memory_mib

TIME_LIMIT_S = 60.0
ROBOTS_A_CHILD = 3
"""Robots that one child examines in the time it takes to start another."""
SIMULATE_S = 0.25
"""CPU seconds of the stability test of one robot."""
LEAST_SIMULATE_S = 0.005
"""At least, where there are many."""
ALL_SIMULATE_S = 30.0
"""Of all together."""
MEMORY_SHARE = 0.8
"""Share of the free memory that all children together may use."""
LEAST_MEMORY_MIB = 1024
AGAIN = "; so did a second examination, in a process of its own"
"""Added to what is said of a robot whose examination was killed twice."""
CHECK_EVERY_S = 0.1
OF_INIT = ("algo", "policy", "policy_kwargs", "normalize")
"""Fields of a spec that decide whether a policy can be the start of its training."""

Watch: TypeAlias = Callable[[int, int], None]
"""Called repeatedly with the numbers of robots examined so far and to be examined; an exception
that it raises ends the examination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """The result of preflight for a job: a problem, or where its robot was staged."""

    problem: Problem | None = None
    bundle: Path | None = None
    """Folder with the robot's MJCF and every file that it refers to; None without a robot."""
    xml: str | None = None
    """The main file in ``bundle``."""
    robot_hash: str | None = None
    source_hash: str | None = None
    """Of the robot before ``model_edits``, as far as it is known; also of an invalid one."""
    warnings: Sequence[str] = ()
    task: str | None = None
    init: Path | None = None
    """The policy to start from; None where there is none, or where it is in the job directory
    already."""
    init_sha256: str | None = None
    init_env_steps: int | None = None
    init_reason: str | None = None
    """What of it is copied."""
    task_reason: str | None = None
    """Why the task was chosen; None where the job file names it."""
    settings_problem: str | None = None
    """The text of ``problem`` without the robot's name, where it lies in settings and not in the
    robot."""
    code_problem: str | None = None
    """Likewise, where it may lie in the robot or in the user's own code."""
    has_unfit_init: bool = False
    """Whether ``problem`` is that the policy to start from does not fit the job."""
    physics_s: float = 0.0
    """Seconds of physics in one env_step, as measured here; 0 where it was not."""
    given: Path | None = None
    """A temporary file with the robot, where the problem is one of a robot that is no file of the
    user's."""


def examine(
    jobs: Sequence[Job],
    *,
    staging: Path,
    at_once: int,
    warm: Child | None = None,
    kept: list[Child] | None = None,
    watch: Watch = lambda *_: None,
    sources: Sequence[Job] = (),
) -> dict[str, JobVerdict]:
    """A verdict for every job, by ``job_id``. ``staging`` receives one folder for each distinct
    robot.

    :param sources: jobs that ``jobs`` may start from, beside ``jobs`` themselves.
    :param warm: a child started earlier; it is closed at the end.
    :param kept: children of earlier calls; those that are idle at the end are left in it, to be
        closed by the caller.
    :raises DiskFullError: when the disk has no room for the robots' copies.
    """
    distinct, key_of = requests_of(jobs, sources)
    requests = [request for request, _ in distinct.values()]
    examples = [job for _, job in distinct.values()]
    simulate_s = min(SIMULATE_S, max(LEAST_SIMULATE_S, ALL_SIMULATE_S / max(1, len(requests))))
    staged = [
        dataclasses.replace(request, stage_to=str(staging / str(number)), simulate_s=simulate_s)
        for number, request in enumerate(requests)
    ]
    answers = ask(staged, at_once=at_once, warm=warm, kept=kept, watch=watch)
    verdicts = {
        key: _verdict(job, request, answer)
        for key, job, request, answer in zip(distinct, examples, staged, answers, strict=True)
    }
    return {job_id: verdicts[key] for job_id, key in key_of.items()}


def requests_of(
    jobs: Sequence[Job], sources: Sequence[Job] = ()
) -> tuple[dict[bytes, tuple[ExaminationRequest, Job]], dict[str, bytes]]:
    """The distinct requests by key, each with the first job that makes it; and the key of every
    ``job_id``.

    :param sources: as for :func:`examine`.
    """
    distinct: dict[bytes, tuple[ExaminationRequest, Job]] = {}
    key_of: dict[str, bytes] = {}
    by_id = {job.job_id: job for job in (*sources, *jobs)}
    for job in jobs:
        spec = job.spec
        source = by_id.get(job.spec.init_job or "")
        init: Mapping[str, Any] = {}
        if source is not None:
            examined = {"job": source.spec.name, "request": dataclasses.asdict(_request(source))}
            init = {"source": {**examined, **_of_init(source.spec)}, **_of_init(spec)}
        elif spec.init is not None and spec.init_job is None:
            init = {"path": spec.init, **_of_init(spec)}
        request = dataclasses.replace(_request(job), init=init)
        key_of[job.job_id] = request.to_line()
        distinct.setdefault(key_of[job.job_id], (request, job))
    return distinct, key_of


def _request(job: Job) -> ExaminationRequest:
    spec = job.spec
    has_task = job.spec.task is not None
    return ExaminationRequest(
        xml=None if job.xml_source is None else str(job.xml_source),
        robot_settings=job.robot_settings,
        robot_maker=spec.robot_maker,
        params=spec.params,
        allow_outside=job.allow_outside,
        model_edits=spec.model_edits,
        randomize=spec.randomize,
        asymmetric=spec.asymmetric,
        evaluate=spec.evaluate,
        task=spec.task,
        task_options=spec.task_options,
        env=spec.env,
        entry_point=spec.entry_point,
        env_kwargs=spec.env_kwargs,
        search_path=spec.search_path or (str(job.maker_folder) if job.maker_folder else None),
        policy=None if has_task else spec.policy,
        normalize_images=has_task or bool(spec.policy_kwargs.get("normalize_images", True)),
        use_sde=bool(spec.hyperparameters.get("use_sde", False)),
        algo="ppo" if has_task else spec.algo,
        fast=spec.learner == "fast" and not has_task,
    )


def _of_init(spec: WorkerSpec) -> dict[str, Any]:
    return {key: getattr(spec, key) for key in OF_INIT}


def request_for_source(job: Job, paths: RunPaths, stage_to: Path) -> ExaminationRequest:
    """Can ``job`` start from the policy of the job that it names? Both are in the run directory,
    robots included.
    """
    directory = paths.job(job.job_id)
    spec = job.spec
    return dataclasses.replace(
        _request(job),
        xml=None if spec.xml is None else str(directory.root / spec.xml),
        robot_settings={},
        robot_maker=None,
        allow_outside=True,
        model_edits={},
        simulate_s=LEAST_SIMULATE_S,
        stage_to=str(stage_to),
        memory_mib=max(LEAST_MEMORY_MIB, int(available_memory_mib() * MEMORY_SHARE)),
        init={"path": str(paths.job(str(spec.init_job)).root), **_of_init(spec)},
    )


def staged_policy(stage_to: Path) -> Path:
    """Where the policy to start from is written by an examination with this
    :attr:`ExaminationRequest.stage_to`.
    """
    return Path(f"{stage_to}{INIT_SUFFIX}")


def raise_if_disk_full(answer: ExaminationAnswer, folder: Path) -> None:
    """:raises DiskFullError: that is why there is no other answer."""
    if answer.errno in DISK_FULL_ERRNOS:
        raise DiskFullError(
            f"{folder}: no space left on the disk. Free some space and {repeat_call()}"
        )


def _verdict(job: Job, request: ExaminationRequest, answer: ExaminationAnswer) -> JobVerdict:
    if answer.problem is not None:
        raise_if_disk_full(answer, Path(str(request.stage_to)))
        text = answer.problem.removeprefix(f"{request.robot}: ")
        return JobVerdict(
            problem=Problem(where=job.where, message=answer.problem),
            source_hash=answer.source_hash,
            warnings=answer.warnings,
            settings_problem=text if answer.cause == "settings" else None,
            code_problem=text if answer.cause == "code" else None,
            has_unfit_init=answer.cause == "init",
        )
    return JobVerdict(
        bundle=None if answer.xml is None or request.stage_to is None else Path(request.stage_to),
        xml=answer.xml,
        robot_hash=answer.hash,
        source_hash=answer.source_hash,
        warnings=answer.warnings,
        task=answer.task,
        task_reason=answer.task_reason,
        init=None if answer.init_sha256 is None else staged_policy(Path(str(request.stage_to))),
        init_sha256=answer.init_sha256,
        init_env_steps=answer.init_env_steps,
        init_reason=answer.init,
        physics_s=training_time.physics_s(answer.figures),
    )


def ask(
    requests: Sequence[ExaminationRequest],
    *,
    at_once: int,
    time_limit_s: float = TIME_LIMIT_S,
    warm: Child | None = None,
    kept: list[Child] | None = None,
    watch: Watch = lambda *_: None,
) -> list[ExaminationAnswer]:
    """The answers in the order of the requests, from a few children side by side.

    A request that ends a child which has answered others is repeated in a new one: those may be the
    cause. So is one whose child is killed from outside, then while no other child is busy: memory
    may have run out.

    :param time_limit_s: for each request.
    """
    lanes = min(at_once, math.ceil(len(requests) / ROBOTS_A_CHILD))
    memory_mib = max(LEAST_MEMORY_MIB, int(available_memory_mib() * MEMORY_SHARE / max(1, lanes)))
    limited = [dataclasses.replace(request, memory_mib=memory_mib) for request in requests]
    with _Children(warm, kept) as children:
        examinations = _Examinations(limited, children, lanes=lanes, time_limit_s=time_limit_s)
        while not examinations.are_over:
            examinations.begin_waiting()
            examinations.take_answers()
            watch(len(examinations.answers), len(requests))
        children.keep_idle()
    return [examinations.answers[index] for index in range(len(requests))]


class _Children:
    """Children that may be asked: those that exist already, and new ones. On exit all are closed,
    except those that are kept.
    """

    def __init__(self, warm: Child | None, kept: list[Child] | None) -> None:
        """:param kept: children of earlier calls; empty until :meth:`keep_idle`."""
        earlier = list(kept or ())
        if kept is not None:
            kept.clear()
        if warm is not None:
            earlier.insert(0, warm)
        self._kept = kept
        self._opened = list(earlier)
        self._idle = list(earlier)

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        left_open = self._kept or ()
        with contextlib.ExitStack() as closing:
            for child in self._opened:
                if child not in left_open:
                    closing.callback(child.__exit__)

    def take_idle(self, request: ExaminationRequest) -> Child | None:
        """One that can be asked ``request`` now; None: there is none."""
        child = next((child for child in self._idle if child.suits(request)), None)
        if child is not None:
            self._idle.remove(child)
        return child

    def start(self) -> Child:
        """A new one."""
        child = Child()
        self._opened.append(child)
        return child

    def give_back(self, child: Child) -> None:
        """It is idle again."""
        self._idle.append(child)

    def keep_idle(self) -> None:
        """Leave the idle ones open, for later calls, where they are to be kept."""
        if self._kept is not None:
            self._kept[:] = self._idle


class _Examinations:
    """Requests that a few children answer side by side."""

    def __init__(
        self,
        requests: Sequence[ExaminationRequest],
        children: _Children,
        *,
        lanes: int,
        time_limit_s: float,
    ) -> None:
        self.answers: dict[int, ExaminationAnswer] = {}
        """By the place of their requests."""
        self._requests = requests
        self._children = children
        self._lanes = lanes
        self._time_limit_s = time_limit_s
        self._waiting = deque(range(len(requests)))
        self._busy: dict[Child, int] = {}
        self._repeated = set[int]()
        self._killed = set[int]()
        """Requests whose children were killed from outside: they are repeated alone."""

    @property
    def are_over(self) -> bool:
        return len(self.answers) == len(self._requests)

    def begin_waiting(self) -> None:
        """Ask as many requests as may be examined at once."""
        while self._waiting and len(self._busy) < self._most_at_once:
            index = self._waiting.popleft()
            request = self._requests[index]
            child = None if index in self._repeated else self._children.take_idle(request)
            child = child or self._children.start()
            child.ask(request, self._time_limit_s)
            self._busy[child] = index

    @property
    def _most_at_once(self) -> int:
        """Children that may be busy once the next request is asked."""
        is_one_alone = not self._killed.isdisjoint((self._waiting[0], *self._busy.values()))
        return 1 if is_one_alone else self._lanes

    def take_answers(self) -> None:
        """Wait a little for answers, and take those that there are."""
        can_be_read = readable(self._busy, CHECK_EVERY_S)
        for child in list(self._busy):
            answer = child.answer(can_be_read=child in can_be_read)
            if answer is None:
                continue
            index = self._busy.pop(child)
            if isinstance(answer, ExaminationAnswer):
                self.answers[index] = answer
                if not answer.process_exits:
                    self._children.give_back(child)
            elif child.may_be_blameless and index not in self._repeated:
                self._repeat(index, was_killed=child.was_killed)
            else:
                is_second = index in self._killed and child.was_killed
                self._give_up(index, f"{answer}{AGAIN}" if is_second else answer)

    def _repeat(self, index: int, *, was_killed: bool) -> None:
        self._repeated.add(index)
        self._waiting.appendleft(index)
        if was_killed:
            self._killed.add(index)

    def _give_up(self, index: int, problem: str) -> None:
        """Answer a request that no child answers."""
        robot = self._requests[index].robot
        text = problem if robot is None else f"{robot}: {problem}"
        self.answers[index] = ExaminationAnswer(problem=text)


class Child:
    """One examining process, in a session of its own: the processes that it starts end with it.

    It imports MuJoCo at once, the slowest part of an examination.
    """

    def __init__(self) -> None:
        self.answered = 0
        self.hung = False
        self.was_killed = False
        """Whether it has ended by a signal from outside."""
        self._deadline = math.inf
        self._limit_s = math.inf
        self._search_path: str | None = None
        self._text = b""
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._folder = TemporaryFolder()
        self._popen = spawn(
            command_of_child("orchestrator.worker.robots.preflight_child"),
            folder=working_directory(Path(self._folder.name)),
            # It is removed even when the process is killed.
            environment=child_environment(TMPDIR=self._folder.name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        end_group(self._popen)
        for file in (self._popen.stdin, self._popen.stdout, self._err):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
        self._folder.cleanup()

    @property
    def may_be_blameless(self) -> bool:
        """Whether something else than the request that it has not answered may have ended it."""
        return self.was_killed or (self.answered > 0 and not self.hung)

    def fileno(self) -> int:
        assert self._popen.stdout is not None
        return self._popen.stdout.fileno()

    def suits(self, request: ExaminationRequest) -> bool:
        """Whether the user's modules it may have imported come from the search path of
        ``request``.
        """
        return request.search_path is None or self._search_path in (None, request.search_path)

    def ask(self, request: ExaminationRequest, time_limit_s: float) -> None:
        self._limit_s = time_limit_s
        self._deadline = time.monotonic() + time_limit_s
        self._search_path = request.search_path or self._search_path
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; :meth:`answer` says why
            self._popen.stdin.write(request.to_line())
            self._popen.stdin.flush()

    def answer(self, *, can_be_read: bool) -> ExaminationAnswer | str | None:
        """The answer, or a text saying why there will be none; None while there is neither."""
        ended = has_ended(self._popen.pid)
        if ended and not can_be_read:  # it may have answered and ended since
            can_be_read = bool(readable([self]))
        if can_be_read:
            self._text += os.read(self.fileno(), 1 << 20)
        line, newline, rest = self._text.partition(b"\n")
        if newline:
            self._text = rest
            self.answered += 1
            return ExaminationAnswer.from_line(line)
        if ended:
            return self._why_it_ended()
        if time.monotonic() > self._deadline:
            self.hung = True
            end_group(self._popen)
            return f"examining it took more than {self._limit_s:g} s"
        return None

    def _why_it_ended(self) -> str:
        returncode = end_group(self._popen)
        self.was_killed = is_killed_from_outside(returncode)
        self._err.seek(0)
        last = last_line(self._err.read()[-2000:].decode(errors="replace"), "")
        reason = f": {last}" if last else ""
        return f"examining it ended with {how_it_ended(returncode)}{reason}"
