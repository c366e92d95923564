"""The searcher of a run: a child process that makes the jobs of a search, and how a run that has
one is prepared.

The supervisor knows no more of it than whether it works; everything else goes through the ledger
(:mod:`orchestrator.search.searcher`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.decoding import parsed_json
from orchestrator.core.errors import ChangedError, LedgerError
from orchestrator.core.job import State, move
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed, rough_duration
from orchestrator.experiment import resume, search_robots
from orchestrator.experiment.liveness import Liveness
from orchestrator.experiment.preflight import JobVerdict
from orchestrator.experiment.run_plan import RunOptions
from orchestrator.experiment.side_process import SideProcess
from orchestrator.jobfile import Experiment, from_mapping
from orchestrator.ledger import Ledger, search_events
from orchestrator.machine.slots import Slots
from orchestrator.supervisor.events import Reporter
from orchestrator.supervisor.retry_policy import exit_code, promoted
from orchestrator.supervisor.supervisor import Supervisor

MOST_STARTS = 5
STEADY_S = 600.0
"""A searcher that has worked for so long is started again, however often that was done before."""
CALL_S = 300.0
"""Longest time that a sampler may take for one call: the searcher itself sees to that, while a
thread of it can run."""
SILENT_S = CALL_S + 30.0
"""A searcher without a sign of life for so long hangs: it has not even ended a call that took too
long."""
STOPPED_S = 30.0
"""So long somebody may have stopped it with SIGSTOP before it counts as hanging."""
ENDED, WAITS_FOR_USER, CANNOT_GO_ON = 10, 3, 2
"""Exit codes of a searcher: the search is over; what is left is jobs that the user has paused;
something has to be corrected first."""
OTHERWISE = "`run --fresh` starts over and keeps what is here under another name; another --run-dir leaves it as it is"
ON_CHANGE = (
    "--on-change=keep goes on with the earlier declaration, --on-change=restart starts over and keeps what is here"
    " under another name, and another --run-dir leaves it as it is"
)
BEGAN_OTHERWISE = "the {} that has begun here is declared differently now:"
AGAIN = "Correct the cause, and run the same command again: the search resumes"
SHOWN = 10
OF_THE_SEARCH = ("search", "scheduler", "defaults", "jobs")
BUDGET = ("trials", "max_env_steps", "max_time", "reevaluate")
"""Keys at the top of a job file that trials depend on; and those of ``[search]`` on which none has
depended so far: a resumed search takes these over, and all others at the top."""


@dataclass(slots=True, kw_only=True)
class SearchProcess:
    """Starts the searcher, and starts it again if it is killed, or hangs."""

    paths: RunPaths
    holder: str
    slots: Slots
    reporter: Reporter
    has_finished: bool = field(default=False, init=False)
    """Whether the search has come to its end."""
    problem: str = field(default="", init=False)
    """Why it has stopped before that, other than because the user has paused all that is left."""
    _waits_for_user: bool = field(default=False, init=False)
    _is_needed: bool = field(default=False, init=False)
    _is_search: bool = field(default=False, init=False)
    _process: SideProcess = field(init=False)
    _starts: int = field(default=0, init=False)
    """Since it was declared, or had worked for :data:`STEADY_S`."""
    _why_killed: str = field(default="", init=False)
    """How the searcher that runs has hung, so that it was killed; it may take a while to end."""
    _told_lanes: int = field(default=0, init=False)
    """The number of jobs at once that the searcher knows."""
    _declared_at: int = field(default=0, init=False)
    """When the declaration was written that it has read."""

    def __post_init__(self) -> None:
        arguments = ["orchestrator.search.searcher", str(self.paths.root.absolute()), self.holder]
        self._process = SideProcess(
            arguments=arguments, run_dir=self.paths.root, log=self.paths.search_log
        )

    @property
    def may_add_jobs(self) -> bool:
        """Whether it may still add jobs, or let paused ones go on."""
        has_ended = self.has_finished or self._waits_for_user or bool(self.problem)
        return self._is_needed and (self._is_redeclared or not has_ended)

    @property
    def _is_redeclared(self) -> bool:
        return self._process.starts > 0 and self._declared_at != _written_at(self.paths)

    def look_after(self) -> None:
        """Start it, and start it again if it was killed, hangs, or is declared anew. To be called
        often.
        """
        if not self.may_add_jobs:
            return
        if self._is_redeclared:
            self._begin_anew()
        elif self._process.is_alive:
            self._watch()
        elif self._process.starts == 0:
            self._start()
        else:
            self._act_on_end()

    def _begin_anew(self) -> None:
        """Start it with a declaration that has replaced the one that it has read."""
        self._process.end()
        self.has_finished, self._waits_for_user, self.problem, self._starts = False, False, "", 0
        self.paths.search_stopped.unlink(missing_ok=True)
        self.reporter.event(
            "reloaded", "the search goes on as it is declared now, taken over by `reload`"
        )
        self._start()

    def _start(self) -> None:
        self._told_lanes, self._declared_at, self._why_killed = (
            self.slots.lanes,
            _written_at(self.paths),
            "",
        )
        self._starts += 1
        try:
            self._process.start(str(self._told_lanes))
        except OSError as error:  # the jobs are trained without it
            self._stop(f"its process could not be started: {error}")

    def _watch(self) -> None:
        """Kill it if it hangs; otherwise tell it how many jobs run at once."""
        self._process.watch()
        if not self._why_killed:
            self._why_killed = _why_it_hangs(self._process.liveness)
            if self._why_killed:
                self._process.kill()
            else:
                self._tell_lanes()

    def _act_on_end(self) -> None:
        code = self._process.end()  # with whatever its sampler has started
        self.has_finished, self._waits_for_user = code == ENDED, code == WAITS_FOR_USER
        if self.has_finished or self._waits_for_user:
            return
        assert code is not None
        why = self._why_killed or self._why(code)
        if self._process.ran_s > STEADY_S:
            self._starts = 0
        if code in (CANNOT_GO_ON, -signal.SIGPROF) or self._starts == MOST_STARTS:
            self._stop(why, f". The jobs that it has made are trained. {AGAIN}")
        else:
            self.reporter.event(
                "warning", f"the process of the search has ended ({why}); it is started again"
            )
            self._start()

    def _stop(self, problem: str, advice: str = "") -> None:
        """Report the ``problem``, and keep it for whoever asks later."""
        self.problem = problem
        with contextlib.suppress(OSError):  # a full disk: it is in the log
            write_whole(self.paths.search_stopped, problem, durable=False)
        self.reporter.event("warning", f"the search has stopped: {problem}{advice}")

    def _tell_lanes(self) -> None:
        if self.slots.lanes != self._told_lanes:
            with contextlib.suppress(OSError):  # it has just ended, or reads nothing at the moment
                self._process.tell(f"{self.slots.lanes}\n".encode())
                self._told_lanes = self.slots.lanes

    def _why(self, code: int) -> str:
        if code == -signal.SIGPROF:
            return "a call of its sampler has not returned, and has kept all else in its process from running"
        return self._process.why_it_ended().removeprefix("search: ")

    def exit_code(self, states: Mapping[str, State], supervisor: Supervisor) -> int:
        """Of the command. Failed and paused trials are part of a search: it has succeeded when it
        has ended, and one trial has a value. A search that has stopped with a problem has failed,
        also where trials wait at rungs.
        """
        is_incomplete = self._is_needed and not self.has_finished
        goes_on_when_resumed = supervisor.is_stopping or any(
            state.name == "PAUSED" for state in states.values()
        )
        if self.problem:
            goes_on_when_resumed = supervisor.interrupted  # other than with the same problem
        if is_incomplete and goes_on_when_resumed:
            return 130
        if not self._is_search:
            return 1 if is_incomplete else exit_code(states, interrupted=supervisor.interrupted)
        return 0 if self.has_finished and search_events.has_value(supervisor.ledger) else 1

    @contextlib.contextmanager
    def declared(self, experiment: Experiment, robots: Mapping[str, str]) -> Iterator[None]:
        """Whether there is a searcher depends on ``experiment``. It ends with the block.

        :param robots: their contents; see :mod:`orchestrator.experiment.search_robots`.
        """
        self._is_search = experiment.search is not None
        self._is_needed = self._is_search or experiment.scheduler is not None
        self.paths.search_stopped.unlink(missing_ok=True)
        if self._is_needed:
            self.paths.search_declared.parent.mkdir(exist_ok=True)
            _declare(self.paths, experiment, robots)
        try:
            yield
        finally:
            self._process.end()


def _why_it_hangs(liveness: Liveness) -> str:
    """Empty if it does not."""
    if liveness.stopped_s > STOPPED_S:
        return f"it was stopped for {rough_duration(liveness.stopped_s)}, as by SIGSTOP, and was killed"
    if liveness.silent_s > SILENT_S:
        return (
            f"it has shown no sign of life for {rough_duration(liveness.silent_s)}, and was killed"
        )
    return ""


def on_change_applied(experiment: Experiment, options: RunOptions) -> tuple[Experiment, RunOptions]:
    """What is run if another search, or another matrix that is compared at rungs, has begun in the
    run directory.

    ``on_change = "restart"``: this one, from the start. ``"keep"``: the earlier one, with the
    budget of this one.
    """
    paths = RunPaths(options.run_dir)
    is_compared = experiment.search is not None or experiment.scheduler is not None
    is_asked = options.on_change in ("restart", "keep") and not options.fresh
    if not (is_asked and is_compared and paths.search_declared.exists()):
        return experiment, options
    before = begun(paths)
    lines = differences(before, experiment.declaration)
    if options.on_change == "restart":
        is_other = bool(lines) or search_robots.is_another(
            search_robots.recorded(before), experiment
        )
        return experiment, dataclasses.replace(options, fresh=is_other)
    if not lines:
        return experiment, options
    return _kept(before, experiment, lines), options


def _kept(before: Mapping[str, Any], experiment: Experiment, changes: Sequence[str]) -> Experiment:
    """What was declared ``before``, but for what a resumed search takes over from ``experiment``.

    :param changes: what it does not take over.
    """
    now = experiment.declaration["data"]
    of_the_run = {*before["data"], *now} - {*OF_THE_SEARCH}
    data = _replaced(before["data"], now, of_the_run)
    if "search" in data:
        data["search"] = _replaced(data["search"], now.get("search", data["search"]), BUDGET)
    overrides, skip = before["options"]["overrides"], experiment.skip_invalid
    kept = from_mapping(
        data,
        source=experiment.source,
        base=Path(before["base"]),
        overrides=overrides,
        skip_invalid=skip,
    )
    warning = f"declared differently now, but kept as before: {'; '.join(changes)}"
    return dataclasses.replace(kept, text=experiment.text, warnings=(*kept.warnings, warning))


def _replaced(
    table: Mapping[str, Any], by: Mapping[str, Any], keys: Collection[str]
) -> dict[str, Any]:
    """``table`` with these ``keys`` as they are in another one."""
    others = {key: value for key, value in table.items() if key not in keys}
    return others | {key: value for key, value in by.items() if key in keys}


def resumed(
    experiment: Experiment, options: RunOptions, ledger: Ledger | None, paths: RunPaths
) -> tuple[Experiment, RunOptions]:
    """``experiment`` with the jobs that its search has made so far and that are not settled, and
    ``options`` with the verdicts of these.

    Where the jobs of a matrix are compared, each pauses at the rung that it has been promoted to,
    or at the first one.

    :raises ChangedError: another search has begun here.
    """
    is_compared = experiment.scheduler is not None and experiment.search is None
    if not (is_compared or experiment.search is not None):
        return experiment, options
    if ledger is None or not search_events.is_search(ledger):
        if ledger is not None and any(row.attempts for row in ledger.jobs(decoded=False)):
            what = "scheduler" if is_compared else "search"
            raise ChangedError(f"{paths.root}: its jobs were begun without [{what}]; {OTHERWISE}")
        return (_pausing(experiment, {}) if is_compared else experiment), options
    _refuse_another(experiment, paths)
    if is_compared:
        return _pausing(experiment, search_events.pauses(ledger)), options
    rows = ledger.jobs(decoded=False)
    left = [row for row in rows if not resume.is_settled(row, paths)]
    recorded = {row.job_id: row for row in rows}
    options = dataclasses.replace(options, verdicts=resume.verdicts(left), recorded=recorded)
    return dataclasses.replace(experiment, jobs=tuple(row.job for row in left)), options


def take_over(experiment: Experiment, paths: RunPaths) -> list[str]:
    """Let the search that runs go on as ``experiment`` declares it. Returns what differs: keys of
    its budget.

    :raises ChangedError: another search has begun here.
    """
    earlier = _refuse_another(experiment, paths)
    tables = (each["data"].get("search", {}) for each in (earlier, experiment.declaration))
    before, now = ({key: table[key] for key in BUDGET if key in table} for table in tables)
    lines = list(_differences(before, now))
    if lines:
        _declare(paths, experiment, search_robots.recorded(earlier))
    return lines


def refuse_another_robot(
    experiment: Experiment,
    verdicts: Mapping[str, JobVerdict],
    ledger: Ledger | None,
    paths: RunPaths,
) -> None:
    """:param verdicts: also of the robots in the middle and in a corner of the space.
    :raises ChangedError: the search has begun here with another robot.
    """
    if experiment.search is None or ledger is None or not search_events.is_search(ledger):
        return
    before, now = search_robots.recorded(begun(paths)), search_robots.contents(experiment, verdicts)
    if line := search_robots.difference(before, now, experiment):
        raise ChangedError(
            f"{paths.root}: {BEGAN_OTHERWISE.format('search')}\n    {line}\n{search_robots.ON_CHANGE}"
        )


def _declare(paths: RunPaths, experiment: Experiment, robots: Mapping[str, str]) -> None:
    content = {**experiment.declaration, "robots": dict(robots)}
    write_whole(paths.search_declared, json.dumps(content, indent=1) + "\n")


def _written_at(paths: RunPaths) -> int:
    with contextlib.suppress(OSError):
        return paths.search_declared.stat().st_mtime_ns
    return 0


def _refuse_another(experiment: Experiment, paths: RunPaths) -> Mapping[str, Any]:
    """The declaration of the search that has begun here. :raises ChangedError: that of
    ``experiment`` is another.
    """
    before = begun(paths)
    if lines := differences(before, experiment.declaration):
        what = "search" if "search" in before["data"] else "comparison at rungs"
        text = f"{paths.root}: {BEGAN_OTHERWISE.format(what)}"
        raise ChangedError("\n".join([text, *(f"    {line}" for line in lines), ON_CHANGE]))
    return before


def begun(paths: RunPaths) -> Mapping[str, Any]:
    """The declaration of what has begun here. :raises LedgerError: it cannot be read."""
    try:
        before: Mapping[str, Any] = parsed_json(paths.search_declared.read_bytes())
        if not all(isinstance(before[key], dict) for key in ("data", "options")):
            raise TypeError("it is no declaration")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"{paths.search_declared}: cannot be read ({error}); {OTHERWISE}"
        ) from error
    return before


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Of two declarations: each key that decides which trials there are and differs, with both
    values.
    """
    return list(_differences(_decisive(before), _decisive(now)))


def _pausing(experiment: Experiment, recorded: Mapping[str, int | None]) -> Experiment:
    """With jobs that pause where they are ``recorded`` to, even if they start over; all others at
    the first rung.
    """
    assert experiment.scheduler is not None
    first = experiment.scheduler.min_env_steps
    jobs = tuple(job.with_spec(pause_at=recorded.get(job.job_id, first)) for job in experiment.jobs)
    return dataclasses.replace(experiment, jobs=jobs)


def let_all_train_on(experiment: Experiment, ledger: Ledger, reporter: Reporter) -> None:
    """If ``experiment`` has no scheduler any more, let those of its jobs train to their end that
    paused at rungs.
    """
    is_compared = experiment.search is not None or experiment.scheduler is not None
    if is_compared or search_events.standing(ledger) == "none":
        return
    declared, waiting = {job.job_id for job in experiment.jobs}, list[str]()
    for row in ledger.jobs(decoded=False):
        is_left = row.job_id in declared and row.state.name != "SUCCEEDED"
        if is_left and (after := promoted(row.job, row.state, None)) is not None:
            job, state = after
            ledger.update_spec(job)
            if state is not row.state:
                ledger.set_state(job.job_id, move(job.job_id, row.state, state))
                waiting.append(job.job_id)
    search_events.withdraw(ledger)
    if waiting:
        text = "train on to their end, as the job file has no [scheduler] any more"
        shown = f"{count(len(waiting), 'job')} at rungs {text}: {listed(waiting, SHOWN)}"
        reporter.event("promoted", shown, jobs=waiting)


def _decisive(declaration: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that decide which trials there are, dotted."""
    kept = {key: value for key, value in declaration["data"].items() if key in OF_THE_SEARCH}
    if isinstance(kept.get("search"), dict):
        kept["search"] = {key: value for key, value in kept["search"].items() if key not in BUDGET}
    return dict(_flat("", {**kept, **declaration["options"]["overrides"]}))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        yield prefix, value
        return
    for key, inner in value.items():
        quoted = f'"{key}"' if "." in key and prefix else key
        yield from _flat(f"{prefix}.{quoted}" if prefix else quoted, inner)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in {**before, **now}:
        shown = [
            json.dumps(keys[key], ensure_ascii=False) if key in keys else "not set"
            for keys in (before, now)
        ]
        if shown[0] != shown[1]:
            yield f"{key}: {shown[0]} → {shown[1]}"
