"""``orchestrator.TrainingPool``: trains robots as a program submits them, with the futures of the
standard library.
"""

from __future__ import annotations

import atexit

# Registers hooks that lock before a fork. The thread of a pool must not be the first one to import
# it: the program may be in the middle of a fork, and would then unlock what it has not locked.
import concurrent.futures.thread  # noqa: F401
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import secrets
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orchestrator import api
from orchestrator.core.errors import (
    ChangedError,
    OrchestratorError,
    Problem,
    RunInterrupted,
    SpecError,
    SupervisorError,
    UsageError,
)
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.front_end import python_program
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed, plain, shortened
from orchestrator.features.pool.points import Scalar, checked_meta, point_of
from orchestrator.features.pool.pool_jobs import (
    DoneCallback,
    PoolJobs,
    PoolStopped,
    Submission,
    TrainingFuture,
)
from orchestrator.features.pool.pool_supervisor import PoolSupervisor
from orchestrator.features.pool.submitted_files import contents, digests
from orchestrator.jobfile import Experiment, from_mapping
from orchestrator.jobfile.messages import NO_SUCH_KEY
from orchestrator.jobfile.robot_arguments import (
    NO_FUNCTIONS,
    RobotArgument,
    RobotLike,
    Spec,
    robot_arguments,
)
from orchestrator.jobfile.toml_models import Settings
from orchestrator.jobfile.validation import as_plain
from orchestrator.keys.problems import place
from orchestrator.machine import topology
from orchestrator.machine.slots import MaxParallel
from orchestrator.results import Result, Results

LOOK_EVERY_S = 0.1
NAME_DIGITS = 10
"""Hexadecimal digits that tell robots of the same name apart."""
NOT_HERE = {
    "seeds": "submit takes one `seed`",
    "matrix": "submit each of its points by itself",
    "after": "submit it when the futures that it waits for have their results",
    "params": NO_FUNCTIONS,
}
"""Keys of a job file that a pool has no use for, and what to do instead."""
OF_POOL = ("max_parallel", "run_dir")
OF_SUBMIT = ("seed", "init", "meta")
"""Arguments that are no keys of a job file."""
ERRORS_SHOWN = 10
"""Different errors in one message."""


class TrainingPool:
    """Trains robots one by one, each in its own process, as many at once as there are cores.

    ::

        with orchestrator.TrainingPool(task="forward", total_timesteps=50_000) as pool:
            futures = {pool.submit(xml): xml for xml in bodies}
            for future in concurrent.futures.as_completed(futures):
                print(futures[future], future.result().fitness())

    At the end of the block the pool waits for all futures. An exception in the block, and Ctrl-C,
    cancel them instead: workers save a checkpoint and exit. A new pool with the same ``run_dir``
    resumes: a robot that is submitted again has its result at once if it has been trained, and is
    trained on from its last checkpoint if it was begun.

    Trainings stop with the program. Without the block, :meth:`results` or :meth:`shutdown` has to
    wait for them.

    :param max_parallel: largest number of trainings at once; the default is as many as there are
        cores for.
    :param run_dir: directory for all results; the default is a new directory in ``runs/``.
    :param defaults: keys of ``[defaults]`` in a job file, as in :func:`orchestrator.train`.
    :raises UsageError: a setting is invalid, or ``run_dir`` cannot be used.
    """

    def __init__(
        self,
        max_parallel: MaxParallel = None,
        run_dir: str | os.PathLike[str] | None = None,
        **defaults: Any,
    ) -> None:
        api.refuse_unknown("TrainingPool", defaults, OF_POOL)
        max_parallel = api.checked_max_parallel(max_parallel)
        resources = defaults.get("resources", {})
        self._defaults = {**defaults, "resources": resources}
        if isinstance(resources, Mapping):
            self._defaults["resources"] = {"start": "fork", **resources}
        if not {"task", "env", "entry_point"} & defaults.keys():
            self._defaults["task"] = "auto"
        new = Path("runs") / f"pool-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
        self.run_dir = api.directory(run_dir or new)
        """Directory of all results."""
        self._experiment_of("TrainingPool", {"name": "robot", "xml": "robot.xml"}, {})
        self._changed = threading.Condition()
        self._new: list[Submission] = []
        self._submitted: list[TrainingFuture] = []
        self._unfinished: set[Future[Result]] = set()
        self._any_cancelled = False
        self._is_closing = False
        self._is_stopping = False
        self._failure: OrchestratorError | None = None
        """Why the pool has ended before it was closed."""
        self._callback_failure: OrchestratorError | None = None
        """Why it has to end, where that is a function that the program has given to a future."""
        self._process = os.getpid()
        with python_program():
            self._supervisor = PoolSupervisor(self.run_dir, max_parallel)
        self._folder = TemporaryFolder()
        atexit.register(self._warn_of_unfinished)  # as long as its thread is there
        jobs = PoolJobs(
            paths=RunPaths(self.run_dir),
            holder=self._supervisor.holder,
            jobs_at_once=_jobs_at_once(max_parallel),
            is_stopping=lambda: self._is_stopping or self._supervisor.has_ended,
        )
        self._thread = threading.Thread(
            target=self._run, args=[jobs], name="training-pool", daemon=True
        )
        self._thread.start()

    def submit(
        self,
        xml: RobotLike,
        *,
        seed: int = 0,
        init: Result | str | os.PathLike[str] | None = None,
        meta: Mapping[str, Scalar] | None = None,
        **settings: Any,
    ) -> TrainingFuture:
        """Let a robot be trained, and return its result to come: a
        :class:`concurrent.futures.Future`.

        The result of a robot that cannot be trained has ``ok`` False and the reason in ``error``.
        The same robot, submitted twice with the same settings and seed, is trained once.

        :param xml: a path, MJCF text, or ``mujoco.MjSpec``.
        :param seed: of the training.
        :param init: the policy to start from: a result, the directory of a job, or a ``model.zip``.
        :param meta: what the program says of this robot, such as its generation: texts, numbers,
            booleans and None by name. Each is a column ``meta.NAME`` of ``summary.csv`` and of the
            report, and ``result.meta`` has them; the training does not depend on them. Of a job that
            is there already, those that it was submitted with first stay in the files.
        :param settings: keys of a job in a job file, which override those of the pool; also
            ``name``, the name of the job, which otherwise is made of the robot's name and its
            content.
        :raises UsageError: a setting is invalid, or ``init`` has no policy.
        :raises RuntimeError: the pool is closed, or belongs to the process that this one was forked
            from.
        :raises OrchestratorError: the pool has ended; the message says why.
        """
        if self._is_of_another_process:
            raise RuntimeError(
                f"the TrainingPool belongs to process {self._process}, from which this one was forked; submit robots "
                "there, or make a new pool here, with another run_dir"
            )
        self._refuse_if_closed()
        if not isinstance(xml, str | os.PathLike | Spec):
            expected = "expected a path, MJCF text or a mujoco.MjSpec"
            raise UsageError(
                f"TrainingPool.submit: xml is of type {type(xml).__name__}; {expected}"
            )
        api.refuse_unknown("TrainingPool.submit", settings.keys() - {"name"}, OF_SUBMIT)
        seed = _checked_seed(seed)
        said = checked_meta({} if meta is None else meta)
        if init is not None:
            settings["init"] = _start_policy(init)
        folder = functools.cache(lambda: Path(tempfile.mkdtemp(dir=self._folder.name)))
        future = TrainingFuture(self._on_cancel, self._ended_by)
        with python_program():
            robots = robot_arguments(xml, folder, caller="TrainingPool.submit", argument="xml")
            if len(robots) != 1:
                raise UsageError(
                    f"TrainingPool.submit: {count(len(robots), 'robot')}; submit them one by one"
                )
            robot = dataclasses.replace(robots[0], label=robots[0].label and "xml")
            if robot.fault:
                result = Result(
                    ok=False,
                    error=robot.fault,
                    xml=robot.xml,
                    seed=seed,
                    state="FAILED",
                    meta=said,
                )
                self._accept(future, None)
                future.set_result(result)
                return future
            files = contents(robot)
            name = self._name(robot, files, settings)
            entry = {**robot.entry(), "name": name, **settings, "seeds": [seed]}
            experiment = self._experiment_of("TrainingPool.submit", entry, settings)
        if robot.label:
            experiment = dataclasses.replace(experiment, unnamed={robot.file: robot})
        submission = Submission(
            job=dataclasses.replace(experiment.jobs[0], point=point_of(settings, said)),
            meta=said,
            experiment=experiment,
            robot=robot,
            digests=digests(files, experiment.jobs[0].spec.init),
            future=future,
            folder=folder() if robot.label else None,
        )
        self._accept(future, submission)
        future.add_done_callback(self._on_finish)
        return future

    def _accept(self, future: TrainingFuture, submission: Submission | None) -> None:
        """Hand ``submission`` to the thread; None: the robot cannot be trained.

        :raises RuntimeError: the pool is closed.
        :raises OrchestratorError: the pool has ended.
        """
        with self._changed:
            self._refuse_if_closed()
            self._submitted.append(future)
            if submission is None:
                return
            self._unfinished.add(future)
            self._new.append(submission)
            self._changed.notify_all()

    def _refuse_if_closed(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)
        if self._is_closing or self._is_stopping:
            raise RuntimeError(
                "the TrainingPool is closed, and takes no more robots; make a new one"
            )

    def as_submitted(self, timeout: float | None = None) -> Iterator[TrainingFuture]:
        """The futures in the order in which the robots were submitted, each when it is done; also
        those of robots that are submitted meanwhile.

        An algorithm that submits robots as results come, and takes them from here, submits the same
        ones in a pool that resumes. Keep more of them waiting than train at once: cores are free
        while the first of them takes longer than the others.

        :param timeout: seconds from the call on.
        :raises TimeoutError: the next one is not done by then.
        """
        until = None if timeout is None else time.monotonic() + timeout
        return self._each_when_done(until)

    def _each_when_done(self, until: float | None) -> Iterator[TrainingFuture]:
        """:param until: time on the monotonic clock."""
        for future in self._submitted:  # which grows meanwhile
            left = None if until is None else max(0.0, until - time.monotonic())
            if futures.wait([future], left).not_done:
                raise TimeoutError("the next result is not there yet")
            yield future

    def results(self, timeout: float | None = None) -> Results:
        """The results of all robots, in the order in which they were submitted, when they are
        trained. Also after the end of the pool.

        Robots whose futures were cancelled are left out.

        :param timeout: seconds.
        :raises TimeoutError: not all are trained by then.
        :raises UsageError: futures raise one, such as for a file that was written to since; when all
            are done. The message has the first few, and how to get the results of the others.
        :raises ChangedError: all that raise one raise this.
        :raises OrchestratorError: the pool has ended.
        """
        done = list(self.as_submitted(timeout))
        errors: dict[int, BaseException] = {}
        for position, future in enumerate(done):
            error = None if future.cancelled() else future.exception()
            if self._failure is not None and error is self._failure:
                raise self._failure
            if error is not None:
                errors[position] = error
        if errors:
            first = next(iter(errors.values()))
            have_changed = all(isinstance(error, ChangedError) for error in errors.values())
            kind = ChangedError if have_changed else UsageError
            raise kind(_errors_text(errors)) from first
        results = [future.result() for future in done if not future.cancelled()]
        return Results(results, run_dir=self.run_dir)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more robots, and end when those that were submitted are trained.

        In a process that was forked from that of the pool, nothing happens, nor does it at the end
        of the block.

        :param wait: whether to return only then.
        :param cancel_futures: whether to cancel the futures of robots that wait for their training.
        """
        if self._is_of_another_process:
            return
        with self._changed:
            self._is_closing = True
            unfinished = list(self._unfinished)
            self._changed.notify_all()
        for future in unfinished:
            if cancel_futures and not future.running():
                future.cancel()
        if wait:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._is_of_another_process:
            return
        if error is None:
            try:
                self.shutdown()
                return
            except KeyboardInterrupt as interrupt:
                error = interrupt
        self._stop()
        advice = f"A pool with run_dir={str(self.run_dir)!r} resumes it."
        if isinstance(error, KeyboardInterrupt):
            raise RunInterrupted(self.run_dir, f"the pool has stopped. {advice}") from None
        error.add_note(f"The pool has stopped. {advice}")

    @property
    def _is_of_another_process(self) -> bool:
        """Its thread and its supervisor are not ours then, and a lock may be held by a thread that
        is not here.
        """
        return os.getpid() != self._process

    def _warn_of_unfinished(self) -> None:
        """At the end of a program that has not waited for the pool."""
        unfinished = len(self._unfinished)
        if self._is_of_another_process or not unfinished or sys.stderr is None:
            return
        what = f"{count(unfinished, 'robot')} of {self.run_dir} {'has' if unfinished == 1 else 'have'} no result"
        wait = "`with` around the pool, or pool.results(), waits for all"
        again = f"a TrainingPool with run_dir={str(self.run_dir)!r} resumes them when they are submitted again"
        text = f"{what}: the program has ended, and their training with it; {wait}; {again}"
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(f"warning: {plain(text)}", file=sys.stderr)

    def _stop(self) -> None:
        """Cancel all futures, and return when every worker has exited; Ctrl-C meanwhile kills
        them.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt:
                self._supervisor.hurry()

    # -- what is declared

    def _experiment_of(
        self, caller: str, entry: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Experiment:
        """:param caller: what the program has called, for messages.

        :param entry: a table of ``[[jobs]]``.
        :param settings: those of it that the program has given.
        """
        for key, advice in NOT_HERE.items():
            if key in settings or key in self._defaults:
                raise UsageError(f"{caller}: {key}: {advice}")
        used = {**self._defaults, **settings}
        # A program that trains hundreds of robots does not look at each: it would wait for the
        # pictures at the end.
        defaults = {"preview": False, **self._defaults}
        data = {
            "name": plain(self.run_dir.name),
            "on_invalid": "skip",
            "defaults": defaults,
            "jobs": [entry],
        }
        with python_program():
            base = api.code_folder(*(used.get(key) for key in api.CODE_KEYS)) or self.run_dir
            try:
                return from_mapping(data, source="orchestrator.TrainingPool", base=base)
            except SpecError as error:
                problems = [_as_given(problem, caller, used) for problem in error.problems]
                raise SpecError(caller, problems) from None

    def _name(
        self, robot: RobotArgument, files: Mapping[str, bytes], settings: Mapping[str, Any]
    ) -> str:
        """A name that is the same in every pool for this robot and these settings, and different
        for all others.

        :param files: of the robot.
        """
        declared = as_plain([self._defaults, settings])
        digest = hashlib.sha256(json.dumps(declared, sort_keys=True, default=str).encode())
        for path, content in files.items():
            digest.update(path.encode(errors="surrogateescape") + b"\0" + content)
        return f"{robot.name.partition('-')[2]}-{digest.hexdigest()[:NAME_DIGITS]}"

    # -- the thread

    def _run(self, jobs: PoolJobs) -> None:
        with python_program():
            self._follow(jobs)

    def _follow(self, jobs: PoolJobs) -> None:
        """Enter jobs, and finish futures, until the pool has ended."""
        failure: OrchestratorError | None = None
        try:
            with jobs.open_ledger():
                failure = self._act(jobs)
            self._supervisor.end(stops=lambda: self._is_stopping)
            with jobs.open_ledger():
                jobs.look()
                self._raise_callback_failure()
        except OrchestratorError as error:
            failure = failure or error
        except BaseException as error:
            failure = failure or SupervisorError(f"the pool has met an unexpected error: {error!r}")
            failure.__cause__ = error
        self._supervisor.end(stops=lambda: True)
        with self._changed:
            self._failure = failure
            self._is_closing = True
            new = self._new
            self._new = []
        jobs.give_up(failure, new)
        self._folder.cleanup()
        atexit.unregister(self._warn_of_unfinished)

    def _act(self, jobs: PoolJobs) -> OrchestratorError | None:
        """Returns why the pool has ended, if it was neither closed nor stopped.

        :raises OrchestratorError: a function of the program's ends it.
        """
        while not self._is_stopping:
            self._raise_callback_failure()
            with self._changed:
                new = self._new
                self._new = []
                self._any_cancelled = False
            with contextlib.suppress(PoolStopped):  # which the loop sees
                if jobs.turn(new):
                    continue
            with self._changed:
                is_left = jobs.is_work_left or bool(self._new)
                if self._is_closing and not is_left:
                    return None
                if self._supervisor.has_ended and not self._is_stopping:
                    return self._supervisor.why_it_ended()
                if not (self._new or self._any_cancelled or self._is_stopping):
                    self._changed.wait(LOOK_EVERY_S)
        return None

    def _raise_callback_failure(self) -> None:
        if self._callback_failure is not None:
            raise self._callback_failure

    def _ended_by(self, function: DoneCallback, error: BaseException) -> bool:
        """Let the pool end, where ``function`` has raised ``error`` in its thread; the others are
        the program's.
        """
        if threading.current_thread() is not self._thread:
            return False
        advice = "let it raise an Exception, which is logged, or end the program elsewhere"
        again = f"A new pool with run_dir={str(self.run_dir)!r} resumes it when the same robots are submitted again."
        what = f"{_name_of(function)}, a function given to add_done_callback, has raised {error!r}"
        self._callback_failure = UsageError(f"the pool has stopped: {what}; {advice}. {again}")
        self._callback_failure.__cause__ = error
        return True

    def _on_cancel(self) -> None:
        if self._is_of_another_process:
            return
        with self._changed:
            self._any_cancelled = True
            self._changed.notify_all()

    def _on_finish(self, future: Future[Result]) -> None:
        with self._changed:
            self._unfinished.discard(future)


def _jobs_at_once(max_parallel: MaxParallel) -> int:
    """The most of a pool; what its supervisor finds room for may be fewer."""
    return max_parallel if isinstance(max_parallel, int) else topology.detect().capacity


def _checked_seed(seed: object) -> int:
    """``seed`` with a number of NumPy as one of Python. :raises UsageError: it is none."""
    value = as_plain(seed)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        expected = "expected a whole number from 0 to 4294967295"
        raise UsageError(f"TrainingPool.submit: seed is {plain(repr(value))[:60]}; {expected}")
    return value


def _as_given(problem: Problem, caller: str, given: Collection[str]) -> Problem:
    """``problem``, of a job file with one job, in terms of what the program has given.

    :param given: the keys that the program has given to it, and to the pool.
    """
    is_submitted = caller != "TrainingPool"
    where = problem.where.removeprefix("jobs[0]." if is_submitted else "defaults.")
    message = problem.message
    unknown = next((key for key in given if place(key) == where), None)
    if unknown is not None and message.startswith(NO_SUCH_KEY):
        own = ("name", *OF_SUBMIT) if is_submitted else OF_POOL
        known = sorted({*Settings.model_fields, *own} - NOT_HERE.keys())
        message = f"{NO_SUCH_KEY}{', '.join(known)}"
        if is_submitted:
            message += f'; meta={{"{unknown}": …}} notes what your program knows of a robot'
    return Problem(where=where, message=message)


def _start_policy(init: object) -> Any:
    """The policy that a training starts from, as the job file names it."""
    where = "TrainingPool.submit: init"
    if isinstance(init, Future):
        raise UsageError(f"{where} is a future; expected its result, init=future.result()")
    return api.start_policy(init, where)


def _errors_text(errors: Mapping[int, BaseException]) -> str:
    """:param errors: why robots have no result, by their places in the order of submission."""
    those = count(len(errors), "robot has", "robots have")
    lines = [
        f"TrainingPool.results: {those} no result (numbers in the order of submission, from 0):"
    ]
    robots: dict[str, list[str]] = {}
    for position, error in errors.items():
        robots.setdefault(str(error), []).append(str(position))
    for text, positions in list(robots.items())[:ERRORS_SHOWN]:
        noun = "robot" if len(positions) == 1 else "robots"
        lines += [f"  {noun} {listed(positions)}:", textwrap.indent(text, "    ")]
    if len(robots) > ERRORS_SHOWN:
        lines.append(f"  … and {len(robots) - ERRORS_SHOWN:,} more errors")
    others = (
        "one.result() for one in pool.as_submitted() if not (one.cancelled() or one.exception())"
    )
    return "\n".join([*lines, f"the results of the others are in [{others}]"])


def _name_of(function: DoneCallback) -> str:
    """``module.function``; of a function without a name what Python shows of it."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return shortened(repr(function))
    return f"{getattr(function, '__module__', None)}.{name}"
