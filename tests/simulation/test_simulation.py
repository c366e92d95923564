"""The supervisor in a simulated world: what must hold does, over many seeds; and planted faults are
found."""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from commit_helpers import number_of_this_commit
from tests.simulation.mutations import MUTATIONS, Mutation, planted
from tests.simulation.mutations_elsewhere import ELSEWHERE

from orchestrator.core.files.atomic_files import write_whole
from tests.simulation import disk, rarer, richer, seams, spoiling, stories
from tests.simulation.disk import UnsimulatedError
from tests.simulation.executor import Processes, SimulatedKind
from tests.simulation.play import HAS_RAY, HAS_SLURM, Outcome, play
from tests.simulation.scenario import (
    OF_NODES,
    RICHER,
    Behaviour,
    Scenario,
    SimulatedJob,
    Trouble,
    TroubleKind,
    made,
)
from tests.simulation.shrink import kind_of, shrunk
from tests.simulation.world import IO_OF_USERS, World

ROOT = Path(__file__).parents[2]
SEEDS = (0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 40)
"""In the last one, the first one of all, the system kills a worker."""
TRACES = sorted((Path(__file__).parent / "traces").glob("*.json"))
DEAR = ("pilot_is_suspended_while_it_is", "suspended_pilot_is_given_up_over_its_timeout")
"""Traces that take long, and have a shorter one that is like them."""
REFUSED = SimulatedJob(name="j0", behaviours=(Behaviour(ending="refused"),))
FOUND = {
    "a request that was acted on stays in the ledger": (
        "pause was done 2 times, and asked for 1 times",
        Scenario(
            jobs=(SimulatedJob(name="j0", iterations=12),),
            troubles=(
                Trouble(kind="pause", at_s=5.59, job="j0-s0"),
                Trouble(kind="resume", at_s=5.89, job="j0-s0", elsewhere=True),
            ),
            cpus=1,
            grace_s=0.0,
            gap_s=10.0,
        ),
    ),
    "a slot is not given back": (
        "nothing runs, and nothing happens",
        Scenario(jobs=(SimulatedJob(name="j0"), SimulatedJob(name="j1")), cpus=1),
    ),
    "no wait before a retry": ("is retried too early", Scenario(jobs=(REFUSED,))),
    "an attempt that was asked to end counts as failed": (
        "counts as failed, and was asked to end",
        Scenario(
            jobs=(SimulatedJob(name="j0", max_retries=0, behaviours=(Behaviour(ending="full"),)),)
        ),
    ),
    "a CPU that is held is given again": (
        "a CPU is given too often",
        Scenario(jobs=(SimulatedJob(name="j0"), SimulatedJob(name="j1", iterations=2))),
    ),
    "summary files keep a page of which a job has moved": (
        "summary.json has {'j0-s0': 'PENDING'}, the ledger {'j0-s0': 'SUCCEEDED'}",
        Scenario(
            jobs=(
                SimulatedJob(
                    name="j0", iterations=1, behaviours=(Behaviour(ending="refused", after=1),)
                ),
            ),
            max_parallel=1,
        ),
    ),
    "the exit record of an earlier attempt of the same number stays": (
        "is launched where the exit record of another attempt is",
        Scenario(
            jobs=(
                SimulatedJob(
                    name="j0",
                    iterations=2,
                    stall_timeout_s=2.5,
                    behaviours=(Behaviour(after=1, iteration_s=1.5),),
                ),
                SimulatedJob(
                    name="j1",
                    iterations=6,
                    behaviours=(Behaviour(after=1, iteration_s=1.5, asked="deaf", lingers=True),),
                ),
                SimulatedJob(name="j2", iterations=2),
            ),
            troubles=(
                Trouble(kind="error", at_s=13.88),
                Trouble(kind="lock", at_s=11.33, for_s=8.0),
            ),
            cpus=1,
            grace_s=12.0,
            gap_s=10.0,
            order="longest-first",
        ),
    ),
}
"""Mutations that few seeds find, with what the monitor says and a short scenario that shows it."""


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """How some seeds were played."""
    return [play(made(seed)) for seed in SEEDS]


@functools.cache
def replayed(path: Path) -> Outcome:
    """How a trace is played now."""
    return play(Scenario.from_json(path.read_text()))


def violations(seeds: Iterable[int], outcomes: Iterable[Outcome]) -> dict[int, str]:
    return {
        seed: outcome.violation
        for seed, outcome in zip(seeds, outcomes, strict=True)
        if outcome.violation
    }


def test_everything_holds_over_some_seeds(outcomes: list[Outcome]) -> None:
    assert violations(SEEDS, outcomes) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_everything_holds_over_a_thousand_seeds_of_this_commit(part: int) -> None:
    first = number_of_this_commit() + 50 * part
    seeds = range(first, first + 50)
    assert violations(seeds, (play(made(seed)) for seed in seeds)) == {}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.nightly] * (path.stem in DEAR))
        for path in TRACES
    ],
)
def test_what_was_found_once_does_not_come_again(path: Path) -> None:
    assert replayed(path).violation == ""


def test_the_same_seed_gives_the_same_trace_in_another_process(outcomes: list[Outcome]) -> None:
    """There nothing was played before, and sets have another order. In seed 156 a run directory
    without jobs is removed.
    """
    program = (
        "from pathlib import Path\n"
        "from tests.simulation.play import play\n"
        "from tests.simulation.scenario import Scenario, made\n"
        "traces = sorted(Path('tests/simulation/traces').glob('*.json'))[::12]\n"
        "scenarios = [Scenario.from_json(path.read_text()) for path in traces]\n"
        "for scenario in [*scenarios, made(1), made(156)]:\n"
        "    print(chr(10).join(play(scenario).trace))\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    traces = [replayed(path).trace for path in TRACES[::12]]
    traces += [outcomes[1].trace, play(made(156)).trace]
    assert there.splitlines() == "\n".join(line for trace in traces for line in trace).splitlines()


@functools.cache
def many_scenarios() -> tuple[Scenario, ...]:
    """Of many seeds."""
    return tuple(map(made, range(2000)))


def test_a_scenario_is_read_as_it_was_written() -> None:
    for scenario in many_scenarios()[:100]:
        assert Scenario.from_json(scenario.to_json()) == scenario


def test_a_share_of_the_seeds_runs_on_other_machines_and_with_ranks() -> None:
    scenarios = many_scenarios()
    shares = Counter[str]()
    for scenario in scenarios:
        shares["cluster"] += bool(scenario.nodes)
        shares["pilots"] += bool(scenario.array)
        shares["ranks"] += any(job.ranks > 1 for job in scenario.jobs)
    assert all(
        0.12 < shares[kind] / len(scenarios) < 0.25 for kind in ("cluster", "pilots", "ranks")
    )
    troubles = {trouble.kind for scenario in scenarios for trouble in scenario.troubles}
    assert troubles >= set(OF_NODES)


def test_what_a_share_of_the_seeds_has_beside_the_rest_is_all_there() -> None:
    scenarios = many_scenarios()
    troubles = [trouble for scenario in scenarios for trouble in scenario.troubles]
    assert {trouble.kind for trouble in troubles} >= set(richer.KINDS)
    damages = {trouble.what for trouble in troubles if trouble.kind == "damage"}
    assert damages >= set(spoiling.KINDS)
    for name in RICHER:
        assert any(getattr(scenario, name) for scenario in scenarios), name
    assert any(job.robot and job.is_measured for one in scenarios for job in one.jobs)
    assert damages >= set(rarer.DAMAGES)
    jobs = [job for scenario in scenarios for job in scenario.jobs]
    assert {job.policy for job in jobs} == {"", *rarer.POLICIES}
    assert any(job.misfits for job in jobs)
    assert any(job.is_given and job.is_invalid for job in jobs)


@pytest.mark.skipif(not (HAS_RAY and HAS_SLURM), reason="a feature was taken away")
def test_jobs_are_launched_on_nodes_in_pilots_and_as_ranks(outcomes: list[Outcome]) -> None:
    launched: Counter[str] = Counter()
    for outcome in outcomes:
        for line in outcome.trace:
            for where in (
                r" ranks on ",
                r"launched on n",
                r"launched on \d+_",  # a pilot
                r"was killed by SIGKILL",
            ):
                launched[where] += re.search(where, line) is not None
    assert all(launched.values())


def test_deaths_come_at_every_kind_of_point_and_all_troubles_come(outcomes: list[Outcome]) -> None:
    counts: Counter[str] = Counter()
    died_at: set[str] = set()
    for outcome in outcomes:
        counts += outcome.counts
        died_at |= {
            before.split()[1]
            for before, line in zip(outcome.trace, outcome.trace[1:], strict=False)
            if "the supervisor dies" in line
        }
    assert {"commit", "polled", "rename", "submitted"} <= died_at
    assert all(
        counts[kind]
        for kind in (
            *("kill", "power", "lock", "full refusals", "io refusals"),
            *("late", "lost", "twice", "jump"),
        )
    )


FAILED_JOB = SimulatedJob(
    name="j0", iterations=2, max_retries=0, behaviours=(Behaviour(ending="error"),)
)
LONG_JOB = SimulatedJob(name="j1", iterations=14)
ADDED_JOB = SimulatedJob(name="j2", iterations=3, is_declared=False)
KILLED = Trouble(kind="kill", at_s=3.0)
FAILS_AT: dict[str, tuple[float, Scenario]] = {
    "the run begins": (0.0, Scenario(jobs=(FAILED_JOB, LONG_JOB))),
    "it is resumed": (3.1, Scenario(jobs=(FAILED_JOB, LONG_JOB), troubles=(KILLED,))),
    "a command is given": (
        5.9,
        Scenario(
            jobs=(FAILED_JOB, LONG_JOB),
            troubles=(KILLED, Trouble(kind="retry", at_s=6.0, job="j0-s0")),
        ),
    ),
    "a command is given while no supervisor runs": (
        3.9,
        Scenario(
            jobs=(FAILED_JOB, LONG_JOB),
            troubles=(KILLED, Trouble(kind="pause", at_s=4.0, job="j1-s0")),
        ),
    ),
    "a request is acted on": (
        6.0,
        Scenario(
            jobs=(FAILED_JOB, LONG_JOB),
            troubles=(KILLED, Trouble(kind="retry", at_s=6.0, job="j0-s0")),
        ),
    ),
    "new jobs come": (
        3.1,
        Scenario(
            jobs=(FAILED_JOB, LONG_JOB, ADDED_JOB),
            troubles=(
                Trouble(kind="edit", at_s=3.0, job="j2-s0", what="add"),
                Trouble(kind="reload", at_s=3.1),
            ),
        ),
    ),
    "the run ends": (1.4, Scenario(jobs=(SimulatedJob(name="j0", iterations=2),))),
    "the run is stopped": (
        4.1,
        Scenario(jobs=(FAILED_JOB, LONG_JOB), troubles=(Trouble(kind="stop", at_s=4.0),)),
    ),
}
"""When the file system fails, and in which scenario."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAILS_AT)
def test_any_of_the_next_statements_of_the_ledger_may_fail(name: str) -> None:
    at_s, scenario = FAILS_AT[name]
    whose = IO_OF_USERS if "command" in name else "io refusals"
    refusals = 0
    for number in range(50):
        fails = Trouble(kind="io", at_s=at_s, number=number)
        outcome = play(replace(scenario, troubles=(*scenario.troubles, fails)))
        assert not outcome.violation, number
        refusals += outcome.counts[whose]
    assert refusals > 10


# -- the simulated world


@pytest.fixture
def in_world(tmp_path: Path) -> World:
    root = tmp_path / "world"
    root.mkdir()
    return World(root=root, scenario=Scenario(jobs=()))


def kind_of_executor(world: World) -> SimulatedKind:
    return SimulatedKind(world=world, processes=Processes(world=world, jobs={}))


@pytest.mark.skipif(not HAS_SLURM, reason="the feature was taken away")
def test_what_a_pilot_has_written_is_not_delayed_by_what_it_writes_later(tmp_path: Path) -> None:
    """Of seed 775571948: else two delays add up, and a stop is not obeyed in time."""
    from tests.simulation.pilots import NetworkOutbox

    from orchestrator.features.slurm.mailbox import Inbox
    from orchestrator.features.slurm.pilot_messages import PilotBeat, PilotBye

    late = [Trouble(kind="late", at_event=event, for_s=4.0) for event in (1, 2)]
    world = World(root=tmp_path, scenario=Scenario(jobs=(), troubles=tuple(late)))
    path = tmp_path / "events"
    outbox, inbox = NetworkOutbox(path, world), Inbox(path)
    arrived: dict[float, list[object]] = {}
    outbox.send(PilotBeat())
    for second in range(1, 10):
        world.pass_time(1.0)
        if second == 3:
            outbox.send(PilotBye())
        if messages := inbox.receive():
            arrived[world.now] = messages
    assert arrived == {4.0: [PilotBeat()], 7.0: [PilotBye()]}


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
    with (
        seams.installed(in_world, kind_of_executor(in_world)),
        pytest.raises(UnsimulatedError),
    ):
        deed(outside)
    assert not outside.exists()


def test_every_change_of_a_file_is_a_point_wherever_it_is_made(in_world: World) -> None:
    folder = in_world.disk.run_dir
    with seams.installed(in_world, kind_of_executor(in_world)), in_world.supervised():
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
    with seams.installed(in_world, kind_of_executor(in_world)):
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


def test_the_world_is_the_programs_only_within_the_block(in_world: World) -> None:
    before = [getattr(owner, name) for owner, name, _ in replacements_of(in_world)]
    with seams.installed(in_world, kind_of_executor(in_world)):
        assert disk._watching
    assert [getattr(owner, name) for owner, name, _ in replacements_of(in_world)] == before
    assert not disk._watching


def replacements_of(world: World) -> list[tuple[object, str, object]]:
    return list(seams.replacements(world, kind_of_executor(world)))


def test_a_worker_leaves_a_cpu_that_others_have_come_to_use() -> None:
    def moves(kind: TroubleKind, *, is_bound: bool = False) -> list[str]:
        behaviour = Behaviour(iteration_s=1.0, is_bound=is_bound)
        scenario = Scenario(
            jobs=(SimulatedJob(name="j0", iterations=60, behaviours=(behaviour,)),),
            troubles=(
                Trouble(kind=kind, at_s=2.0, for_s=100.0, number=0),
                Trouble(kind=kind, at_s=20.0, for_s=100.0, number=1),
            ),
            cpus=3,
        )
        outcome = play(scenario)
        assert outcome.violation == ""
        return [line.split(" ", 1)[1] for line in outcome.trace if "has moved from" in line]

    to_and_on = ["j0-s0 has moved from (0,) to (1,)", "j0-s0 has moved from (1,) to (2,)"]
    assert moves("program") == to_and_on
    assert moves("run") == to_and_on
    assert moves("program", is_bound=True) == []


# -- planted faults


def first_found(mutation: Mutation, most: int) -> int | None:
    with planted(mutation):
        return next((seed for seed in range(most) if play(made(seed)).violation), None)


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found_where_nothing_else_is_wrong(name: str) -> None:
    violation, scenario = FOUND[name]
    (mutation,) = (one for one in MUTATIONS if one.name == name)
    assert play(scenario).violation == ""
    with planted(mutation):
        assert violation in play(scenario).violation


@pytest.mark.nightly
@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found_soon(name: str) -> None:
    (mutation,) = (one for one in MUTATIONS if one.name == name)
    assert first_found(mutation, 40) is not None


@pytest.mark.parametrize(
    ("trace", "name", "violation"),
    [
        (
            "exit_record_comes_back_after_a_power_cut",
            "the removal of a stale exit record is not on the disk",
            "with the exit record of another attempt",
        ),
        (
            "request_comes_back_after_a_power_cut",
            "the removal of a file of requests is not on the disk",
            "cancel was done 2 times",
        ),
        (
            "grows_while_it_is_to_end",
            "growth beyond the memory limit is not noticed in the grace time",
            "is over its memory limit",
        ),
    ],
)
def test_the_trace_of_a_fault_that_was_mended_finds_it(
    trace: str, name: str, violation: str
) -> None:
    (path,) = (path for path in TRACES if path.stem == trace)
    (mutation,) = (one for one in MUTATIONS if one.name == name)
    with planted(mutation):
        assert violation in play(Scenario.from_json(path.read_text())).violation


@pytest.mark.skipif(not HAS_SLURM, reason="the feature was taken away")
@pytest.mark.parametrize(
    ("trace", "name"),
    [
        ("last_word_of_a_pilot_comes_twice", "the last message of a pilot counts twice"),
        (
            "pilot_was_cancelled_by_the_supervisor_before",
            "pilots that were cancelled before count as cancelled by the user",
        ),
        (
            "dies_while_pilots_hand_back",
            "pilots of an earlier supervisor need not hand back",
        ),
        (
            "stop_while_a_run_starts_beside_pilots_that_were_left",
            "a stop while a run starts leaves pilots of an earlier supervisor",
        ),
    ],
)
def test_the_trace_of_a_fault_of_pilots_finds_it(trace: str, name: str) -> None:
    (path,) = (path for path in TRACES if path.stem == trace)
    (mutation,) = (one for one in ELSEWHERE if one.name == name)
    with planted(mutation):
        assert play(Scenario.from_json(path.read_text())).violation


@pytest.mark.parametrize(
    ("story", "name", "violation"),
    [
        (
            stories._full_memory,
            "promised memory is given twice",
            "MiB are promised at once",
        ),
        (
            stories._growth_in_the_grace_time,
            "growth beyond the memory limit is not noticed in the grace time",
            "is over its memory limit",
        ),
        (
            stories._rank_that_stays,
            "the other ranks stay when one has died",
            "after one of its ranks",
        ),
        (
            stories._unrecorded_attempts,
            "directories of attempts that the ledger has lost are not seen",
            "is launched under the number of an earlier attempt",
        ),
        (
            stories._followed_by_others,
            "an attempt that has moved may move again at once",
            "moved again after",
        ),
        pytest.param(
            stories._pilot_that_stays_silent,
            "a silent pilot is never given up",
            "the supervisor does not come to an end",
            marks=pytest.mark.skipif(not HAS_SLURM, reason="the feature was taken away"),
        ),
    ],
)
def test_a_story_shows_the_fault_that_it_is_about(
    story: Callable[[random.Random], Scenario], name: str, violation: str
) -> None:
    (mutation,) = (one for one in (*MUTATIONS, *ELSEWHERE) if one.name == name)
    with planted(mutation):
        told = (story(random.Random(number)) for number in range(12))
        shows_it = next((one for one in told if violation in play(one).violation), None)
    assert shows_it is not None
    assert play(shows_it).violation == "", "nothing else is wrong"


def test_every_planted_fault_still_has_its_place() -> None:
    for mutation in (*MUTATIONS, *ELSEWHERE):
        with planted(mutation):
            pass


def test_the_shortest_scenario_still_fails_and_has_nothing_else() -> None:
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
        cpus=2,
    )
    (mutation,) = (one for one in MUTATIONS if one.name.startswith("one that is killed has no"))
    with planted(mutation):
        outcome = play(scenario)
        shortest, again = shrunk(scenario, outcome)
    assert kind_of(again) == kind_of(outcome)
    assert shortest.troubles == (needed,)
    assert [job.name for job in shortest.jobs] == ["j0"]
