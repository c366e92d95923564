"""Who trains when: in turns on one core for speed, several at once for returns."""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks import harness
from benchmarks.contenders.contender import ContenderFailed
from benchmarks.contenders.results import Results, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One training that is to be made."""

    contender: str
    robot: str
    env_steps: int
    seed: int
    goal: float | None = None
    """The mean return at which it ends."""
    threads: int = 1
    """As many as cores."""


class Running(Protocol):
    """A training that has been started; see :class:`benchmarks.contenders.contender.Training`."""

    def ended(self) -> bool: ...

    def record(self) -> dict[str, Any]: ...

    def end(self) -> None: ...


Start = Callable[[Task, int], Running]
"""Takes a task and a core."""


def asked_of(task: Task) -> dict[str, Any]:
    """Of a training, as results have it."""
    return {
        "contender": task.contender,
        "robot": task.robot,
        "seed": task.seed,
        "asked": task.env_steps,
    }


def outcome_of(record: dict[str, Any]) -> str:
    """What is said of a training that has ended."""
    if (goal_s := record["goal_s"]) is not None:
        return f"at its goal after {goal_s:,.0f} s"
    return f"{record['env_steps_per_s']:,.0f} env_steps/s"


def a_child_has_ended() -> None:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Makes trainings and keeps their results; a contender that fails on a robot is not asked again
    for it."""

    results: Results
    part: str
    """``speed`` or ``returns``."""
    start: Start
    save: Callable[[], None]
    """Called after every training."""
    wait: Callable[[], None] = a_child_has_ended

    def able(self, name: str, robot: str) -> bool:
        return self.results.failure(self.part, name, robot) is None

    def train(
        self,
        tasks: Iterable[Task],
        cores: Sequence[int],
        succeeded: Callable[[Task, dict[str, Any]], None],
    ) -> None:
        """Make the trainings in their order, one at a time on each core. Whatever ends this method
        ends them, too."""
        waiting = collections.deque(tasks)
        free = list(cores)
        running: list[tuple[Task, int, Running]] = []
        try:
            while waiting or running:
                while waiting and free:
                    task = waiting.popleft()
                    if self.able(task.contender, task.robot):
                        core = free.pop()
                        running.append((task, core, self.start(task, core)))
                if running:
                    self.wait()
                for one in [one for one in running if one[2].ended()]:
                    running.remove(one)
                    task, core, training = one
                    free.append(core)
                    try:
                        record = training.record()
                    except ContenderFailed as error:
                        self.results.add_failure(self.part, task.contender, task.robot, str(error))
                        outcome = str(error)
                    else:
                        succeeded(task, record)
                        outcome = outcome_of(record)
                    self.save()
                    print(f"{task.robot}, {task.contender}: {outcome}", file=sys.stderr, flush=True)
        finally:
            for _, _, training in running:
                training.end()

    def speed(
        self,
        names: Sequence[str],
        robots: Sequence[str],
        *,
        repeats: int,
        env_steps: int,
        core: int,
    ) -> None:
        """Make the rounds that are missing: in a round, every contender trains once on one robot.

        A round that was interrupted, or in which one of ``names`` is missing, is kept but does not
        count.
        """
        for number in range(repeats):
            for robot in robots:
                able = {name for name in names if self.able(name, robot)}
                whole = [
                    one
                    for one in self.results.rounds_of(robot, env_steps)
                    if able <= one["trainings"].keys()
                ]
                if number >= len(whole):
                    self._round(harness.both_ways(number, *names), robot, number, env_steps, core)

    def goals(
        self,
        names: Sequence[str],
        robots: Sequence[str],
        *,
        seeds: int,
        env_steps: int,
        goal: float,
        cores: Sequence[int],
    ) -> None:
        """Make the trainings to a return that are missing, one at a time: on one core and on two, all
        contenders with the first seed before any with the second.

        :param env_steps: at which a training that has not reached it ends.
        :param cores: the first of them, or the first two, are used.
        """
        tasks = [
            Task(
                contender=name,
                robot=robot,
                env_steps=env_steps,
                seed=seed,
                goal=goal,
                threads=threads,
            )
            for seed in range(seeds)
            for robot in robots
            for name in harness.both_ways(seed, *names)
            for threads in range(1, len(cores) + 1)
            if seed not in self.results.goals_of(robot, name, env_steps, goal, threads)
        ]

        def succeeded(task: Task, record: dict[str, Any]) -> None:
            wanted = {"goal": task.goal, "cores": task.threads}
            self.results.goals.append({**asked_of(task), **wanted, **record})

        self.train(tasks, cores[:1], succeeded)

    def _round(
        self, names: Iterable[str], robot: str, seed: int, env_steps: int, core: int
    ) -> None:
        round_ = self.results.new_round(robot, env_steps)

        def succeeded(task: Task, record: dict[str, Any]) -> None:
            round_["trainings"][task.contender] = record

        tasks = [
            Task(contender=name, robot=robot, env_steps=env_steps, seed=seed) for name in names
        ]
        self.train(tasks, [core], succeeded)
        round_["ended"] = now()
        self.save()

    def returns(
        self,
        names: Sequence[str],
        robots: Sequence[str],
        *,
        seeds: int,
        env_steps: int,
        cores: Sequence[int],
    ) -> None:
        """Make the trainings that are missing, all contenders with the first seed before any with
        the second."""
        tasks = [
            Task(contender=name, robot=robot, env_steps=env_steps, seed=seed)
            for seed in range(seeds)
            for robot in robots
            # The slowest are the last of them, and should not begin last.
            for name in reversed(names)
            if seed not in self.results.returns_of(robot, name, env_steps)
        ]

        def succeeded(task: Task, record: dict[str, Any]) -> None:
            self.results.returns.append({**asked_of(task), **record})

        self.train(tasks, cores, succeeded)
