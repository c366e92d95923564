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
from typing import Any, Literal, TypeAlias

from orchestrator.core.errors import OrchestratorError, RunDirError, UsageError
from orchestrator.core.job import TERMINAL, Cancelled, Cause, Paused, Pending, Running, State, move
from orchestrator.core.job_patterns import is_pattern, matching_jobs
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count, listed
from orchestrator.experiment import begun_source
from orchestrator.experiment.begun_source import Standing
from orchestrator.experiment.directory import left_batch_jobs, run_directory, run_end
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
NAMES_SHOWN = 10

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
        is_running = row["state"] == "RUNNING"
        job = self.live.jobs.get(row["job_id"]) if is_running else None
        least_mib = self.live.waiting_from_mib
        asked = self.free_disk_asked
        is_refused = least_mib is None or asked is None or asked.get(row["job_id"], 0) >= least_mib
        return {
            "phase": job.phase if job else "starting" if is_running else None,
            "cpu_share": job.cpu_share if job else None,
            "run_delay_share": job.run_delay_share if job else None,
            "waiting": self.live.waiting if row["state"] == "PENDING" and is_refused else None,
        }


def status(run_dir: Path) -> Snapshot:
    """What the files of a run directory say, read as of now: without a supervisor no job is
    RUNNING.

    :raises UsageError: it is not a run directory, or its ledger is damaged.
    """
    paths = run_directory.existing_run(run_dir)
    refuse_benchmark(paths)
    holder = run_directory.holder(paths)
    if holder is not None and holder.is_elsewhere:
        rows, written = summary.read(paths)
        live = live_facts.read(paths, holder.key)
        return Snapshot(
            paths=paths, rows=_as_of_now(rows, holder), holder=holder, written=written, live=live
        )
    if holder is not None and not paths.ledger.exists():
        return Snapshot(paths=paths, rows=[], holder=holder)  # it examines the robots first
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        rows = ledger.summary()
        return replace(snapshot_of(ledger, paths, holder, rows), rows=_as_of_now(rows, holder))


def snapshot_of(
    ledger: Ledger, paths: RunPaths, holder: LockHolder | None, rows: Sequence[SummaryRow]
) -> Snapshot:
    """The snapshot of a run directory whose ledger is on this host. :param rows: of the ledger, as
    they are there.
    """
    is_left_running = holder is None and any(row["state"] == "RUNNING" for row in rows)
    live = None if holder is None else live_facts.read(paths, holder.key)
    standing = begun_source.standing_of(paths, ledger)
    asked = (
        ledger.free_disk_asked() if live is not None and live.waiting_from_mib is not None else None
    )
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


def _as_of_now(rows: list[SummaryRow], holder: LockHolder | None) -> list[SummaryRow]:
    """The time of running jobs counts up to now; jobs that a supervisor left RUNNING when it was
    killed are PENDING.
    """
    now = time.time()
    for row in rows:
        if row["state"] == "RUNNING" and holder is None:
            row["state"] = "PENDING"
            row["pid"] = None
        elif row["state"] == "RUNNING" and row["started_at"] is not None:
            row["wall_s"] = (row["wall_s"] or 0.0) + max(0.0, now - row["started_at"])
    return rows


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
        return stop(
            run_dir, [], now=now
        )  # `--fresh` or `--rebuild-ledger` has replaced it just now
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
        listens = (
            holder.is_elsewhere or paths.ledger.exists() or paths.staging.exists()
        )  # the last while it examines
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
    have_ended = left_batch_jobs.wait_for_end(paths)
    return (
        f"{run_dir}: its supervisor has ended{', and so have its batch jobs' if have_ended else ''}"
    )


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

    def state_for_verb(row: SummaryRow) -> str:
        return _state_for_verb(row, verb, is_supervised=snapshot.holder is not None)

    def fits(row: SummaryRow) -> bool:
        is_invalid = verb == "retry" and row["cause"] == Cause.INVALID
        return state_for_verb(row) in command.from_states and not is_invalid

    named = resolve(snapshot, jobs, fits=fits) if jobs else [row["job_id"] for row in snapshot.rows]
    states = {job_id: state_for_verb(row_of(snapshot, job_id)) for job_id in named}
    if verb == "retry" and (
        invalid := [id_ for id_ in named if row_of(snapshot, id_)["cause"] == Cause.INVALID]
    ):
        named = [job_id for job_id in named if job_id not in invalid]
        if jobs or not any(states[job_id] in command.from_states for job_id in named):
            again = "jobs that were made as the run went on are not examined again"
            advice = f"correct what `status` says and run the job file; {again}"
            raise UsageError(
                f"{run_dir}: invalid, and never launched: {listed(invalid, NAMES_SHOWN)}; {advice}"
            )
    chosen = [job_id for job_id in named if states[job_id] in command.from_states]
    if jobs and len(chosen) < len(named):
        wrong = ", ".join(
            f"{job_id} is {states[job_id]}" for job_id in named if job_id not in chosen
        )
        only = " or ".join(command.from_states)
        raise UsageError(f"{run_dir}: {wrong}; only jobs that are {only} can be {command.past}")
    if not chosen:
        return f"{run_dir}: {command.nothing}; nothing to {verb}"
    if snapshot.holder is not None:
        _request(
            snapshot.paths,
            snapshot.holder,
            [Request(verb=verb, job_id=job_id) for job_id in chosen],
        )
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
    return f"{run_dir}: queued {_these(chosen)} again; run the same `run` command again to resume"


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
    return f"{count(len(jobs), 'job')} ({listed(jobs, NAMES_SHOWN)})"


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
    which they may move.

    :param chosen: None for all.
    """
    ledger = Ledger.open(paths.ledger)
    moved = []
    try:
        for row in ledger.jobs():
            job_id = row.job_id
            if (chosen is not None and job_id not in chosen) or row.state.name not in COMMANDS[
                verb
            ].from_states:
                continue
            if isinstance(row.state, Running):  # as its supervisor has left it when it died
                ledger.note(verb, job_id)
                if isinstance(
                    recovery.settle(row, paths, ledger, SilentReporter()).state, Paused | Cancelled
                ):
                    moved.append(job_id)
            else:
                ledger.set_state(job_id, move(job_id, row.state, _next(verb, row.state)))
                moved.append(job_id)
        ledger.commit()
        summary.write(paths, ledger)
    finally:
        ledger.close()
    return moved


def _next(verb: JobVerb, state: State) -> State:
    failures = state.failures if isinstance(state, Pending | Paused) else 0
    match verb:
        case "cancel":
            return Cancelled()
        case "pause":
            return Paused(failures=failures)
        case "resume":
            return Pending(failures=failures)
        case "retry":
            return Pending()


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
        if not matches or (len(matches) > 1 and not may_be_several):
            shown = (
                matches or difflib.get_close_matches(name, job_ids, n=5, cutoff=0.4) or job_ids[:5]
            )
            what = "matches several jobs" if matches else "no such job; jobs here"
            several = (
                "type one of them, or more of its beginning"
                if one
                else f"'{name}*' in quotes names all of them"
            )
            every = f"; {several}" if matches and not is_pattern(name) else ""
            raise UsageError(
                f"{snapshot.paths.root}: {name}: {what}: {listed(shown, NAMES_SHOWN)}{every}"
            )
        resolved |= dict.fromkeys([job_id for job_id in matches if fits(rows[job_id])] or matches)
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
