"""Decides what becomes of each declared job, for the supervisor that enters it and for a dry run.

No I/O and no clock: everything comes in as values and goes out as values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.front_end import option
from orchestrator.core.job import (
    Cancelled,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    Running,
    State,
    Succeeded,
    lacked_room,
)
from orchestrator.core.text import count
from orchestrator.examination.preflight import JobVerdict
from orchestrator.ledger import JobRow
from orchestrator.server.differences import (
    Difference,
    OnChange,
    by_difference,
    differences,
    obstacles,
)
from orchestrator.server.jobs import wanted_state
from orchestrator.server.ledger import Wanted

Action: TypeAlias = Literal["start", "resume", "restart", "extend", "refuse", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What decides whether files are of the same training."""

    fingerprint: str
    robot_hash: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDirectory:
    """What is in the directory of a job."""

    exists: bool = False
    has_results: bool = False
    has_replay_buffer: bool = True
    """Whether an off-policy algorithm can learn on from the newest checkpoint."""
    training: Training | None = None
    """That of its files; None: not known."""
    state: State = field(default_factory=Pending)
    """In which a job is taken over that the ledger does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """A declared job with all that is known of it."""

    job: Job
    """As it was examined."""
    verdict: JobVerdict
    row: JobRow | None
    """None: it is not in the ledger."""
    wanted: Wanted = "run"
    """What its user wants."""
    found: FoundDirectory = field(default_factory=FoundDirectory)

    @property
    def has_lost_directory(self) -> bool:
        """Whether it has begun, is not over, and its directory is gone: it can begin anew."""
        row = self.row
        if row is None or not row.attempts or self.found.exists or self.verdict.problem:
            return False
        return not isinstance(row.state, Running | Failed | Cancelled)

    @property
    def training(self) -> Training:
        return Training(fingerprint=self.job.spec.fingerprint(), robot_hash=self.verdict.robot_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a declared job."""

    what: Literal["enter", "adopt", "restart", "continue", "extend", "refuse"]
    """``enter``: it begins; ``adopt``: its directory is taken over; ``continue``: as declared
    before, or as it is if it may not change."""
    state: State
    """In which the ledger has it then."""
    before: State | None = None
    """In which the ledger had it; None: it was not there."""
    has_begun: bool = False
    """Whether it has had an attempt, and goes on from there."""
    wanted: Wanted = "run"
    changes: Sequence[Difference] = ()
    """What is declared differently now; if it is to be trained further, why it cannot be."""
    why: str = ""
    """Why its state changes, if people are to know that."""

    @property
    def shown_state(self) -> str | None:
        """The name of its state before, or that of its directory; None: it is new."""
        if self.what == "adopt":
            return self.state.name
        return None if self.before is None else self.before.name

    @property
    def lacks_room(self) -> bool:
        """Whether it is not launched because the machines have too little for it."""
        return lacked_room(self.state)

    @property
    def action(self) -> Action:
        """What a run does with the job. ``none``: it is left as it is."""
        if self.what in ("refuse", "restart"):
            return self.what
        if not isinstance(self.state, Pending | Running):
            return "none"
        if self.what == "extend" and isinstance(self.before, Succeeded):
            return "extend"
        return "resume" if self.has_begun else "start"

    @property
    def is_launched(self) -> bool:
        return self.what != "refuse" and isinstance(self.state, Pending | Running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of the jobs of an experiment."""

    fates: Mapping[str, Fate]
    """By ``job_id``."""
    refusal: str = ""
    """Why nothing is done at all; empty if something is."""


def decide(
    declared: Sequence[KnownJob],
    on_change: OnChange,
    run_dir: Path,
    *,
    are_compared: Callable[[], bool] = lambda: False,
) -> Decision:
    """Decide what becomes of the jobs of a job file.

    :param are_compared: returns whether the jobs are compared with each other at rungs; called only
        if jobs have changed.
    """
    begun = [one for one in declared if _has_begun(one)]
    changed = _with_those_that_start_from(_own_differences(begun), begun)
    cannot_extend = _obstacles(begun, changed)
    refused: Mapping[str, Sequence[Difference]] = {}
    refusal = ""
    if changed:
        running = {
            one.job.job_id: changed[one.job.job_id]
            for one in begun
            if one.job.job_id in changed and one.row and isinstance(one.row.state, Running)
        }
        if running:
            refused = changed
            refusal = _running_message(run_dir, running)
        elif are_compared():
            refused = changed
            refusal = _at_rungs_message(run_dir, changed)
        elif on_change == "refuse":
            refused = changed
            refusal = _changed_message(run_dir, changed, can_extend=not cannot_extend)
        elif on_change == "extend" and cannot_extend:
            refused = cannot_extend
            refusal = _obstacles_message(run_dir, cannot_extend)
    fates: dict[str, Fate] = {}
    for one in declared:
        job_id = one.job.job_id
        changes = refused.get(job_id, changed.get(job_id, ()))
        if not _has_begun(one):
            fates[job_id] = _fate_of_new(one)
        elif job_id in refused:
            assert one.row is not None
            state = one.row.state
            fates[job_id] = Fate(
                what="refuse", state=state, before=state, has_begun=True, changes=changes
            )
        elif on_change == "restart" and job_id in changed:
            fates[job_id] = _fate_of_restarted(one, changes)
        else:
            is_extended = on_change == "extend" and job_id in changed
            fates[job_id] = continued(one, changes, is_extended=is_extended)
    return Decision(fates=fates, refusal=refusal)


def _has_begun(one: KnownJob) -> bool:
    return one.row is not None and one.row.attempts > 0 and not one.has_lost_directory


# -- one job


def _fate_of_new(one: KnownJob) -> Fate:
    """Return what becomes of a job that has not begun, or begins anew as its directory is gone."""
    before = None
    why = ""
    if one.has_lost_directory:
        why = "is trained again from the beginning, as its directory is gone"
    elif one.row is not None:
        before = one.row.state
    if one.verdict.is_invalid:
        assert one.verdict.problem is not None
        state: State = Failed(cause=Cause.INVALID, message=one.verdict.problem.message)
        return Fate(what="enter", state=state, before=before, wanted=one.wanted)
    if one.row is None and one.found.training == one.training:
        held: Wanted = "run"
        if isinstance(one.found.state, Paused) and not one.found.state.at_rung:
            held = "pause"
        state = _with_room(one.found.state, one.verdict)
        return Fate(what="adopt", state=state, has_begun=True, wanted=held)
    state = _with_room(wanted_state(Pending(), one.wanted), one.verdict)
    return Fate(what="enter", state=state, before=before, wanted=one.wanted, why=why)


def _fate_of_restarted(one: KnownJob, changes: Sequence[Difference]) -> Fate:
    """A job that its user has cancelled was cancelled in the training that is given up."""
    assert one.row is not None
    held: Wanted = "run" if one.wanted == "cancel" else one.wanted
    state = _with_room(wanted_state(Pending(), held), one.verdict)
    return Fate(what="restart", state=state, before=one.row.state, wanted=held, changes=changes)


def continued(
    one: KnownJob, changes: Sequence[Difference] = (), *, is_extended: bool = False
) -> Fate:
    """Return what becomes of a job that goes on."""
    assert one.row is not None
    before = one.row.state
    state = before
    why = ""
    if isinstance(state, Cancelled) and state.is_undeclared:
        why = "is declared again"
    elif isinstance(state, Succeeded) and not one.found.has_results:
        why = "is trained again, as its model.zip or vecnormalize.pkl is gone"
    elif lacked_room(state) and not one.verdict.lacks_room:
        why = "goes on, as there is room for it now"
    elif isinstance(state, Paused) and state.at_rung and one.job.spec.pause_at is None:
        why = "trains to its end, as nothing compares it with others any more"
    if why or (is_extended and isinstance(state, Succeeded)):
        state = Pending()
    if isinstance(state, Pending) or lacked_room(state):
        state = _with_room(state, one.verdict)
    return Fate(
        what="extend" if is_extended else "continue",
        state=state,
        before=before,
        has_begun=one.row.attempts > 0,
        wanted=one.wanted,
        changes=changes,
        why="" if lacked_room(state) else why,
    )


def _with_room(state: State, verdict: JobVerdict) -> State:
    """Return the state of a job that waits, if the machines have too little for it."""
    if verdict.lacks_room and (isinstance(state, Pending) or lacked_room(state)):
        assert verdict.problem is not None
        return Failed(cause=Cause.TOO_LARGE, message=verdict.problem.message)
    return state


# -- changes


def _own_differences(begun: Sequence[KnownJob]) -> dict[str, list[Difference]]:
    """Return what each job would train otherwise now, without those that would not."""
    found = {}
    for one in begun:
        assert one.row is not None
        if changes := differences(one.row, one.job, one.verdict):
            found[one.job.job_id] = changes
    return found


def _with_those_that_start_from(
    changed: dict[str, list[Difference]], begun: Sequence[KnownJob]
) -> dict[str, list[Difference]]:
    """Add the jobs that start from the policies of changed ones, and so on."""
    starts = {
        one.job.job_id: one.job.spec.init_job for one in begun if one.job.spec.init_job is not None
    }
    while found := [job_id for job_id, source in starts.items() if source in changed]:
        for job_id in found:
            source = starts.pop(job_id)
            text = f"init: job {source}, which it starts from, is declared differently"
            changed[job_id] = [*changed.get(job_id, ()), Difference("init", text)]
    return changed


def _obstacles(
    begun: Sequence[KnownJob], changed: Mapping[str, Sequence[Difference]]
) -> dict[str, Sequence[Difference]]:
    """Return why changed jobs cannot be trained further, without those that can be."""
    found: dict[str, Sequence[Difference]] = {}
    for one in begun:
        job_id = one.job.job_id
        if job_id in changed:
            assert one.row is not None
            why = obstacles(
                one.row,
                one.job,
                one.verdict,
                changed[job_id],
                has_replay_buffer=one.found.has_replay_buffer,
            )
            if why:
                found[job_id] = why
    return found


# -- messages


def on_change_option(value: OnChange) -> str:
    """Return the option with this value, as the user gives it."""
    return option("on_change", value, sign="=")


def _changed_message(
    run_dir: Path, changed: Mapping[str, Sequence[Difference]], *, can_extend: bool
) -> str:
    jobs_are = count(len(changed), "job that has run here is", "jobs that have run here are")
    them = "it" if len(changed) == 1 else "them"
    extend = f"{on_change_option('extend')} trains {them} further, " if can_extend else ""
    advice = (
        f"{extend}{on_change_option('restart')} trains {them} again (what was trained is kept under"
        f" another name), another {option('run_dir')} leaves {them} alone"
    )
    return _message(run_dir, f"{jobs_are} declared differently now", changed, advice)


def _running_message(run_dir: Path, running: Mapping[str, Sequence[Difference]]) -> str:
    jobs_are = count(len(running), "job that runs is", "jobs that run are")
    advice = f"Undo these changes, or `stop {run_dir}` and use `run --on-change`"
    return _message(run_dir, f"{jobs_are} declared differently now", running, advice)


def _at_rungs_message(run_dir: Path, changed: Mapping[str, Sequence[Difference]]) -> str:
    jobs_are = count(
        len(changed), "job that is compared at rungs is", "jobs that are compared at rungs are"
    )
    advice = (
        "`run --fresh` trains all jobs again (what is here is kept under another name), and"
        f" another {option('run_dir')} leaves it as it is. Single jobs cannot start over: others"
        " were compared with them"
    )
    return _message(run_dir, f"{jobs_are} declared differently now", changed, advice)


def _obstacles_message(run_dir: Path, found: Mapping[str, Sequence[Difference]]) -> str:
    jobs = count(len(found), "job cannot be trained", "jobs cannot be trained")
    advice = (
        f"{on_change_option('extend')} takes a larger total_timesteps and no other change. Undo the"
        f" changes of these jobs, or use {on_change_option('restart')}, which trains changed jobs"
        " again and keeps their old directories under another name"
    )
    return _message(run_dir, f"{jobs} further", found, advice)


def _message(
    run_dir: Path, what: str, changed: Mapping[str, Sequence[Difference]], advice: str
) -> str:
    return "\n".join([f"{run_dir}: {what}:", *by_difference(changed), advice])
