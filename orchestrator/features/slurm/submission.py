"""The submission of pilots by ``sbatch``, as an array of batch jobs: what of it waits and runs, what
has ended and how, as ``squeue`` says, and what is to be submitted.

``squeue`` is asked at most once in 10 s, and once a minute while nothing is awaited. Its answer
decides alone how many pilots are submitted, so that none is submitted twice by a supervisor that
was killed, or whose ``sbatch`` timed out.
"""

from __future__ import annotations

import math
import os
import pwd
import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import ClusterLostError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.front_end import repeat_call
from orchestrator.core.text import count, last_line, listed
from orchestrator.executors.executor import Report
from orchestrator.features.slurm.batch_script import LOG, SCRIPT
from orchestrator.features.slurm.command_runner import PATIENCE_S, CommandAnswer, SlurmCommand

ASK_EVERY_S = 10.0
ASK_AT_EASE_S = 60.0
RETRY_S = 30.0
"""Before ``sbatch`` is tried again when the controller did not answer."""
COMPLETING_S = 60.0
"""So long a task that is ending may wait in the queue again; where an epilog hangs, it may be
ending for hours."""
VISIBLE_S = 60.0
"""So long squeue shows a job at least; later, one that has ended may be forgotten."""
REFUSED_RETRY_S = 300.0
"""The same while pilots work, and Slurm refuses further ones or these cannot start."""
MOST_FAILED_STARTS = 3
SILENT_START_S = 1800.0
"""A pilot that runs and has not reported for so long is cancelled, as it may hang until its time
limit."""
END_S = 30.0
"""So long pilots that were asked to end may take, before they are cancelled."""
END_ASK_S = 0.25
"""After which Slurm is asked again whether they have ended, and then after twice as long each
time."""
SHOWN = 5
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
PRESENT = (*WAITING, "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
"""States of pilots that wait, run or come back. All others have ended, or are about to
(``COMPLETING``)."""
FAILED_START = ("FAILED", "COMPLETED", "OUT_OF_MEMORY", "TIMEOUT")
"""How a pilot ends that cannot run: its node is not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """A task of the array, as ``squeue`` shows it."""

    state: str
    reason: str
    """Why it waits."""


class BatchQueue:
    """:param name: of the batch jobs; no other jobs of this user have it.
    :param folder: for the script; the pilots' logs are there.
    :param pilots: number of pilots that are to run.
    :param script: what submits so many.
    """

    def __init__(
        self, *, name: str, folder: Path, pilots: int, script: Callable[[int], str]
    ) -> None:
        self.pilots = pilots
        self._name = name
        self._report: Report = lambda _kind, _message: None
        self._joined: set[str] = set()
        self._released: set[str] = set()
        """Tasks that this supervisor has ended."""
        self._answer_began = -math.inf
        self._folder = folder
        self._script = script
        self._rows: Mapping[str, QueuedTask] = {}
        """By task."""
        self._over: set[str] | None = None
        """Tasks whose end was seen; None before the first answer."""
        self._ending_before: set[str] = set()
        """Tasks that were ending at the first answer: whoever has ended them did it before."""
        self._completing: dict[str, float] = {}
        """Task that is ending → when that was first seen."""
        self._unreported_since: dict[str, float] = {}
        """Task that runs, and whose pilot has not reported → when that was first seen."""
        self._cancelled: set[str] = set()
        self._failed_starts: list[str] = []
        self._question: SlurmCommand | None = None
        self._asked_at = -math.inf
        self._submission: SlurmCommand | None = None
        self._submitted = ""
        """The job that was submitted last, until squeue has shown it."""
        self._submitting = 0
        self._submitted_at = -math.inf
        """When that was; later than now while further submissions are postponed."""
        self._refusal = ""
        """Why sbatch refuses the pilots that were submitted last."""
        self._cancellations: list[SlurmCommand] = []
        self._told = ""
        self._waited_for = ""
        """Why pilots waited at the last answer."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def joined(self) -> Set[str]:
        """Tasks whose pilot has reported, to this supervisor or to one before."""
        return self._joined

    @property
    def answer_began(self) -> float:
        """When the question was asked that :meth:`state` answers from."""
        return self._answer_began

    def report(self, kind: str, message: str) -> None:
        self._report(kind, message)

    def report_to(self, report: Report) -> None:
        self._report = report

    def continue_named(self, name: str) -> None:
        """Take over the batch jobs that a supervisor before has submitted under ``name``."""
        self._name = name

    @property
    def wanted(self) -> int:
        """Number of pilots that are to run, without those that somebody has cancelled."""
        return max(0, self.pilots - len(self._cancelled))

    @property
    def missing(self) -> int:
        """Number of pilots to be submitted; 0 while that is not known."""
        if self._submission is not None or self._answer_began <= self._submitted_at:
            return 0
        present = sum(
            row.state in PRESENT or self._may_come_back(task)
            for task, row in self._rows.items()
            if task not in self._released
        )
        return max(0, self.wanted - present)

    def _may_come_back(self, task: str) -> bool:
        """Whether it has only just begun to end: a task that Slurm requeues does so before it waits
        again.
        """
        began = self._completing.get(task)
        return began is not None and self._answer_began - began < COMPLETING_S

    @property
    def _is_failing(self) -> bool:
        return len(self._failed_starts) >= min(MOST_FAILED_STARTS, self.pilots)

    def state(self, task: str) -> str | None:
        """The state of a task; None if Slurm does not know it, or not any more."""
        return self._rows[task].state if task in self._rows else None

    def update(self, *, is_urgent: bool) -> None:
        """Take answers, and ask when it is time.

        :raises ClusterLostError: squeue hides what was submitted.
        """
        now = time.monotonic()
        self._cancellations = [
            command for command in self._cancellations if command.answer() is None
        ]
        if self._submission is not None and (answer := self._submission.answer()) is not None:
            self._submission = None
            self._submitted_at = now
            self._take_submission(answer)
        if self._question is not None and (answer := self._question.answer()) is not None:
            began = self._question.began
            self._question = None
            self._take_answer(began, answer)
        every_s = ASK_EVERY_S if is_urgent else ASK_AT_EASE_S
        if self._question is None and self._submission is None and now - self._asked_at >= every_s:
            self._question = self._ask()
            self._asked_at = now

    def ask_now(self) -> bool:
        """Ask and wait for the answer. Returns whether there is one."""
        question = self._ask()
        self._asked_at = time.monotonic()
        answer = question.wait()
        self._take_answer(question.began, answer)
        return answer.returncode == 0

    def _ask(self) -> SlurmCommand:
        return queue_question(self._name, users=[user_name(os.geteuid())], columns="%i|%T|%r")

    def _take_answer(self, began: float, answer: CommandAnswer) -> None:
        if answer.returncode:
            self._tell(f"squeue does not answer ({answer.problem}); pilots that run go on")
            return
        self._answer_began = began
        self._rows = _rows(answer)
        completing = [task for task, row in self._rows.items() if row.state == "COMPLETING"]
        self._completing = {task: self._completing.get(task, began) for task in completing}
        unfinished = (*PRESENT, "COMPLETING")
        over = {task for task, row in self._rows.items() if row.state not in unfinished}
        if self._over is None:  # the first answer: what is over ended before this supervisor began
            self._ending_before = set(completing)
        else:
            self._ending_before &= {*completing, *over}
            self._take_ends(over - self._over - self._released - self._ending_before)
            self._report_waiting()
        self._over = over
        self._give_up_silent_starts(began)
        self._check_submitted()

    def _give_up_silent_starts(self, now: float) -> None:
        """Cancel the tasks that run, and whose pilots do not report."""
        running = {task for task, row in self._rows.items() if row.state == "RUNNING"}
        running -= self._joined | self._released
        self._unreported_since = {task: self._unreported_since.get(task, now) for task in running}
        silent = [
            task for task, since in self._unreported_since.items() if now - since >= SILENT_START_S
        ]
        for task in sorted(silent):
            self._failed_starts.append(task)
            log = self._folder / LOG.replace("%A_%a", task)
            text = f"pilot {task} has run for {SILENT_START_S:.0f} s and not reported; it is cancelled. See {log}"
            self.report("warning", text)
        self.cancel(*sorted(silent))

    def _check_submitted(self) -> None:
        """:raises ClusterLostError: squeue hides what was submitted, so that it would be submitted
        without end.
        """
        job = self._submitted
        age_s = self._answer_began - self._submitted_at
        if not job or age_s <= 0.0:
            return
        self._submitted = ""
        is_shown = job in {task.partition("_")[0] for task in (*self._rows, *self._joined)}
        if not is_shown and age_s < VISIBLE_S:
            advice = f"Correct [slurm], and {repeat_call()}; {self._folder / SCRIPT} is the script"
            raise ClusterLostError(
                f"sbatch has submitted job {job}, which squeue does not show. {advice}"
            )

    def _take_ends(self, ended: set[str]) -> None:
        cancelled = {task for task in ended if self._rows[task].state == "CANCELLED"}
        self._cancelled |= cancelled
        if cancelled:
            names = listed(sorted(cancelled), SHOWN)
            what = (
                f"{count(len(cancelled), 'pilot was', 'pilots were')} cancelled (scancel): {names}"
            )
            then = "Their jobs continue in other pilots; no pilot is submitted in their place"
            self.report("warning", f"{what}. {then}")
        for task in sorted(ended - cancelled):
            state = self._rows[task].state
            if task in self._joined:
                self._failed_starts.clear()
                if state != "COMPLETED":
                    text = f"pilot {task} has ended: {state}. Its jobs continue in other pilots"
                    self.report("warning", text)
            elif state in FAILED_START:
                self._failed_starts.append(task)

    def record_join(self, task: str) -> None:
        """Its pilot has reported for the first time."""
        self._joined.add(task)
        self._failed_starts.clear()

    def record_joined_before(self, tasks: Collection[str]) -> None:
        """Their pilots have reported to a supervisor before: that they end now is no failed
        start.
        """
        self._joined.update(tasks)

    def record_release(self, task: str) -> None:
        """Its pilot has been told to end."""
        self._released.add(task)

    def check(self, *, is_served: bool) -> None:
        """Act on what :meth:`update` has learnt.

        :param is_served: whether a pilot is there: then the run goes on without further ones.
        :raises ClusterLostError: no pilot is there, and none will come.
        """
        refusal, self._refusal = self._refusal, ""
        if is_served:
            self._postpone_further(refusal)
            return
        if refusal:
            script = f"{self._folder / SCRIPT} is the script"
            advice = f"Correct [slurm] in the job file, and {repeat_call()}; {script}"
            raise ClusterLostError(f"sbatch refuses the pilots: {refusal}. {advice}")
        if not self.wanted:
            again = f"{repeat_call().capitalize()} to resume with new ones"
            raise ClusterLostError(
                f"every pilot was cancelled (scancel), so no job can run any more. {again}"
            )
        if self._is_failing:
            raise ClusterLostError(f"{self._why_failing()}, and {repeat_call()}")

    def _postpone_further(self, refusal: str) -> None:
        """Try pilots beside those that are there later, if Slurm refuses them or they fail."""
        if refusal:
            self.postpone(
                f"sbatch refuses further pilots: {refusal}. The others go on; it is tried again"
            )
        if self._is_failing:
            self.postpone(f"{self._why_failing()}. The others go on; further ones are tried later")
            self._failed_starts.clear()

    def _why_failing(self) -> str:
        task = self._failed_starts[-1]
        log = self._folder / LOG.replace("%A_%a", task)
        try:
            why = last_line(log.read_text(errors="replace"), "its log is empty")
        except OSError:
            why = "there is no log of it: perhaps its node does not have the run directory"
        text = f"pilots end, or hang, before they report; {task} ({self.state(task)}): {why}"
        return f"{text}. See {log} and setup in [slurm]"

    def postpone(self, why: str) -> None:
        """Submit no further pilot for :data:`REFUSED_RETRY_S`. :param why: a warning that says so."""
        self._submitted = ""
        self._submitted_at = time.monotonic() + REFUSED_RETRY_S
        self.report("warning", why)

    def _report_waiting(self) -> None:
        waiting = [row.reason for row in self._rows.values() if row.state in WAITING]
        reasons = listed(sorted(set(waiting)), SHOWN)
        if waiting and reasons == self._waited_for:  # the second answer: most start within seconds
            what = count(len(waiting), "pilot waits", "pilots wait")
            self._tell(f"{what} in Slurm's queue: {reasons}")
        self._waited_for = reasons

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self.report("waiting", text)

    # -- sbatch and scancel

    def submit(self, pilots: int) -> None:
        """Submit so many further pilots, unless that was done just now."""
        if time.monotonic() - self._submitted_at < ASK_EVERY_S:
            return
        path = self._folder / SCRIPT
        try:
            write_whole(path, self._script(pilots))
        except OSError as error:
            self._submitted_at = time.monotonic() + RETRY_S - ASK_EVERY_S
            self._tell(f"{path} cannot be written ({error.strerror}); it is tried again")
            return
        self._submission = SlurmCommand("sbatch", "--parsable", str(path))
        self._submitting = pilots

    def _take_submission(self, answer: CommandAnswer) -> None:
        if answer.returncode == 0:
            job = answer.output.strip().partition(";")[0]
            self._submitted = job
            pilots = count(self._submitting, "pilot")
            self.report("submitted", f"{pilots} submitted to Slurm: job {job}, named {self._name}")
        elif answer.is_transient:
            self._submitted_at += RETRY_S - ASK_EVERY_S
            self._tell(f"sbatch does not answer ({answer.problem}); it is tried again")
        else:
            self._refusal = answer.problem

    def cancel(self, *tasks: str) -> None:
        """End tasks that were given up, without waiting for it."""
        self._released.update(tasks)
        if tasks:
            self._cancellations.append(SlurmCommand("scancel", *tasks))

    def cancel_waiting(self) -> None:
        """Take those out of the queue that have not started."""
        waiting = {task for task, row in self._rows.items() if row.state in WAITING}
        self.cancel(*sorted(waiting - self._released))

    def wait(self) -> None:
        """Wait for the commands that run, and do not act on their answers."""
        for command in (*self._cancellations, self._question, self._submission):
            if command is not None:
                command.wait()
        self._cancellations = []
        self._question = None
        self._submission = None

    def close(self) -> str | None:
        """Take out of the queue what waits there, and let what runs end by itself: Slurm then says
        COMPLETED.

        What has not ended after :data:`END_S` is cancelled. Returns what is wrong, if Slurm does
        not obey.
        """
        self.wait()
        user = user_name(os.geteuid())
        answer = cancel_named(self._name, user=user, only_waiting=True)
        if answer.returncode == 0 and self._have_ended():
            return None
        answer = cancel_named(self._name, user=user)
        return answer.problem if answer.returncode else None

    def _have_ended(self) -> bool:
        """Wait until nothing runs or waits. Returns False after :data:`END_S`, or where Slurm does
        not answer.
        """
        deadline = time.monotonic() + END_S
        pause_s = END_ASK_S
        while (answer := self._ask().wait()).returncode == 0:
            if not any(row.state in PRESENT for row in _rows(answer).values()):
                return True
            if time.monotonic() > deadline:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, ASK_EVERY_S)
        return False


def _rows(answer: CommandAnswer) -> dict[str, QueuedTask]:
    """By task."""
    rows = [line.strip().split("|", 2) for line in answer.output.splitlines()]
    return {row[0]: QueuedTask(state=row[1], reason=row[2]) for row in rows if len(row) == 3}


def queue_question(
    *names: str, users: Collection[str], columns: str, patience_s: float = PATIENCE_S
) -> SlurmCommand:
    """Ask ``squeue`` for the batch jobs that have one of ``names``; every task of an array has a
    line.

    :param users: only those of these users.
    :param columns: its format.
    """
    options = ["--noheader", "--all", "--array", "--states=all"]
    chosen = [f"--user={','.join(users)}", f"--name={','.join(names)}"]
    return SlurmCommand("squeue", *options, *chosen, f"--format={columns}", patience_s=patience_s)


def cancel_named(name: str, *, user: str, only_waiting: bool = False) -> CommandAnswer:
    """Cancel the batch jobs of ``user`` that have the name.

    :param only_waiting: those that have not started, rather than all of them.
    """
    states = ("--state=PENDING",) if only_waiting else ()
    return SlurmCommand("scancel", f"--user={user}", f"--name={name}", *states).wait()


def user_name(uid: int) -> str:
    """As Slurm's commands take it; the number where this machine does not know the user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
