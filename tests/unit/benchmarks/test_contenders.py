"""``benchmarks.contenders``: turns, resuming, ratios and rows, with contenders that take the time
they are told."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contenders.__main__ import main
from benchmarks.contenders.contender import CONTENDERS, PINS, ContenderFailed, reason
from benchmarks.contenders.results import Report, Results, Unreadable, interval_words
from benchmarks.contenders.stopwatch import GOAL_EPISODES, Stopwatch, iterations
from benchmarks.contenders.turns import Measurement, Task

ROBOT, STEPS, LONG, GOAL = "Ant-v5", 10, 99, 500.0
NAMES = ["sb3", "fast", "sbx", "torchrl"]
GOALS = {"sb3": (120.0, 90.0), "fast": (20.0, None), "sbx": (60.0, 50.0)}
"""Seconds on one core and on two; None: it was not reached."""
SPEEDS = {"sb3": [100.0, 200.0, 50.0], "fast": [400.0, 600.0, 300.0]}


class Trained:
    """A training that ends at once. TorchRL fails in its second one."""

    def __init__(self, task: Task) -> None:
        self.task, self.removed = task, False

    def ended(self) -> bool:
        return True

    def end(self) -> None:
        self.removed = True

    def record(self) -> dict[str, Any]:
        name, seed = self.task.contender, self.task.seed
        if name == "torchrl" and seed == 1:
            raise ContenderFailed("failed: ValueError: no")
        versions = {"torch": "2", "numpy": "1", "unrelated": "0"}
        speed = SPEEDS.get(name, [50.0] * 3)[seed]
        return {
            "env_steps_per_s": speed, "cpu_s": 2.0, "wall_s": 2.0, "episode_return": 1000.0 + seed,
            "versions": versions, "env_steps": LONG,
            "goal_s": GOALS[name][self.task.threads - 1] if self.task.goal else None,
        }  # fmt: skip


class Referee:
    """Measures into a file, as a command does, and remembers the turns of this command."""

    def __init__(self, file: Path, interrupted_at: Task | None = None) -> None:
        self.results, self.turns, self.interrupted_at = (
            Results.read(file),
            list[Task](),
            interrupted_at,
        )
        self._file = file

    def part(self, part: str) -> Measurement:
        return Measurement(
            results=self.results, part=part, start=self._start, wait=lambda: None,
            save=lambda: self.results.write(self._file),
        )  # fmt: skip

    def _start(self, task: Task, core: int) -> Trained:
        if task == self.interrupted_at:
            raise KeyboardInterrupt
        self.turns.append(task)
        return Trained(task)

    def speed(self, names: list[str] = NAMES, repeats: int = 3) -> list[tuple[str, int]]:
        self.part("speed").speed(names, [ROBOT], repeats=repeats, env_steps=STEPS, core=0)
        return [(turn.contender, turn.seed) for turn in self.turns]

    def goals(self, names: list[str], seeds: int = 1) -> list[tuple[str, int, int]]:
        self.part("goals").goals(
            names, [ROBOT], seeds=seeds, env_steps=LONG, goal=GOAL, cores=[0, 1]
        )
        return [(turn.contender, turn.seed, turn.threads) for turn in self.turns]

    def returns(self, names: list[str] = NAMES, seeds: int = 2) -> list[tuple[str, int]]:
        self.part("returns").returns(names, [ROBOT], seeds=seeds, env_steps=LONG, cores=[0, 1])
        return [(turn.contender, turn.seed) for turn in self.turns]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "contenders.json"


@pytest.fixture
def complete(file: Path) -> Results:
    """Both parts, with SBX not installed."""
    referee = Referee(file)
    referee.results.add_failure("speed", "sbx", ROBOT, "not installed: ERROR: a | b")
    referee.speed()
    referee.returns(["sb3", "fast"])
    return Results.read(file)


def cells(results: Results, title: str) -> list[str]:
    text = Report(results=results, speed_steps=STEPS, return_steps=LONG, goal=GOAL).text()
    [line] = [line for line in text.splitlines() if f"| {title} |" in line]
    return [cell.strip() for cell in line.split(" | ")]


def task(name: str, seed: int, env_steps: int = STEPS) -> Task:
    return Task(contender=name, robot=ROBOT, env_steps=env_steps, seed=seed)


def test_contenders_take_turns_in_alternating_order_and_a_failed_one_is_not_asked_again(
    file: Path,
) -> None:
    assert Referee(file).speed(["sb3", "fast", "torchrl"]) == [
        *(("sb3", 0), ("fast", 0), ("torchrl", 0)),
        *(("torchrl", 1), ("fast", 1), ("sb3", 1)),
        *(("sb3", 2), ("fast", 2)),
    ]


def test_the_same_command_makes_only_the_repeats_that_are_missing_and_the_interrupted_one(
    file: Path,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        Referee(file, interrupted_at=task("sb3", 1)).speed(["sb3", "fast"])
    assert Referee(file).speed(["sb3", "fast"]) == [
        ("fast", 1),
        ("sb3", 1),
        ("sb3", 2),
        ("fast", 2),
    ]
    assert Referee(file).speed(["sb3", "fast"]) == []
    assert cells(Results.read(file), CONTENDERS["fast"].title)[2] == "400 (300 – 600)"


def test_a_repeat_without_one_of_the_contenders_is_made_again(file: Path) -> None:
    Referee(file).speed(["sb3", "fast"], repeats=1)
    assert Referee(file).speed(["sb3", "cleanrl"], repeats=1) == [("sb3", 0), ("cleanrl", 0)]


def test_the_same_command_makes_only_the_returns_that_are_missing(file: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Referee(file, interrupted_at=task("sb3", 1, LONG)).returns(["sb3", "fast"])
    assert Referee(file).returns(["sb3", "fast"]) == [("fast", 1), ("sb3", 1)]


def test_goals_are_tried_on_one_core_and_on_two_and_only_those_that_are_missing(
    file: Path,
) -> None:
    first = [("sb3", 0, 1), ("sb3", 0, 2), ("fast", 0, 1), ("fast", 0, 2)]
    assert Referee(file).goals(["sb3", "fast"]) == first
    assert Referee(file).goals(["sb3", "fast", "sbx"]) == [("sbx", 0, 1), ("sbx", 0, 2)]
    results = Results.read(file)
    results.add_failure("goals", "torchrl", ROBOT, "failed: a | b")
    assert cells(results, CONTENDERS["sb3"].title)[2:5] == ["120", "90", "99"]
    assert cells(results, CONTENDERS["fast"].title)[2:4] == ["20", "1 of 1 not within 99 env_steps"]
    assert "a \\| b" in cells(results, CONTENDERS["torchrl"].title)[-1]
    other = Report(results=results, speed_steps=STEPS, return_steps=LONG, goal=GOAL + 1)
    assert other.text() == "", "of another goal"


def test_a_training_ends_when_its_last_episodes_have_the_return_of_its_goal() -> None:
    watch = Stopwatch(goal=10.0)
    high = [10.0] * GOAL_EPISODES
    assert not watch.mark(1, high[1:]), "too few episodes"
    assert not watch.mark(2, [*high[1:], 9.0])
    assert watch.mark(3, [0.0, *high])
    assert not Stopwatch().mark(1, high), "it has no goal"


def test_whatever_ends_the_command_ends_the_trainings_that_run(file: Path) -> None:
    running = list[Trained]()

    def start(one: Task, core: int) -> Trained:
        running.append(Trained(one))
        return running[-1]

    def interrupt() -> None:
        raise KeyboardInterrupt

    measurement = Measurement(
        results=Results(), part="returns", start=start, save=lambda: None, wait=interrupt
    )
    with pytest.raises(KeyboardInterrupt):
        measurement.train([task(name, 0) for name in NAMES], [3, 5], lambda task, record: None)
    assert [(one.task.contender, one.removed) for one in running] == [("sb3", True), ("fast", True)]


def test_a_file_that_holds_no_results_is_named(file: Path) -> None:
    for content in ("{", '{"unknown": 1}', "[]"):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(Unreadable, match=str(file)):
            Results.read(file)


def test_two_commands_do_not_measure_into_one_folder(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = os.open(file.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    monkeypatch.setattr(
        "sys.argv", ["contenders", "speed", "--only", "sb3", "--out", str(file.parent)]
    )
    assert main() == 2
    os.close(folder)
    assert str(file.parent) in capsys.readouterr().err
    assert list(file.parent.iterdir()) == []


def test_ratios_are_of_the_same_repeat_and_have_their_range(complete: Results) -> None:
    fast = cells(complete, CONTENDERS["fast"].title)
    assert fast[2:6] == [
        "400 (300 – 600)",
        "4 (3 – 6)",
        "1,000 (1,000 – 1,001)",
        "torch 2, numpy 1",
    ]
    assert cells(complete, CONTENDERS["sb3"].title)[3] == "1 (1 – 1)"


def test_a_contender_that_is_not_installed_or_fails_is_a_row_that_says_why(
    complete: Results,
) -> None:
    missing, failed = (
        cells(complete, CONTENDERS["sbx"].title),
        cells(complete, CONTENDERS["torchrl"].title),
    )
    assert missing[2:5] == ["–", "–", "–"]
    assert "not installed: ERROR: a \\| b" in missing[-1]
    assert failed[2] == "50"
    assert "ValueError: no" in failed[-1]


def test_trainings_that_shared_their_core_are_counted(complete: Results) -> None:
    complete.rounds[0]["trainings"]["sb3"]["cpu_s"] = 1.0
    text = Report(results=complete, speed_steps=STEPS, return_steps=LONG, goal=GOAL).text()
    assert "1 of 7 trainings shared" in text


@pytest.mark.parametrize(
    ("repeats", "words"),
    [((1, 6), "no interval"), ((2, 2), "of 2 repeats, a 50 %"), ((4, 6), "at least a 87.5 %")],
)
def test_the_level_of_the_range_is_told(repeats: tuple[int, int], words: str) -> None:
    assert words in interval_words(*repeats)


@pytest.mark.parametrize(
    ("output", "status", "why"),
    [
        (
            "WARNING: x\nERROR: No matching distribution found for a==9\nhint\n",
            1,
            "ERROR: No matching distribution",
        ),
        ("Traceback\n  File\nValueError: wrong\n\n", 1, "ValueError: wrong"),
        ("", 3, "exit status 3"),
        ("a warning\n", -9, "killed by SIGKILL"),
    ],
)
def test_the_reason_is_pips_error_or_the_last_line(output: str, status: int, why: str) -> None:
    assert reason(output, status).startswith(why)


@pytest.mark.parametrize(
    ("asked", "of_one", "count"), [(1, 2048, 4), (8192, 2048, 4), (8193, 2048, 5)]
)
def test_at_least_three_iterations_are_counted(asked: int, of_one: int, count: int) -> None:
    assert iterations(asked, of_one) == count


@pytest.mark.parametrize(
    "name", sorted({contender.pins for contender in CONTENDERS.values() if contender.pins})
)
def test_every_package_is_pinned_and_torch_is_the_cpu_build(name: str) -> None:
    lines = (PINS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert all(len(line.split("==")) == 2 for line in lines)
    assert "torch==2.13.0+cpu" in lines
    assert not any(line.startswith(("nvidia", "cuda", "triton")) for line in lines)
