"""Of the simulated world: it is reproducible, sees what the program does, and finds faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from orchestrator.core.files.atomic_files import write_whole
from tests.simulation.disk import UnsimulatedError
from tests.simulation.drawing import made
from tests.simulation.machine import Machine
from tests.simulation.planted import FAULTS, Fault, first_seed
from tests.simulation.play import play
from tests.simulation.scenario import Scenario
from tests.simulation.seams import installed
from tests.simulation.world import World

ROOT = Path(__file__).parents[2]


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


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault) -> None:
    seed, _ = first_seed(fault, range(2000))
    assert seed is not None


# -- the disk


def in_force(world: World) -> AbstractContextManager[object]:
    """Within the block the program sees the world."""
    return installed(Machine(world=world, jobs={}, limit=1))


@pytest.fixture
def world(tmp_path: Path) -> World:
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
    world: World, tmp_path: Path, deed: Callable[[Path], object]
) -> None:
    outside = tmp_path / "outside"
    with in_force(world), pytest.raises(UnsimulatedError):
        deed(outside)
    assert not outside.exists()


def test_every_change_of_a_file_is_a_point_wherever_it_is_made(world: World) -> None:
    folder = world.disk.run_dir
    with in_force(world):
        world.begin_life()
        folder.mkdir()
        write_whole(folder / "a", "new")
        (folder / "a").rename(folder / "b")
        (folder / "b").unlink()
    points = [line.split(" ", 1)[1] for line in world.trace]
    for point in ("mkdir /run", "fsync content", "fsync names", "rename a to b", "remove b"):
        assert point in points
    assert world.points == len(points)


def test_a_power_cut_takes_only_what_is_not_on_the_disk(world: World) -> None:
    folder = world.disk.run_dir
    lost: Counter[str] = Counter()
    with in_force(world):
        folder.mkdir()
        for choice in range(40):
            write_whole(folder / "saved", f"saved {choice}")
            write_whole(folder / "unsaved", f"unsaved {choice}", durable=False)
            with world.own_work():
                world.disk.lose_power(choice)
            assert (folder / "saved").read_text() == f"saved {choice}"
            path = folder / "unsaved"
            content = path.read_text() if path.exists() else "missing"
            lost["kept" if content == f"unsaved {choice}" else "lost"] += 1
    assert lost["kept"] > 5
    assert lost["lost"] > 5
