"""The campaign: train undisturbed, then again and again with a fault, and compare."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from orchestrator.core.files.temporary_folder import PREFIX
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import last_line
from orchestrator.machine import topology
from tests.soak import experiment
from tests.soak.checks import FAILED, JobResult, shortfalls
from tests.soak.commands import CommandRun, Commands, OverdueError, iterations
from tests.soak.experiment import FAILING, JOB_FILE, OF_RANKS, RANKS, RUN_DIR
from tests.soak.faults import FAULTS, Fault, NotApplicableError, small_disk

MOST_RESUMES = 4
START_UP_S = 3.0
"""A fault during start-up comes within this time."""
AT_START_UP = 0.25
"""Share of faults that come during start-up."""
LATEST = 0.9
"""The other faults come within this share of the iterations of all jobs."""
TRACEBACK = "Traceback (most recent call last)"
UNDISTURBED = Fault(name="no fault", apply=lambda *_: True)


@dataclass(slots=True, kw_only=True)
class Result:
    applied: Counter[str] = field(default_factory=Counter)
    """Kind of fault → how often it was applied."""
    shortfalls: dict[int, list[str]] = field(default_factory=dict)
    """Number of a round → what fell short in it."""
    kept: Path | None = None
    """The folder of the rounds that fell short; None where none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a fault is applied: some seconds after this share of all iterations is done."""

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
        return f"round {self.number}: {self.fault.name}, {self.moment}"


def rounds(seed: int, faults: Sequence[Fault]) -> Iterator[Round]:
    """Yield rounds without end. Every fault comes once before any comes again; the important ones
    come first, and the others in random order.
    """
    for number in itertools.count(1):
        cycle, index = divmod(number - 1, len(faults))
        shuffled = Random(f"{seed}/order/{cycle}").sample(faults, len(faults))
        in_order = sorted(shuffled, key=lambda fault: not fault.is_important)
        rng = Random(f"{seed}/{number}")
        yield Round(number=number, fault=in_order[index], moment=Moment.draw(rng), rng=rng)


def play(seed: int, minutes: float, tell: Callable[[str], None]) -> Result:
    """Train undisturbed, then begin rounds for ``minutes``, but at least one. No process is left,
    whatever is raised.

    :param tell: called with a line for each round.
    """
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    commands = Commands(temporary=root / "tmp")
    commands.temporary.mkdir()
    campaign = _Campaign(root=root, commands=commands, tell=tell)
    until = time.monotonic() + 60.0 * minutes
    try:
        at_once = Moment(share=0.0, delay_s=0.0)
        campaign.take(Round(number=0, fault=UNDISTURBED, moment=at_once, rng=Random(seed)))
        if not campaign.result.shortfalls:
            for one in rounds(seed, campaign.faults):
                campaign.take(one)
                if time.monotonic() >= until:
                    break
    finally:
        commands.kill()
        if not campaign.result.shortfalls:
            shutil.rmtree(root, ignore_errors=True)
    if campaign.result.shortfalls:
        campaign.result.kept = root
    return campaign.result


@dataclass(slots=True, kw_only=True)
class _Campaign:
    root: Path
    commands: Commands
    tell: Callable[[str], None]
    result: Result = field(default_factory=Result)
    expected: dict[str, JobResult] | None = None
    """Results of the undisturbed experiment, by ``job_id``; None before it."""
    iterations: Counter[str] = field(default_factory=Counter)
    """Those of the undisturbed experiment."""
    with_ranks: bool = field(init=False)

    def __post_init__(self) -> None:
        self.with_ranks = topology.largest_job(topology.detect()) >= RANKS

    @property
    def faults(self) -> list[Fault]:
        """Those that this machine has room for."""
        return [fault for fault in FAULTS if self.with_ranks or OF_RANKS not in fault.jobs]

    def take(self, one: Round) -> None:
        begun = time.monotonic()
        folder = self.root / f"round-{one.number}"
        folder.mkdir()
        texts: list[str] = []
        outcome = "ok"
        try:
            was_applied = self._disturb(folder, one, texts)
            if not was_applied:
                outcome = "ok, but the jobs ended before the fault"
            elif one.fault is not UNDISTURBED:
                self.result.applied[one.fault.name] += 1
        except NotApplicableError as error:
            outcome = f"not possible here: {error}"
        finally:
            unkillable = self.commands.kill()
        texts += [f"A process cannot be killed: {one}." for one in unkillable]
        if texts:
            self.result.shortfalls[one.number] = texts
        else:
            shutil.rmtree(folder)
        self.tell(f"{one}: {' '.join(texts) or outcome} ({time.monotonic() - begun:.1f} s)")

    def _disturb(self, folder: Path, one: Round, texts: list[str]) -> bool:
        """Run the experiment with a fault, and resume it to its end. Returns whether the fault was
        applied.

        :param texts: receives what fell short.
        """
        fault = one.fault
        experiment.write(folder, ranks=self.with_ranks, failing=fault.has_failing_job)
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
        left = sorted(self.commands.temporary.glob(f"{PREFIX}*"))
        texts += [f"A temporary folder was left: {path}." for path in left]
        return was_applied

    def _finish(
        self, run: CommandRun, folder: Path, fault: Fault, texts: list[str], *, was_applied: bool
    ) -> None:
        """Wait for the end of the command, and resume the experiment until it has ended."""
        expected = int(fault.has_failing_job)
        code = self._await_end(run, texts)
        if code != expected and not (was_applied and fault.may_end):
            why = last_line(run.output(), "it printed nothing")
            texts.append(f"The command ended with exit code {code}: {why}.")
        for _ in range(MOST_RESUMES):
            if code == expected:
                return
            if fault.may_fail and code == 1:
                self._await_end(self.commands.start(folder, "retry", RUN_DIR), texts)
            code = self._await_end(self._start(folder), texts)
        if code != expected:
            why = last_line(run.output(), "it printed nothing")
            texts.append(
                f"Resumed {MOST_RESUMES} times, it still ends with exit code {code}: {why}."
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
        texts += [f"A process was left: {one}." for one in self.commands.await_end()]
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
