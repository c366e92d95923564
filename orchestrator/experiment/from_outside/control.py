"""Commands on a run directory from another process: look at it, and send requests to its
supervisor.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from orchestrator.core.errors import OrchestratorError, RunDirError, UsageError
from orchestrator.core.job import TERMINAL, Cancelled, Cause, Paused, Running, move
from orchestrator.core.job_patterns import is_pattern, matching_jobs
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count, listed
from orchestrator.experiment import begun_source
from orchestrator.experiment.begun_source import Standing
from orchestrator.experiment.directory import (
    left_batch_jobs,
    resume_advice,
    run_directory,
    run_end,
)
from orchestrator.experiment.directory.run_directory import LockHolder
from orchestrator.experiment.processes import done_by_owner
from orchestrator.experiment.resuming import recovery
from orchestrator.ledger import Ledger, Request, SummaryRow, job_figures, live_facts, summary
from orchestrator.ledger.live_facts import LiveFacts
from orchestrator.ledger.requests import RequestFiles
from orchestrator.supervisor.events import News, Note, SilentReporter

FOLLOW_EVERY_S = 0.3
LOOK_EVERY_S = 0.05
UNKNOWN_S = 5.0
"""How long a supervisor that has just started may take to write its name into the lock."""

JobVerb: TypeAlias = Literal["cancel", "retry", "pause", "resume"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A command that moves single jobs to another state."""

    from_states: Sequence[str]
    past: str
    nothing: str = ""
    """For those that need no job named: what is said when none is in one of ``from_states``."""


COMMANDS: Mapping[JobVerb, JobCommand] = {
    "cancel": JobCommand(from_states=("PENDING", "RUNNING", "PAUSED"), past="cancelled"),
    "retry": JobCommand(
        from_states=("FAILED", "CANCELLED"),
        past="retried",
        nothing="no job has failed or been cancelled",
    ),
    "pause": JobCommand(from_states=("PENDING", "RUNNING"), past="paused"),
    "resume": JobCommand(from_states=("PAUSED",), past="resumed", nothing="no job is paused"),
}


LIVE_FACTS = ("phase", "cpu_share", "run_delay_share", "waiting")
"""Keys of a row that are not in the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run directory at one moment."""

    paths: RunPaths
    rows: Sequence[SummaryRow]
    holder: LockHolder | None
    written: float | None = None
    """When the rows were written to ``summary.json``, which they are from if the supervisor runs on
    another host."""
    live: LiveFacts | None = None
    """What the supervisor reports beside the ledger; None where none runs, or an earlier version of
    this program."""
    free_disk_asked: Mapping[str, int] | None = None
    """MiB of each PENDING job, while jobs wait for disk space; None where that is not known (on
    another host)."""

    goals: Mapping[str, int] = field(default_factory=dict)
    """env_steps at which running and queued jobs pause at a rung, by ``job_id``."""
    standing: Standing = "none"
    """Whether more jobs may come, or paused ones go on."""
    notes: Sequence[Note] = ()
    """What features say of it; whoever shows the snapshot fills this and :attr:`news` in."""
    news: Sequence[News] = ()
    """What has come about since the last one."""

    was_killed: bool = False
    """Whether its last supervisor was killed while jobs ran, and none has run since."""

    @property
    def over(self) -> bool:
        have_ended = bool(self.rows) and all(row["state"] in TERMINAL for row in self.rows)
        return self.holder is None or (have_ended and self.standing != "underway")

    def facts(self) -> list[dict[str, Any]]:
        """The rows as JSON objects; while a supervisor runs, with what it reports beside the
        ledger.
        """
        return [{**row, **self._live_facts(row)} for row in self.rows]

    def _live_facts(self, row: SummaryRow) -> dict[str, Any]:
        if self.live is None:
            return {}
        facts: dict[str, Any] = dict.fromkeys(LIVE_FACTS)
        if row["state"] == "RUNNING":
            job = self.live.jobs.get(row["job_id"])
            facts["phase"] = "starting" if job is None else job.phase
            if job is not None:
                facts["cpu_share"] = job.cpu_share
                facts["run_delay_share"] = job.run_delay_share
        elif row["state"] == "PENDING" and self._may_wait(row["job_id"]):
            facts["waiting"] = self.live.waiting
        return facts

    def _may_wait(self, job_id: str) -> bool:
        """Whether what the supervisor waits for keeps this job from its launch: where that is disk
        space, only a job that asks for so much.
        """
        least_mib = None if self.live is None else self.live.waiting_from_mib
        if least_mib is None or self.free_disk_asked is None:
            return True
        return self.free_disk_asked.get(job_id, 0) >= least_mib


def status(run_dir: Path) -> Snapshot:
    """What the files of a run directory say, read as of now: without a supervisor no job is
    RUNNING.

    :raises UsageError: it is not a run directory, or its ledger is damaged.
    """
    paths = run_directory.existing_run(run_dir)
    refuse_benchmark(paths)
    holder = run_directory.holder(paths)
    if holder is not None and holder.is_elsewhere:
        snapshot = snapshot_from_elsewhere(paths, holder)
    elif holder is not None and not paths.ledger.exists():
        return Snapshot(paths=paths, rows=[], holder=holder)  # it examines the robots first
    else:
        with run_directory.opened_ledger(paths, read_only=True) as ledger:
            snapshot = snapshot_of(ledger, paths, holder, ledger.summary())
    return replace(snapshot, rows=[_as_of_now(row, holder) for row in snapshot.rows])


def snapshot_from_elsewhere(paths: RunPaths, holder: LockHolder) -> Snapshot:
    """The snapshot of a run directory whose supervisor runs on another host: from the files that it
    writes beside its ledger.
    """
    rows, written = summary.read(paths)
    live = live_facts.read(paths, holder.key)
    return Snapshot(paths=paths, rows=rows, holder=holder, written=written, live=live)


def snapshot_of(
    ledger: Ledger, paths: RunPaths, holder: LockHolder | None, rows: Sequence[SummaryRow]
) -> Snapshot:
    """The snapshot of a run directory whose ledger is on this host. :param rows: of the ledger, as
    they are there.
    """
    is_left_running = holder is None and any(row["state"] == "RUNNING" for row in rows)
    live = None if holder is None else live_facts.read(paths, holder.key)
    standing = begun_source.standing_of(paths, ledger)
    asked: Mapping[str, int] | None = None
    if live is not None and live.waiting_from_mib is not None:
        asked = ledger.free_disk_asked()
    return Snapshot(
        paths=paths,
        rows=rows,
        holder=holder,
        live=live,
        free_disk_asked=asked,
        was_killed=is_left_running and run_end.read(paths) is None,
        standing=standing,
        goals=job_figures.goals(ledger) if standing == "underway" else {},
    )


def _as_of_now(row: SummaryRow, holder: LockHolder | None) -> SummaryRow:
    """The time of a running job counts up to now; one that a supervisor left RUNNING when it was
    killed is PENDING.
    """
    if row["state"] != "RUNNING":
        return row
    if holder is None:
        return as_left(row)
    if row["started_at"] is None:
        return row
    running_s = max(0.0, time.time() - row["started_at"])
    return cast(SummaryRow, {**row, "wall_s": (row["wall_s"] or 0.0) + running_s})


def as_left(row: SummaryRow) -> SummaryRow:
    """A job that a killed supervisor has left RUNNING: without a supervisor no job runs."""
    return cast(SummaryRow, {**row, "state": "PENDING", "pid": None})


def exit_code(rows: Iterable[SummaryRow]) -> int:
    """Like that of `run`.

    0: all jobs SUCCEEDED. 1: some FAILED or are CANCELLED. 130: none of these, but jobs run, wait
    or are paused.
    """
    states = {row["state"] for row in rows if row["cause"] != Cause.RUNG}
    if states & {"FAILED", "CANCELLED"}:
        return 1
    return 0 if states == {"SUCCEEDED"} else 130


def find(run_dir: Path, job: str) -> JobPaths:
    """The directory of the one job that has the id ``job``, begins with it or matches it as a
    pattern.

    :raises UsageError: there is no such job or there are several, or it has not been launched yet.
    """
    snapshot = status(run_dir)
    (job_id,) = resolve(snapshot, [job], one=True)
    paths = snapshot.paths.job(job_id)
    if not paths.spec.exists():
        raise UsageError(
            f"{run_dir}: {job_id} has not been launched yet ({row_of(snapshot, job_id)['state']})"
        )
    return paths


def stop(run_dir: Path, jobs: Sequence[str], *, now: bool = False) -> str:
    """Request a stop, or cancel ``jobs``. Returns a message saying what was done.

    :param now: kill the workers at once, as a second request does.
    """
    if jobs:
        return ask(run_dir, jobs, "cancel")
    paths = run_directory.existing_run(run_dir)
    if (holder := ready_holder(paths)) is None:
        return f"{run_dir}: no supervisor is running; {left_batch_jobs.end(paths) or 'nothing to stop'}"
    asked = _ask_to_stop(paths, holder, now=now)
    try:
        ended = left_batch_jobs.end_beside_supervisor(paths)
    except OrchestratorError as error:  # the supervisor has its request all the same
        raise UsageError(f"{asked}\n{error}") from error
    return asked if ended is None else f"{asked}; {ended}"


def _ask_to_stop(paths: RunPaths, holder: LockHolder, *, now: bool) -> str:
    run_dir = paths.root
    request = Request(verb="stop", job_id=holder.key)
    if holder.is_elsewhere or not paths.ledger.exists():
        files = RequestFiles(paths.requests)
        if not now and request in files.take():
            return f"{run_dir}: its supervisor ({holder}) was asked to stop before, and has not read that yet"
        try:
            files.add([request] * (2 if now else 1))
        except FileNotFoundError:  # it has ended just now, and has removed what it had made
            return f"{run_dir}: no supervisor is running; nothing to stop"
        if not holder.is_elsewhere:
            return f"{run_dir}: asked its supervisor ({holder}), which examines the robots, to stop"
        how = (
            "kill its workers now"
            if now
            else "stop or, if it is stopping already, to kill its workers"
        )
        return f"{run_dir}: asked its supervisor ({holder}) on another host to {how}"
    file = paths.ledger.stat()
    with run_directory.opened_ledger(paths) as ledger:
        is_stopping = ledger.is_stopping(holder.key)
        ledger.add_requests([request] * (2 if now else 1))
    if not (paths.ledger.exists() and os.path.samestat(file, paths.ledger.stat())):
        # `--fresh` or `--rebuild-ledger` has replaced it just now.
        return stop(run_dir, [], now=now)
    if not (now or is_stopping):
        return f"{run_dir}: asked its supervisor ({holder}) to stop; workers save a checkpoint and exit"
    already = "was stopping already and " if is_stopping else ""
    kill = "was asked to kill its workers now; their jobs resume from their last checkpoints"
    return f"{run_dir}: its supervisor ({holder}) {already}{kill}"


def ready_holder(paths: RunPaths) -> LockHolder | None:
    """The supervisor that holds the run directory, once it is known and reads requests; None when
    none does.

    :raises UsageError: it is a benchmark, which reads none.
    """
    refuse_benchmark(paths)
    patience = time.monotonic() + UNKNOWN_S
    while (holder := run_directory.holder(paths)) is not None:
        is_examining = paths.staging.exists()
        listens = holder.is_elsewhere or paths.ledger.exists() or is_examining
        if listens and (holder.is_current or time.monotonic() > patience):
            return holder
        time.sleep(LOOK_EVERY_S)  # it has just taken the lock
    return None


def refuse_benchmark(paths: RunPaths) -> None:
    """:raises UsageError: it is the directory of a benchmark, which has no jobs to show or to
    follow.
    """
    if paths.bench.exists() and not paths.ledger.exists():
        advice = f"`report {paths.root}` shows it when it has ended; Ctrl-C where it runs stops it"
        raise UsageError(
            f"{paths.root}: this is a benchmark, which has no jobs of an experiment; {advice}"
        )


def refuse_if_finishing(paths: RunPaths, holder: LockHolder) -> None:
    """:raises RunDirError: all jobs have ended, and ``holder`` reads no requests but to stop."""
    if paths.finishing.exists():
        what = f"all jobs have ended, and its supervisor ({holder}) only finishes what is beside it now"
        advice = f"call this command again when it has ended, or end it with `stop {paths.root}`"
        raise RunDirError(f"{paths.root}: {what}; {advice}")


def wait_for_end(run_dir: Path) -> str:
    """Return when the supervisor that runs now and its batch jobs, if it has any, have ended, with
    a message.
    """
    paths = RunPaths(run_dir)  # perhaps it is removed by now: nothing was launched
    holder = now = run_directory.holder(paths)
    while now is not None and now == holder:
        time.sleep(FOLLOW_EVERY_S)
        now = run_directory.holder(paths)
    had_batch_jobs = left_batch_jobs.wait_for_end(paths)
    batch_jobs = ", and so have its batch jobs" if had_batch_jobs else ""
    return f"{run_dir}: its supervisor has ended{batch_jobs}"


def set_max_parallel(run_dir: Path, jobs_at_once: int) -> str:
    """Change how many jobs run at once, until the run ends. Returns a message saying what was done.

    :raises UsageError: no supervisor is running.
    """
    paths = run_directory.existing_run(run_dir)
    if (holder := ready_holder(paths)) is None:
        advice = "`run --max-parallel` and max_parallel in the job file are for the next run"
        raise UsageError(
            f"{run_dir}: no supervisor is running, whose settings could be changed; {advice}"
        )
    if not (holder.is_elsewhere or paths.ledger.exists()):
        raise UsageError(
            f"{run_dir}: its supervisor ({holder}) still examines the robots; call `set` again later"
        )
    _request(paths, holder, [Request(verb="set", job_id=f"max_parallel={jobs_at_once}")])
    limits = "as far as its slots allow, and until it ends"
    return f"{run_dir}: asked its supervisor ({holder}) to run up to {count(jobs_at_once, 'job')} at once, {limits}"


def ask(run_dir: Path, jobs: Sequence[str], verb: JobVerb) -> str:
    """Cancel or pause ``jobs``, or queue them, or all, again: those that have failed, or are
    cancelled or paused.

    Returns a message saying what was done.

    :raises UsageError: there is no such job, or one is in a state in which that cannot be done.
    """
    snapshot = status(run_dir)
    command = COMMANDS[verb]
    chosen = _choose_jobs(snapshot, jobs, verb)
    if not chosen:
        return f"{run_dir}: {command.nothing}; nothing to {verb}"
    if snapshot.holder is not None:
        requests = [Request(verb=verb, job_id=job_id) for job_id in chosen]
        _request(snapshot.paths, snapshot.holder, requests)
        return f"{run_dir}: asked its supervisor to {verb} {_these(chosen)}"
    moved = _move_locked(run_dir, chosen, verb)
    if ended := [job_id for job_id in chosen if job_id not in moved]:
        raise UsageError(
            f"{run_dir}: had ended already, and cannot be {command.past}: {_these(ended)}"
        )
    if verb == "cancel":
        return f"{run_dir}: cancelled {_these(chosen)}"
    if verb == "pause":
        return f"{run_dir}: paused {_these(chosen)}; `resume` queues them again"
    how = resume_advice.how_to_resume(snapshot.paths)
    return f"{run_dir}: queued {_these(chosen)} again. {how}"


def _choose_jobs(snapshot: Snapshot, jobs: Sequence[str], verb: JobVerb) -> list[str]:
    """The jobs that a command is about, by their ids: those that are named, or all of which it can
    be done.

    :raises UsageError: there is no such job, or one of which it cannot be done.
    """
    run_dir = snapshot.paths.root
    command = COMMANDS[verb]
    rows = {row["job_id"]: row for row in snapshot.rows}

    def state(row: SummaryRow) -> str:
        return _state_for_verb(row, verb, is_supervised=snapshot.holder is not None)

    def is_invalid(row: SummaryRow) -> bool:
        return verb == "retry" and row["cause"] == Cause.INVALID

    def fits(row: SummaryRow) -> bool:
        return state(row) in command.from_states and not is_invalid(row)

    named = resolve(snapshot, jobs, fits=fits) if jobs else list(rows)
    chosen = [job_id for job_id in named if fits(rows[job_id])]
    invalid = [job_id for job_id in named if is_invalid(rows[job_id])]
    if invalid and (jobs or not chosen):
        again = "jobs that were made as the run went on are not examined again"
        advice = f"correct what `status` says and run the job file; {again}"
        raise UsageError(f"{run_dir}: invalid, and never launched: {listed(invalid)}; {advice}")
    if jobs and len(chosen) < len(named):
        others = [job_id for job_id in named if job_id not in chosen]
        wrong = ", ".join(f"{job_id} is {state(rows[job_id])}" for job_id in others)
        only = " or ".join(command.from_states)
        raise UsageError(f"{run_dir}: {wrong}; only jobs that are {only} can be {command.past}")
    return chosen


def _left_running(paths: RunPaths, chosen: Sequence[str]) -> list[str]:
    """Those of ``chosen`` that a supervisor has left RUNNING."""
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        rows = ledger.jobs(decoded=False)
    return [row.job_id for row in rows if row.job_id in chosen and isinstance(row.state, Running)]


def _state_for_verb(row: SummaryRow, verb: JobVerb, *, is_supervised: bool) -> str:
    """The state of a job. The user resumes none that is compared with others at a rung; a supervisor
    does not have those that the job file no longer declares.
    """
    if verb == "resume" and row["cause"] == Cause.RUNG:
        return "PAUSED at a rung, where it waits to be compared with other jobs"
    if verb == "retry" and row["cause"] == Cause.UNDECLARED and is_supervised:
        return "CANCELLED, as the job file did not declare it when the present run began"
    return row["state"]


def _these(jobs: Sequence[str]) -> str:
    return f"{count(len(jobs), 'job')} ({listed(jobs)})"


def _move_locked(run_dir: Path, chosen: Sequence[str], verb: JobVerb) -> list[str]:
    """As :func:`move_jobs`, with the run directory locked; root does it as the user to whom it
    belongs.
    """
    if (owner := done_by_owner.owner_if_not_root(run_dir)) is not None:
        # Before, as root: the owner's process can neither import what asks Slurm nor count on its
        # commands.
        _refuse_what_trains(RunPaths(run_dir), chosen, verb)

        def claim_and_move() -> list[str]:
            with run_directory.claim(run_dir) as paths:
                return move_jobs(paths, chosen, verb)

        return done_by_owner.done_by(owner, claim_and_move)
    with run_directory.claim(run_dir) as paths:
        _refuse_what_trains(paths, chosen, verb)
        return move_jobs(paths, chosen, verb)


def _refuse_what_trains(paths: RunPaths, chosen: Sequence[str], verb: JobVerb) -> None:
    """:raises RunDirError: batch jobs may still train one of ``chosen`` that is not to be
    trained.
    """
    if verb in ("cancel", "pause") and (running := _left_running(paths, chosen)):
        deed = f"{_these(running)} cannot be {COMMANDS[verb].past}: nobody would end what trains"
        left_batch_jobs.refuse_beside(paths, deed)


def move_jobs(paths: RunPaths, chosen: Sequence[str] | None, verb: JobVerb) -> list[str]:
    """Move jobs in the ledger while no supervisor runs. Returns those that were in a state from
    which they may move. An error leaves the states of all as they were.

    :param chosen: None for all.
    """
    ledger = Ledger.open(paths.ledger)
    try:
        moved = _move_in(ledger, paths, chosen, verb)
        ledger.commit()
    except BaseException:
        ledger.abandon()
        raise
    try:
        summary.write(paths, ledger)
    finally:
        ledger.close()
    return moved


def _move_in(
    ledger: Ledger, paths: RunPaths, chosen: Sequence[str] | None, verb: JobVerb
) -> list[str]:
    """As :func:`move_jobs`, without a commit."""
    moved = []
    for row in ledger.jobs():
        job_id = row.job_id
        is_chosen = chosen is None or job_id in chosen
        if not is_chosen or row.state.name not in COMMANDS[verb].from_states:
            continue
        if isinstance(row.state, Running):  # as its supervisor has left it when it died
            ledger.note(verb, job_id)
            settled = recovery.settle(row, paths, ledger, SilentReporter())
            if isinstance(settled.state, Paused | Cancelled):
                moved.append(job_id)
            continue
        new = recovery.requested_state(verb, row.state)
        if new is not None:
            ledger.set_state(job_id, move(job_id, row.state, new))
            moved.append(job_id)
    return moved


def _request(paths: RunPaths, holder: LockHolder, requests: Sequence[Request]) -> None:
    refuse_if_finishing(paths, holder)
    if holder.is_elsewhere:
        RequestFiles(paths.requests).add(requests)
        return
    with run_directory.opened_ledger(paths) as ledger:
        ledger.add_requests(requests)


def row_of(snapshot: Snapshot, job_id: str) -> SummaryRow:
    for row in snapshot.rows:
        if row["job_id"] == job_id:
            return row
    raise UsageError(f"{snapshot.paths.root}: job {job_id} has been removed")


def resolve(
    snapshot: Snapshot,
    names: Sequence[str],
    *,
    fits: Callable[[SummaryRow], bool] = lambda _: True,
    one: bool = False,
) -> list[str]:
    """The job ids that ``names`` are, that begin with them, or that match them as patterns, each
    once.

    :param fits: of several jobs that match a pattern, those are taken; all of them where it is true
        for none.
    :param one: whether a pattern, too, may match a single job only.
    :raises UsageError: no job fits a name, or several fit one that may have a single one.
    """
    rows = {row["job_id"]: row for row in snapshot.rows}
    job_ids = list(rows)
    if names and not job_ids and snapshot.holder is not None:
        what = "still examines the robots; call this command again later"
        raise UsageError(f"{snapshot.paths.root}: its supervisor ({snapshot.holder}) {what}")
    resolved: dict[str, None] = {}
    for name in names:
        matches = matching_jobs(name, job_ids)
        may_be_several = is_pattern(name) and not one
        where = f"{snapshot.paths.root}: {name}"
        if not matches:
            near = difflib.get_close_matches(name, job_ids, n=5, cutoff=0.4) or job_ids[:5]
            raise UsageError(f"{where}: no such job; jobs here: {listed(near)}")
        if len(matches) > 1 and not may_be_several:
            advice = f"; '{name}*' in quotes names all of them"
            if one:
                advice = "; type one of them, or more of its beginning"
            if is_pattern(name):
                advice = ""
            raise UsageError(f"{where}: matches several jobs: {listed(matches)}{advice}")
        fitting = [job_id for job_id in matches if fits(rows[job_id])]
        resolved |= dict.fromkeys(fitting or matches)
    return list(resolved)


def exit_code_of(snapshot: Snapshot) -> int:
    """The exit code for the jobs of ``snapshot``. As with `run`, those that are CANCELLED since the
    job file no longer declares them do not count; and where something makes the jobs, it is that of
    `run`, as far as it is known.
    """
    declared = [row for row in snapshot.rows if row["cause"] != Cause.UNDECLARED]
    if snapshot.standing == "none":
        return exit_code(declared)
    with run_directory.opened_ledger(snapshot.paths, read_only=True) as ledger:
        outcome = begun_source.outcome(snapshot.paths, ledger)
    if outcome == "as its jobs":
        return exit_code(declared)
    states = {row["state"] for row in snapshot.rows if row["cause"] != Cause.RUNG}
    if outcome != "underway" and not states & {"PENDING", "RUNNING", "PAUSED"}:
        return 0 if outcome == "succeeded" else 1
    end = run_end.read(snapshot.paths) if snapshot.holder is None else None
    return 130 if end is None or end.exit_code == 0 else end.exit_code
