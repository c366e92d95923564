"""Of the simulated world: it is reproducible and sees what the program does; its monitor finds
faults, and scenarios that once showed one are played again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.ledger import Ledger, requests
from orchestrator.machine.slots import CpuUse, SlotPool
from orchestrator.supervisor import job_directory, retry_policy
from orchestrator.supervisor.termination import Termination
from tests.simulation import seams
from tests.simulation.disk import UnsimulatedError
from tests.simulation.drawing import made
from tests.simulation.executor import Processes, simulated_kind
from tests.simulation.play import play
from tests.simulation.scenario import Behaviour, Scenario, SimulatedJob, Trouble
from tests.simulation.shrink import kind_of, shrunk
from tests.simulation.world import IO_OF_USERS, World

ROOT = Path(__file__).parents[2]
TRACES = {path.stem: path for path in (Path(__file__).parent / "traces").glob("*.json")}


def trace(name: str) -> Scenario:
    return Scenario.from_json(TRACES[name].read_text())


@pytest.mark.parametrize("name", sorted(TRACES))
def test_what_was_found_once_does_not_come_again(name: str) -> None:
    assert play(trace(name)).violation == ""


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """There nothing was played before, and sets have another order."""
    program = (
        "from tests.simulation.drawing import made\n"
        "from tests.simulation.play import play\n"
        "for seed in (3, 1, 2):\n"
        "    print(chr(10).join(play(made(seed)).trace))\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = [line for seed in (3, 1, 2) for line in play(made(seed)).trace]
    assert there.splitlines() == "\n".join(here).splitlines()


def test_a_scenario_is_read_as_it_was_written() -> None:
    for scenario in map(made, range(100)):
        assert Scenario.from_json(scenario.to_json()) == scenario


# -- what changes comes about

JOB = SimulatedJob(name="j0", iterations=2)
SLOW = SimulatedJob(name="j0", behaviours=(Behaviour(iteration_s=1.5),))


def edited(what: str, begin: str = "refuse") -> Scenario:
    """One job that has ended when it is edited."""
    edit = Trouble(kind="edit", at_s=4.0, job=JOB.job_id, what=what, number=2)
    return Scenario(jobs=(JOB,), troubles=(edit, Trouble(kind="begin", at_s=3.0, what=begin)))


@pytest.mark.parametrize(
    ("scenario", "event", "attempts"),
    [
        (edited("longer", "extend"), "event extended", 2),
        (edited("other", "restart"), "event restarted", 2),
        (edited("other"), "refused: /run", 1),
        (edited("retries", "directory"), "run: the directory as it is", 1),
        (
            Scenario(
                jobs=(SLOW, SimulatedJob(name="j1", is_declared=False)),
                troubles=(
                    Trouble(kind="edit", at_s=1.0, job="j1-s0", what="add"),
                    Trouble(kind="reload", at_s=1.0),
                ),
            ),
            "event reloaded: 1 new job",
            1,
        ),
        (
            Scenario(
                jobs=(SLOW, SimulatedJob(name="j1")),
                troubles=(
                    Trouble(kind="edit", at_s=1.0, job="j0-s0", what="remove"),
                    Trouble(kind="stop", at_s=1.2),
                ),
            ),
            "j0-s0: PENDING -> CANCELLED",
            1,
        ),
        (Scenario(jobs=(replace(JOB, cores=3),)), "j0-s0: PENDING -> FAILED", 0),
    ],
    ids=["extended", "restarted", "refused", "resumed", "reloaded", "removed", "too large"],
)
def test_what_changes_comes_about(scenario: Scenario, event: str, attempts: int) -> None:
    outcome = play(scenario)
    assert outcome.violation == ""
    assert any(event in line for line in outcome.trace)
    assert sum("submit j0-s0/" in line for line in outcome.trace) == attempts


# -- faults are found


def do_nothing(*_: Any) -> None:
    pass


def kill_at_once(termination: Termination, attempt: Any, reason: Any, _deadline: float) -> None:
    now = termination.now()
    termination.active.note_end_request(attempt, reason, now, now)
    termination.executor.cancel(attempt.handle, kill=True)


TWICE = Scenario(
    jobs=(SimulatedJob(name="j0", iterations=12),),
    troubles=(
        Trouble(kind="pause", at_s=5.59, job="j0-s0"),
        Trouble(kind="resume", at_s=5.89, job="j0-s0", elsewhere=True),
    ),
    cpus=1,
    grace_s=0.0,
    gap_s=10.0,
)
FAULTS: dict[str, tuple[Any, str, Callable[..., Any], Scenario, str]] = {
    "a request that was acted on stays in the ledger": (
        Ledger,
        "mark_handled",
        do_nothing,
        TWICE,
        "pause was done 2 times, and asked for 1 times",
    ),
    "a slot is not given back": (
        SlotPool,
        "release",
        do_nothing,
        Scenario(jobs=(SimulatedJob(name="j0"), SimulatedJob(name="j1")), cpus=1),
        "nothing runs, and nothing happens",
    ),
    "a CPU that is held is given again": (
        SlotPool,
        "look",
        lambda _: CpuUse(),
        Scenario(jobs=(SimulatedJob(name="j0"), SimulatedJob(name="j1", iterations=2))),
        "a CPU is given too often",
    ),
    "no wait before a retry": (
        retry_policy,
        "backoff_s",
        lambda _: 0.0,
        Scenario(jobs=(SimulatedJob(name="j0", behaviours=(Behaviour(ending="refused"),)),)),
        "is retried too early",
    ),
    "the removal of a stale exit record is not on the disk": (
        job_directory,
        "sync_directory",
        do_nothing,
        trace("exit_record_comes_back_after_a_power_cut"),
        "with the exit record of another attempt",
    ),
    "the removal of a file of requests is not on the disk": (
        requests,
        "sync_directory",
        do_nothing,
        trace("request_comes_back_after_a_power_cut"),
        "cancel was done 2 times",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, function, replacement, scenario, violation = FAULTS[name]
    assert play(scenario).violation == ""
    monkeypatch.setattr(owner, function, replacement)
    assert violation in play(scenario).violation


def test_the_shortest_scenario_still_fails_and_has_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = Trouble(kind="cancel", at_s=1.0, job="j0-s0")
    scenario = Scenario(
        jobs=(
            SimulatedJob(name="j0", behaviours=(Behaviour(iteration_s=1.0, asked="deaf"),)),
            SimulatedJob(name="j1"),
            SimulatedJob(name="j2", behaviours=(Behaviour(ending="error"),)),
        ),
        troubles=(
            Trouble(kind="status", at_s=0.4),
            needed,
            Trouble(kind="late", at_event=3, for_s=0.3),
            Trouble(kind="checkpoints", at_s=2.0),
        ),
    )
    monkeypatch.setattr(Termination, "_ask_to_end", kill_at_once)
    outcome = play(scenario)
    shortest, again = shrunk(scenario, outcome)
    assert "is killed without its grace time" in outcome.violation
    assert kind_of(again) == kind_of(outcome)
    assert shortest.troubles == (needed,)
    assert [job.name for job in shortest.jobs] == ["j0"]


# -- errors of the file system

FAILED_JOB = SimulatedJob(
    name="j0", iterations=2, max_retries=0, behaviours=(Behaviour(ending="error"),)
)
JOBS = (
    FAILED_JOB,
    SimulatedJob(name="j1", iterations=14),
    SimulatedJob(name="j2", iterations=3, is_declared=False),
)
KILL = Trouble(kind="kill", at_s=3.0)
RETRY = Trouble(kind="retry", at_s=6.0, job="j0-s0")
ADDITION = Trouble(kind="edit", at_s=3.0, job="j2-s0", what="add")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("at_s", "troubles", "whose"),
    [
        (0.0, (), "io refusals"),
        (3.1, (KILL,), "io refusals"),
        (5.9, (KILL, RETRY), IO_OF_USERS),
        (3.9, (KILL, Trouble(kind="pause", at_s=4.0, job="j1-s0")), IO_OF_USERS),
        (6.0, (KILL, RETRY), "io refusals"),
        (3.1, (ADDITION, Trouble(kind="reload", at_s=3.1)), "io refusals"),
        (4.1, (Trouble(kind="stop", at_s=4.0),), "io refusals"),
    ],
    ids=["begins", "is resumed", "command", "command alone", "request", "new job", "is stopped"],
)
def test_any_of_the_next_statements_of_the_ledger_may_fail(
    at_s: float, troubles: tuple[Trouble, ...], whose: str
) -> None:
    refusals = 0
    for number in range(50):
        fails = Trouble(kind="io", at_s=at_s, number=number)
        outcome = play(Scenario(jobs=JOBS, troubles=(*troubles, fails)))
        assert not outcome.violation, number
        refusals += outcome.counts[whose]
    assert refusals > 10


# -- the simulated world


def in_force(world: World) -> AbstractContextManager[object]:
    """Within the block the program sees ``world``."""
    processes = Processes(world=world, jobs={})
    return seams.installed(world, simulated_kind(world, processes))


@pytest.fixture
def in_world(tmp_path: Path) -> World:
    root = tmp_path / "world"
    root.mkdir()
    return World(root=root, scenario=Scenario(jobs=()))


@pytest.mark.parametrize(
    "deed",
    [
        lambda outside: outside.write_text("x"),
        lambda outside: outside.mkdir(),
        lambda _: subprocess.run(["true"], check=False),
        lambda _: os.kill(os.getpid(), 0),
    ],
    ids=["file", "folder", "process", "signal"],
)
def test_what_is_not_simulated_is_not_done(
    in_world: World, tmp_path: Path, deed: Callable[[Path], object]
) -> None:
    outside = tmp_path / "outside"
    with in_force(in_world), pytest.raises(UnsimulatedError):
        deed(outside)
    assert not outside.exists()


def test_every_change_of_a_file_is_a_point_wherever_it_is_made(in_world: World) -> None:
    folder = in_world.disk.run_dir
    with in_force(in_world), in_world.supervised():
        folder.mkdir()
        write_whole(folder / "a", "new")
        (folder / "a").rename(folder / "b")
        (folder / "b").unlink()
    points = [line.split(" ", 1)[1] for line in in_world.trace]
    for point in ("mkdir /run", "fsync content", "fsync names", "rename a to b", "remove b"):
        assert point in points
    assert in_world.points == len(points) - 1  # but for the line that it starts


def test_a_power_cut_takes_only_what_is_not_on_the_disk(in_world: World) -> None:
    folder = in_world.disk.run_dir
    lost: Counter[str] = Counter()
    with in_force(in_world):
        folder.mkdir()
        for choice in range(40):
            write_whole(folder / "saved", f"saved {choice}")
            write_whole(folder / "unsaved", f"unsaved {choice}", durable=False)
            with in_world.own_work():
                in_world.disk.lose_power(choice)
            assert (folder / "saved").read_text() == f"saved {choice}"
            path = folder / "unsaved"
            content = path.read_text() if path.exists() else "missing"
            lost[content if content != f"unsaved {choice}" else "kept"] += 1
    assert lost["kept"] > 5
    assert sum(lost.values()) - lost["kept"] > 5
