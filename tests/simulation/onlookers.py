"""Others who look at a run while it goes on: a page that follows it, and who asks for figures of its
jobs. What they are shown is what the ledger has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.errors import LedgerError, LedgerUnavailableError, OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import resume_advice, run_directory
from orchestrator.experiment.directory.run_directory import LockHolder
from orchestrator.experiment.from_outside import attach, run_snapshot
from orchestrator.experiment.from_outside.run_follower import RunFollower
from orchestrator.ledger import Ledger, job_figures, summary
from orchestrator.ledger.lineage import env_steps_before
from orchestrator.ledger.rows import fitness
from orchestrator.ledger.summary import learner_summary
from orchestrator.supervisor.events import View
from tests.simulation import spoiling
from tests.simulation.monitor import Monitor
from tests.simulation.world import IO_OF_USERS, Violation, World

OF_NOW = ("wall_s", "pid")
"""What of a row one who looks computes himself."""
SELDOM = 10
"""One look in so many asks for figures although nothing seems to have changed."""


@dataclass(slots=True, kw_only=True)
class Onlooker:
    """Looks at the run again and again, in a process of his own."""

    world: World
    paths: RunPaths
    monitor: Monitor
    looks_s: float
    follower: RunFollower = field(init=False)
    _shown: list[dict[str, Any]] | None = field(default=None, init=False)
    """The rows that the page has now."""
    _problem: str = field(default="", init=False)
    """Why the page cannot show the rows now."""
    _generation: int = field(default=0, init=False)
    _followed: LockHolder | None = field(default=None, init=False)
    """The supervisor that he has seen last."""
    _lives: int = field(default=0, init=False)
    """How many supervisors there had been then."""
    _looks: int = field(default=0, init=False)
    _view_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.follower = RunFollower(self.paths.root)
        self.world.after(self.looks_s, self._look_later)

    def _look_later(self) -> None:
        self.world.after(self.looks_s, self._look_later)
        pid = self.world.new_pid()
        try:
            with self.world.users_process(pid):
                self._look()
        except (OrchestratorError, OSError) as error:  # moved away, damaged, or locked
            self.world.log(f"the onlooker: {str(error).partition(chr(10))[0]}")
        finally:
            self.world.lives.pop(pid, None)

    def _look(self) -> None:
        files = self.monitor.declared.files
        if files.is_damaged or files.has_odd_rows:
            return  # what can be read of it is anybody's guess
        self._look_at_end(run_directory.holder(self.paths))
        self._looks += 1
        if self._looks % SELDOM == 0:
            self._look_from_afar()
        has_changed = self._follow()
        is_due = has_changed or self._looks % SELDOM == 0
        if not is_due or not self.paths.ledger.exists():
            return
        with run_directory.opened_ledger(self.paths, read_only=True) as ledger:
            self._look_at_figures(ledger)
            self._look_at_attempts(ledger)

    # -- what follows a run

    def _follow(self) -> bool:
        """A page that is brought up to date has what one has that is made anew. Returns whether it
        was: nothing may have changed, or it could not be read just now.
        """
        refusals = self.world.counts[IO_OF_USERS]
        seen = self.follower.look()
        has_failed = self.world.counts[IO_OF_USERS] > refusals
        if seen is None:
            text = f"the page goes on to say what has passed: {self._problem}"
            self._claim(not self._problem or self.world.is_locked, text)
            return False
        self._problem = seen.problem
        if seen.problem and has_failed:
            return False
        self._claim(not seen.problem, f"the page: {seen.problem}")
        try:
            anew = run_snapshot.status(self.paths.root)
        except LedgerUnavailableError:
            return False
        if seen.snapshot is None:
            self._shown = None
            return True
        before, self._shown = self._shown, _of_then(seen.snapshot.rows)
        difference = _first_difference(self._shown, _of_then(anew.rows))
        if difference is not None and not self._is_planning(anew.holder):
            raise Violation(f"a page shows {difference}")
        self._claim(
            (seen.snapshot.goals, seen.snapshot.standing) == (anew.goals, anew.standing),
            "a page has other goals than `status`",
        )
        if before is not None and self._generation == self.follower.generation:
            self._look_at_changes(before, self._shown)
        self._generation = self.follower.generation
        self._claim(bool(learner_summary(anew.rows)) == _has_learner(anew.rows), "learners")
        for row in anew.rows:
            fitness(row["eval_mean"], row["ep_rew_mean"])
        return True

    def _look_from_afar(self) -> None:
        """Another host, which must not open the ledger, reads the summary. It is whole, and of jobs
        that there are, but where others have damaged it, or a power cut has.
        """
        try:
            rows, _ = summary.read(self.paths)
        except LedgerError as error:
            troubles = self.world.scenario.troubles
            is_damaged = any(trouble.what == "summary" for trouble in troubles)
            self._claim(is_damaged or self.world.counts["power"] > 0, str(error))
            return
        strangers = {row["job_id"] for row in rows} - self._known_jobs
        self._claim(not strangers, f"the summary has {strangers}")

    @property
    def _known_jobs(self) -> set[str]:
        """All that there may ever be."""
        return {job.job_id for job in self.world.scenario.jobs}

    def _is_planning(self, holder: LockHolder | None) -> bool:
        """Whether a supervisor still brings the ledger into agreement with its job file."""
        if holder is None:
            return False
        path = self.paths.takes_jobs
        return not path.exists() or path.read_text() != holder.key

    def _look_at_changes(self, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
        """What is done stays done while the ledger is the same."""
        earlier = {row["job_id"]: row for row in before}
        for row in now:
            if (old := earlier.get(row["job_id"])) is not None:
                fewer = row["attempts"] < old["attempts"]
                self._claim(
                    not fewer or self.world.counts["power"] > 0 or bool(self._restarts),
                    f"{row['job_id']} has fewer attempts than before",
                )

    @property
    def _restarts(self) -> list[str]:
        """Why jobs may begin anew."""
        return [one.kind for one in self.world.scenario.troubles if one.kind in ("edit", "begin")]

    def _look_at_end(self, holder: LockHolder | None) -> None:
        """Whoever follows a supervisor is told how it has ended."""
        followed, self._followed = self._followed, holder
        lives, self._lives = self.world.counts["lives"] - self._lives, self.world.counts["lives"]
        if followed is None or followed == holder or lives:  # the end of another one is recorded
            return
        end = attach.end_of(self.paths, followed)
        was_killed = attach.KILLED in end.message
        advice = resume_advice.how_to_resume(self.paths).partition(" ")[0]
        is_advised = advice in end.message or "takes over what runs" in end.message
        self._claim(is_advised or not was_killed, f"a run that was killed: {end.message}")
        died = self.world.counts["deaths"] > 0 or self.world.counts["full refusals"] > 0
        self._claim(died or not was_killed, "a run has ended, and was not killed")

    # -- figures

    def _look_at_figures(self, ledger: Ledger) -> None:
        """What is asked of many jobs at once is what their rows have."""
        rows = {row.job_id: row for row in ledger.jobs()}
        found = job_figures.figures(ledger, rows)
        states = {job_id: figures.state for job_id, figures in found.items()}
        self._claim(states == {id_: row.state.name for id_, row in rows.items()}, f"{states}")
        self._claim(ledger.counts() == Counter(states.values()), "the ledger counts otherwise")
        steps = {job_id: row.env_steps for job_id, row in rows.items()}
        self._claim(
            {job_id: figures.env_steps for job_id, figures in found.items()} == steps
            and job_figures.env_steps(ledger) == sum(steps.values()),
            "figures have other env_steps than the jobs",
        )
        specs = {job_id: row.job.spec for job_id, row in rows.items()}
        self._claim(
            job_figures.totals(ledger, list(rows))
            == {job_id: spec.total_timesteps for job_id, spec in specs.items()},
            "figures have other totals than the jobs",
        )
        pauses = {job_id: spec.pause_at for job_id, spec in specs.items()}
        self._claim(job_figures.pauses(ledger) == pauses, "figures have other rungs than the jobs")
        left = {id_ for id_, state in states.items() if state in ("PENDING", "RUNNING")}
        goals = {id_: at for id_, at in pauses.items() if at is not None and id_ in left}
        self._claim(job_figures.goals(ledger) == goals, "figures have other goals than the jobs")
        self._claim(job_figures.jobs_count(ledger) == len(rows), "figures have other jobs")
        self._look_at_lineages(ledger)
        at_rungs = sum(figures.cause == "rung" for figures in found.values())
        self._claim(job_figures.at_rungs(ledger) == at_rungs, "figures have others at rungs")
        asked = job_figures.requested_jobs(ledger, "retry") | job_figures.requested_jobs(
            ledger, "cancel"
        )
        known = self._known_jobs | set(rows) | {spoiling.NOBODY}
        self._claim(asked <= known, f"requests of jobs that there are not: {asked - known}")
        waiting = {job_id for job_id, state in states.items() if state == "PENDING"}
        self._claim(ledger.free_disk_asked().keys() == waiting, "others ask for disk space")
        without = ledger.jobs_with("normalize", is_set=False)
        self._claim(without == set(rows), "no job normalises its observations")

    def _look_at_lineages(self, ledger: Ledger) -> None:
        """A search, which asks for many jobs at once, is told what `status` shows of each."""
        version = job_figures.version(ledger)
        shown = {
            row["job_id"]: env_steps_before(row["env_steps"], row["lineage_env_steps"])
            for row in ledger.summary()
        }
        asked = job_figures.earlier_env_steps(ledger, list(shown))
        self._claim(asked == shown, f"before jobs began there were {asked}, and {shown}")
        self._claim(job_figures.version(ledger) == version, "who reads changes the ledger")

    def _look_at_measures(self, ledger: Ledger, measured: Collection[str]) -> None:
        """:param measured: jobs that have an exit record with measures."""
        found = job_figures.training_measures(ledger, list(self.monitor.records))
        of_some = {job_id for job_id, measures in found.items() if measures}
        self._claim(of_some <= set(measured), f"{of_some} are measured, and {measured} were")

    def _look_at_attempts(self, ledger: Ledger) -> None:
        """Each attempt has a history of its CPUs, which ends where it ran last."""
        numbers: dict[str, list[int]] = {}
        measured = {job.job_id for job in self.monitor.jobs.values() if job.is_measured}
        self._look_at_measures(ledger, measured)
        for attempt in ledger.attempts():
            numbers.setdefault(attempt["job_id"], []).append(attempt["number"])
            spans = attempt["cpu_spans"]
            self._claim(spans[-1]["cpus"] == attempt["cpus"], "an attempt has left its CPUs")
            begun = [span["since"] for span in spans]
            has_jumped = self.monitor.has_jumped
            self._claim(
                has_jumped or begun == sorted(begun), "an attempt has moved before it began"
            )
        for job_id, found in numbers.items():
            self._claim(found == sorted(set(found)), f"{job_id} has attempts {found}")

    # -- what a screen shows

    def tick(self, view: Callable[[], View]) -> None:
        """The supervisor has come to the end of a turn, and would draw its screen."""
        if self.world.now < self._view_at:
            return
        self._view_at = self.world.now + self.looks_s
        seen = view()
        running = [attempt.job.job_id for attempt in seen.active]
        self._claim(seen.counts["RUNNING"] == len(running), f"the screen counts {seen.counts}")
        for attempt in seen.active:
            job_id = attempt.job.job_id
            cpus = set(map(str, attempt.slot.cpus))
            is_said = cpus <= set(re.findall(r"\d+", attempt.where))
            self._claim(is_said, f"the screen shows {job_id} on {attempt.where}, not on {cpus}")
            state = self.monitor.records[job_id].state
            self._claim(state == "RUNNING", f"the screen shows {job_id}, which is {state}")
        for job, _ in seen.held:
            state = self.monitor.records[job.job_id].state
            self._claim(state == "PENDING", f"{job.job_id} waits for others, and is {state}")
        self._claim(seen.steps_to_go >= 0, f"{seen.steps_to_go} env_steps are to go")
        remaining_s = seen.remaining_s
        self._claim(remaining_s is None or remaining_s >= 0.0, f"{remaining_s} s remain")

    def _claim(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Violation(f"who looks at the run: {otherwise}")


def _of_then(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in OF_NOW} for row in rows]


def _has_learner(rows: Iterable[Mapping[str, Any]]) -> bool:
    return any(row["learner"] is not None for row in rows)


def _first_difference(shown: list[dict[str, Any]], anew: list[dict[str, Any]]) -> str | None:
    """In words; None where there is none."""
    if [row["job_id"] for row in shown] != [row["job_id"] for row in anew]:
        return "other jobs than `status`"
    for row, other in zip(shown, anew, strict=True):
        for name in other:
            if row.get(name) != other[name]:
                seen = f"{name} of {row['job_id']} as {row.get(name)}"
                return f"{seen}, and `status` as {other[name]}"
    return None
