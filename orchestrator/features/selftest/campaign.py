"""The procedure of ``selftest``: train undisturbed, then again and again with a fault, and
compare.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from orchestrator.core.errors import UsageError
from orchestrator.core.files import temporary_folder
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, last_line, listed
from orchestrator.executors.local import OrphanReaper
from orchestrator.features.selftest import round_folder, small_experiment
from orchestrator.features.selftest.command_run import (
    COMMAND,
    CommandRun,
    Commands,
    OverdueError,
    iterations,
)
from orchestrator.features.selftest.faults import FAULTS, Fault, NotApplicableError, small_disk
from orchestrator.features.selftest.round_checks import FAILED, JobResult, shortfalls
from orchestrator.features.selftest.small_experiment import (
    FAILING,
    JOB_FILE,
    OF_RANKS,
    RANKS,
    RUN_DIR,
)
from orchestrator.machine import topology
from orchestrator.supervisor.stop_signals import StopRequests

MINUTES = 10.0
MOST_RESUMES = 4
START_UP_S = 3.0
"""A fault during start-up comes within this time."""
OF_UNDISTURBED = 1.5
"""How long a round takes, in times of the undisturbed training: what a fault interrupts is
resumed."""
AT_START_UP = 0.25
"""Share of faults that come during start-up."""
LATEST = 0.9
"""The other faults come within this share of the iterations of all jobs."""
TRACEBACK = "Traceback (most recent call last)"
UNDISTURBED = Fault(name="no fault", apply=lambda *_: True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestOptions:
    minutes: float = MINUTES
    """For how long new rounds are begun."""
    seed: int | None = None
    """None: a random one."""
    only_round: int | None = None
    folder: Path = Path()
    """Where the folder of the self-test is made."""
    faults: Sequence[Fault] = FAULTS
    command: Sequence[str] = COMMAND

    def again(self, seed: int) -> str:
        """The command that applies the same faults again in the same place."""
        words = ["python", "-m", "orchestrator", "selftest", "--seed", str(seed)]
        words += ["--minutes", f"{self.minutes:g}"] if self.minutes != MINUTES else []
        words += ["--dir", str(self.folder)] if self.folder != Path() else []
        return shlex.join(words)


@dataclass(slots=True, kw_only=True)
class FaultRow:
    """What came of one kind of fault."""

    fault: str
    rounds: int = 0
    """In how many rounds it was to be applied."""
    applied: int = 0
    shortfalls: dict[int, list[str]] = field(default_factory=dict)
    """Number of the round → what fell short."""
    not_applicable: str | None = None
    """Why this machine does not allow it."""

    @property
    def is_reached(self) -> bool:
        """Whether a round was for it, or is not possible."""
        return self.rounds > 0 or self.not_applicable is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestResult:
    seed: int
    again: str
    """The command that applies the same faults again."""
    rounds: int
    """Number of rounds that were finished."""
    took_s: float
    rows: Sequence[FaultRow]
    not_reached: Sequence[str]
    """Kinds of faults for which the time did not suffice, or that came after the round that fell
    short."""
    minutes_for_all: float | None
    """With so many minutes each kind would come once, by the rounds so far; None where all were
    reached."""
    kept: Path | None
    """The folder of the rounds that fell short; None where none did."""
    interrupted: bool

    @property
    def exit_code(self) -> int:
        if any(row.shortfalls for row in self.rows):
            return 1
        return 130 if self.interrupted else 0

    def to_json(self) -> str:
        facts = {"passed": self.exit_code == 0, **dataclasses.asdict(self)}
        return json.dumps(facts, indent=1, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a fault is applied: when this share of all iterations is done, and some seconds
    later.
    """

    share: float
    delay_s: float

    @classmethod
    def draw(cls, rng: Random) -> Moment:
        if rng.random() < AT_START_UP:
            return cls(share=0.0, delay_s=rng.uniform(0.0, START_UP_S))
        return cls(share=rng.uniform(0.0, LATEST), delay_s=rng.uniform(0.0, 0.1))

    def __str__(self) -> str:
        if self.share:
            return f"at {self.share:.0%} of the training"
        return f"{self.delay_s:.1f} s after the start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run of the small experiment, with a fault."""

    number: int
    """0: the undisturbed one."""
    fault: Fault
    moment: Moment
    rng: Random
    """For what else the fault draws."""

    def __str__(self) -> str:
        if not self.number:
            return "undisturbed"
        return f"round {self.number}: {self.fault.name}, {self.moment}"


def plan_round(seed: int, number: int, faults: Sequence[Fault]) -> Round:
    """Round ``number``, from 1 on. Every fault comes once before any comes again.

    Important ones come first, and are otherwise in random order as the others are.
    """
    cycle, index = divmod(number - 1, len(faults))
    rng = Random(f"{seed}/{number}")
    shuffled = Random(f"{seed}/order/{cycle}").sample(faults, len(faults))
    in_order = sorted(shuffled, key=lambda fault: not fault.is_important)
    return Round(number=number, fault=in_order[index], moment=Moment.draw(rng), rng=rng)


def selftest(options: SelftestOptions, tell: Callable[[str], None]) -> SelftestResult:
    """Train with faults until the time is over. No process is left, whatever is raised.

    :param tell: called with a line of progress.
    :raises UsageError: the folder cannot be made, or the time was over before the first fault.
    """
    seed = int.from_bytes(os.urandom(3), "big") if options.seed is None else options.seed
    stops = StopRequests()
    try:
        root = round_folder.campaign_folder(options.folder)
    except OSError as error:
        raise UsageError(
            f"{options.folder}: no folder can be made here ({error.strerror}); choose another --dir"
        ) from error
    commands = Commands(stops=stops, command=options.command)
    with stops.handle_signals(), contextlib.closing(OrphanReaper(commands.token)):
        campaign = _Campaign(options=options, seed=seed, root=root, commands=commands, tell=tell)
        try:
            campaign.run()
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        finally:
            commands.kill()
    rows = [
        row for row in campaign.rows.values() if row.shortfalls or row.fault != UNDISTURBED.name
    ]
    if options.only_round is not None:
        rows = [row for row in rows if row.shortfalls or row.applied or row.not_applicable]
    not_reached = (
        [] if options.only_round is not None else [row.fault for row in rows if not row.is_reached]
    )
    fell_short = any(row.shortfalls for row in rows)
    if not fell_short:
        shutil.rmtree(root, ignore_errors=True)
    return SelftestResult(
        seed=seed,
        again=options.again(seed),
        rounds=campaign.rounds,
        took_s=round(time.monotonic() - campaign.begun, 1),
        rows=rows,
        not_reached=not_reached,
        minutes_for_all=campaign.minutes_for_all() if not_reached else None,
        kept=root if fell_short else None,
        interrupted=interrupted,
    )


@dataclass(slots=True, kw_only=True)
class _Campaign:
    options: SelftestOptions
    seed: int
    root: Path
    commands: Commands
    tell: Callable[[str], None]
    begun: float = field(default_factory=time.monotonic, init=False)
    rounds: int = field(default=0, init=False)
    rows: dict[str, FaultRow] = field(init=False)
    expected: dict[str, JobResult] | None = field(default=None, init=False)
    iterations: Counter[str] = field(default_factory=Counter, init=False)
    """Those of the undisturbed experiment."""
    undisturbed_s: float = field(default=0.0, init=False)
    with_ranks: bool = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {
            fault.name: FaultRow(fault=fault.name) for fault in (UNDISTURBED, *self.options.faults)
        }
        self.with_ranks = topology.largest_job(topology.detect()) >= RANKS
        for fault in self.options.faults:
            if OF_RANKS in fault.jobs and not self.with_ranks:
                self.rows[fault.name].not_applicable = f"{RANKS} ranks need as many CPUs"

    def run(self) -> None:
        self.tell(f"seed {self.seed}, in {self.root}")
        kinds = count(
            sum(not row.is_reached for row in self._fault_rows()),
            "kind of fault",
            "kinds of faults",
        )
        if self.options.only_round is None:
            text = f"{kinds}, one in each round, the important ones first, for {self.options.minutes:g} min"
            self.tell(f"{text}; how many fit is told once the undisturbed training has been timed")
        at_once = Moment(share=0.0, delay_s=0.0)
        self._take(Round(number=0, fault=UNDISTURBED, moment=at_once, rng=Random(self.seed)))
        if self.rows[UNDISTURBED.name].shortfalls:
            return
        until = self.begun + 60.0 * self.options.minutes
        self.undisturbed_s = time.monotonic() - self.begun
        if self.options.only_round is None:
            self.tell(self._what_fits(until))
        numbers = (
            itertools.count(1) if self.options.only_round is None else [self.options.only_round]
        )
        for taken, number in enumerate(numbers):
            if time.monotonic() >= until and self.options.only_round is None:
                if taken == 0:
                    raise UsageError(
                        f"--minutes {self.options.minutes:g} is too short here: the undisturbed training alone took"
                        f" {time.monotonic() - self.begun:.0f} s, so no fault was applied. Give more minutes"
                    )
                return
            planned = plan_round(self.seed, number, self.options.faults)
            if self.rows[planned.fault.name].not_applicable is None:
                self._take(planned)

    def _fault_rows(self) -> list[FaultRow]:
        return [row for row in self.rows.values() if row.fault != UNDISTURBED.name]

    @property
    def _round_s(self) -> float:
        """Of the rounds so far, or what is expected of them before the first."""
        if not self.rounds:
            return OF_UNDISTURBED * self.undisturbed_s
        return (time.monotonic() - self.begun - self.undisturbed_s) / self.rounds

    def minutes_for_all(self) -> float:
        """So that each kind of fault comes once."""
        kinds = sum(row.not_applicable is None for row in self._fault_rows())
        return math.ceil((self.undisturbed_s + kinds * self._round_s) / 60.0)

    def _what_fits(self, until: float) -> str:
        numbers = range(1, len(self.options.faults) + 1)  # in which each kind comes once
        rounds = [plan_round(self.seed, number, self.options.faults) for number in numbers]
        names = [one.fault.name for one in rounds]
        names = [name for name in names if self.rows[name].not_applicable is None]
        left_s = max(0.0, until - time.monotonic())
        fit = math.ceil(left_s / max(0.001, self._round_s))  # a round that has begun is finished
        took = f"the undisturbed training took {self.undisturbed_s:.0f} s, so a round takes about {self._round_s:.0f} s"
        if fit >= len(names):
            return f"{took}: all {len(names)} kinds of faults fit into {self.options.minutes:g} min"
        which = (
            f"{fit} of {len(names)} kinds of faults fit into {self.options.minutes:g} "
            f"min ({listed(names[:fit], fit)})"
        )
        return (
            f"{took}: {which}; --minutes {self.minutes_for_all():g} is enough for each of them once"
        )

    def _take(self, one: Round) -> None:
        begun = time.monotonic()
        row = self.rows[one.fault.name]
        row.rounds += 1
        folder = self.root / f"round-{one.number}"
        outcome = ""
        texts = list[str]()
        with round_folder.under_way(folder):
            try:
                was_applied = self._disturb(folder, one, texts)
                outcome = "ok" if was_applied else "ok, but the jobs ended before the fault"
                row.applied += was_applied
                self.rounds += one.number > 0
            except NotApplicableError as error:
                row.not_applicable = str(error)
                outcome = f"not possible here: {error}"
            finally:
                unkillable = self.commands.kill()
            texts += [
                f"A process cannot be killed: {command} (pid {pid})."
                for pid, command in unkillable.items()
            ]
            if texts:
                row.shortfalls[one.number] = texts
            else:
                shutil.rmtree(folder)
        self.tell(f"{one}: {' '.join(texts) or outcome} ({time.monotonic() - begun:.1f} s)")

    def _disturb(self, folder: Path, one: Round, texts: list[str]) -> bool:
        """Run the experiment with a fault, and resume it to its end. Returns whether the fault was
        applied.

        :param texts: receives what fell short.
        """
        fault = one.fault
        small_experiment.write(folder, ranks=self.with_ranks, failing=fault.has_failing_job)
        paths = RunPaths(folder / RUN_DIR)
        with small_disk(paths.root) if fault.on_small_disk else contextlib.nullcontext():
            run = self._start(folder, fault)
            was_applied = False
            try:
                for is_due in self._instants(run, fault, one.moment):
                    if is_due and fault.apply(run, one.rng):
                        was_applied = True
                        break
                self._finish(run, folder, fault, texts, was_applied=was_applied)
                texts += self._check_results(paths, fault)
            except OverdueError as error:
                texts.append(str(error))
            if fault.on_small_disk and texts:
                shutil.copytree(paths.root, folder / f"{RUN_DIR}-copied", symlinks=True)
        if TRACEBACK in run.output():
            texts.append("A command printed a traceback.")
        left = [
            path
            for path in temporary_folder.abandoned_folders()
            if path.name.endswith(self.commands.token)
        ]
        texts += [f"A temporary folder was left: {path}." for path in left]
        return was_applied

    def _finish(
        self, run: CommandRun, folder: Path, fault: Fault, texts: list[str], *, was_applied: bool
    ) -> None:
        """Wait for the end of the command, and resume the experiment until it has ended."""
        expected = int(fault.has_failing_job)
        code = self._await_end(run, texts)
        if code != expected and not (was_applied and fault.may_end):
            texts.append(
                f"The command ended with exit code {code}: {last_line(run.output(), 'it printed nothing')}."
            )
        for _ in range(MOST_RESUMES):
            if code == expected:
                return
            if fault.may_fail and code == 1:
                self._await_end(self.commands.start(folder, "retry", RUN_DIR), texts)
            code = self._await_end(self._start(folder), texts)
        if code != expected:
            text = last_line(run.output(), "it printed nothing")
            texts.append(
                f"Resumed {MOST_RESUMES} times, the command still ends with exit code {code}: {text}."
            )

    def _start(self, folder: Path, fault: Fault = UNDISTURBED) -> CommandRun:
        return self.commands.start(
            folder, "run", JOB_FILE, "--run-dir", RUN_DIR, output=fault.output
        )

    def _instants(self, run: CommandRun, fault: Fault, moment: Moment) -> Iterator[bool]:
        """While the command runs: whether the moment has come."""
        jobs = fault.jobs or list(self.iterations)
        due_after = moment.share * sum(self.iterations[job_id] for job_id in jobs)
        due = None
        while run.popen.poll() is None:
            done = iterations(run.paths)
            if due is None and sum(done[job_id] for job_id in jobs) >= due_after:
                due = time.monotonic() + moment.delay_s
            yield due is not None and time.monotonic() >= due
            run.pause()

    def _await_end(self, run: CommandRun, texts: list[str]) -> int:
        code = run.wait()
        texts += [
            f"A process was left: {command} (pid {pid})."
            for pid, command in self.commands.await_end().items()
        ]
        return code

    def _check_results(self, paths: RunPaths, fault: Fault) -> list[str]:
        expected = self.expected
        if expected is not None and fault.has_failing_job:
            expected = {**expected, FAILING: FAILED}
        texts, results = shortfalls(paths, expected, may_have_errors=fault.may_fail)
        if self.expected is None:
            self.expected = results
            self.iterations = iterations(paths)
        return texts
