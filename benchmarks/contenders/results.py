"""The file of all trainings so far, and the table made from it."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders.contender import CONTENDERS, STOCK
from benchmarks.contenders.stopwatch import GOAL_EPISODES
from benchmarks.harness import spread
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.text import count
from orchestrator.features.bench import plan
from orchestrator.machine import provenance, topology

SHOWN_VERSIONS = {
    "sb3": ("stable_baselines3", "torch"),
    "fast": ("torch", "numpy"),
    "cleanrl": ("torch", "gymnasium"),
    "sbx": ("sbx-rl", "jax"),
    "envpool": ("stable_baselines3", "envpool", "torch"),
    "mjbatch": ("mjbatch", "mujoco", "torch"),
    "rl_games": ("rl-games", "envpool", "torch"),
    "rl_games_own": ("rl-games", "envpool", "torch"),
    "fast_wide": ("torch", "numpy"),
    "torchrl": ("torchrl", "tensordict", "torch"),
}
UNDISTURBED = 0.95
"""CPU time ÷ wall time below which a training has shared its core with something else."""


class Unreadable(Exception):
    """A file of earlier results cannot be read."""


@dataclass(slots=True)
class Results:
    """All trainings so far, also those with other numbers of env_steps than asked for now."""

    machine: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """For speed: ``robot``, ``env_steps``, ``began``, ``ended`` (None: interrupted) and
    ``trainings``, by contender, as a stopwatch writes them."""
    returns: list[dict[str, Any]] = field(default_factory=list)
    """``contender``, ``robot``, ``seed``, ``asked`` (env_steps), and what a stopwatch writes."""
    goals: list[dict[str, Any]] = field(default_factory=list)
    """As ``returns``, and with the ``goal`` (a return) and the number of ``cores``."""
    failures: list[dict[str, str]] = field(default_factory=list)
    """``part`` (``speed``, ``returns`` or ``goals``), ``contender``, ``robot``, ``reason``."""

    @classmethod
    def read(cls, file: Path) -> Results:
        """:raises Unreadable: it is there, but was not written by :meth:`write`, or on another
        machine."""
        try:
            found = cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError) as error:
            raise Unreadable(
                f"{file} cannot be read ({error}). Remove it, or give another --out."
            ) from None
        if found.machine and (changed := plan.differences(found.machine, this_machine())):
            what = "; ".join(changed)
            raise Unreadable(
                f"{file} is of another machine or other versions: {what}. Give another --out."
            )
        return found

    def write(self, file: Path) -> None:
        self.machine = this_machine()
        write_whole(
            file, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", durable=False
        )

    def new_round(self, robot: str, env_steps: int) -> dict[str, Any]:
        began = now()
        self.rounds.append(
            {"robot": robot, "env_steps": env_steps, "began": began, "ended": None, "trainings": {}}
        )
        return self.rounds[-1]

    def rounds_of(self, robot: str, env_steps: int) -> list[dict[str, Any]]:
        """The rounds that were not interrupted."""
        return [
            one
            for one in self.rounds
            if (one["robot"], one["env_steps"]) == (robot, env_steps) and one["ended"]
        ]

    def returns_of(self, robot: str, name: str, env_steps: int) -> dict[int, dict[str, Any]]:
        return _by_seed(self.returns, robot=robot, contender=name, asked=env_steps)

    def goals_of(
        self, robot: str, name: str, env_steps: int, goal: float, cores: int
    ) -> dict[int, dict[str, Any]]:
        return _by_seed(
            self.goals, robot=robot, contender=name, asked=env_steps, goal=goal, cores=cores
        )

    def failure(self, part: str, name: str, robot: str) -> str | None:
        wanted = (part, name, robot)
        for one in self.failures:
            if (one["part"], one["contender"], one["robot"]) == wanted:
                return one["reason"]
        return None

    def add_failure(self, part: str, name: str, robot: str, reason: str) -> None:
        if self.failure(part, name, robot) is None:
            self.failures.append(
                {"part": part, "contender": name, "robot": robot, "reason": reason}
            )

    def forget_failures(self, names: Sequence[str]) -> None:
        self.failures = [one for one in self.failures if one["contender"] not in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All results of trainings of these lengths."""

    results: Results
    speed_steps: int
    return_steps: int
    goal: float

    def text(self) -> str:
        """Markdown: what the figures are, and a table with a row for each robot and contender, and
        another one of the time to the goal.
        """
        parts = [self._speeds_and_returns(), self._times_to_goal()]
        return "\n".join(part for part in parts if part)

    def _times_to_goal(self) -> str:
        """Empty where no training had the goal."""
        asked = self.goal, self.return_steps
        found = [one for one in self.results.goals if (one["goal"], one["asked"]) == asked]
        if not found:
            return ""
        rows = [
            row
            for robot in dict.fromkeys(one["robot"] for one in found)
            for name in CONTENDERS
            if (row := self._goal_row(robot, name, found))
        ]
        return (
            f"Seconds until the last {GOAL_EPISODES} episodes of the training had a mean return of"
            f" {self.goal:,.0f}, with compilation, without imports.\n\n"
            "| robot | contender | one core, s | two cores, s | env_steps, one core | remarks |\n"
            "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )

    def _goal_row(self, robot: str, name: str, found: Sequence[dict[str, Any]]) -> str | None:
        """None where the contender was not asked for it."""
        mine = [one for one in found if (one["robot"], one["contender"]) == (robot, name)]
        reason = self.results.failure("goals", name, robot)
        if not (mine or reason):
            return None
        by_cores = [[one for one in mine if one["cores"] == cores] for cores in (1, 2)]
        reached = [one for one in by_cores[0] if one["goal_s"] is not None]
        cells = [
            robot,
            CONTENDERS[name].title,
            *map(_goal_times, by_cores),
            _figure([one["env_steps"] for one in reached]),
            f"`{reason.replace('`', chr(39))}`" if reason else "",
        ]
        return table_row(cells)

    def _speeds_and_returns(self) -> str:
        """Empty where no training was made for either."""
        if not (self.results.rounds or self.results.returns):
            return ""
        header = (
            f"| robot | contender | env_steps/s | ratio to stock | return after {self.return_steps:,} env_steps "
            "| versions | remarks |\n|---|---|---|---|---|---|---|"
        )
        robots = dict.fromkeys(
            [one["robot"] for one in (*self.results.rounds, *self.results.returns)]
        )
        rows = [self._row(robot, name) for robot in robots for name in CONTENDERS]
        return "\n".join([*self._heading(robots), "", header, *filter(None, rows)]) + "\n"

    def _heading(self, robots: Iterable[str]) -> list[str]:
        rounds = [round_ for robot in robots for round_ in self._rounds(robot)]
        trainings = [one for round_ in rounds for one in round_["trainings"].values()]
        days = sorted(one["began"][:10] for one in rounds)
        when = (
            " to ".join(dict.fromkeys([days[0], days[-1]])) if days else time.strftime("%Y-%m-%d")
        )
        lines = [f"{when}, {topology.cpu_model()}, one core and one thread."]
        if trainings:
            made = collections.Counter(
                (one["robot"], name) for one in rounds for name in one["trainings"]
            )
            words = interval_words(min(made.values()), max(made.values()))
            lines += [
                f"Speeds are of {self.speed_steps:,} env_steps: {words}.",
                f"Ratios are to {CONTENDERS[STOCK].title} in the same repeat.",
            ]
        if shared := [one for one in trainings if one["cpu_s"] < UNDISTURBED * one["wall_s"]]:
            lines.append(
                f"**{len(shared)} of {len(trainings)} trainings shared their core with other processes.**"
            )
        seeds = max(
            (len(self._returns(robot, name)) for robot in robots for name in CONTENDERS), default=0
        )
        if seeds:
            words = count(seeds, "seed")
            if seeds > 1:
                words += ": median (least – most)"
            lines.append(f"Returns are the means of the last 100 episodes of training, of {words}.")
        return lines

    def _row(self, robot: str, name: str) -> str | None:
        """None where the contender has never been asked to train on the robot."""
        speeds = []
        ratios = []
        versions: dict[str, str] = {}
        for round_ in self._rounds(robot):
            if mine := round_["trainings"].get(name):
                speeds.append(mine["env_steps_per_s"])
                versions |= mine["versions"]
                if stock := round_["trainings"].get(STOCK):
                    ratios.append(mine["env_steps_per_s"] / stock["env_steps_per_s"])
        trained = self._returns(robot, name).values()
        reasons = [self.results.failure(part, name, robot) for part in ("speed", "returns")]
        if not (speeds or trained or any(reasons)):
            return None
        for one in trained:
            versions |= one["versions"]
        remarks = [
            f"`{reason.replace('`', chr(39))}`" for reason in dict.fromkeys(reasons) if reason
        ]
        cells = [
            robot,
            CONTENDERS[name].title,
            _figure(speeds),
            _figure(ratios),
            _figure(
                [one["episode_return"] for one in trained if one["episode_return"] is not None]
            ),
            ", ".join(
                f"{package} {versions[package]}"
                for package in SHOWN_VERSIONS[name]
                if package in versions
            ),
            "; ".join([*remarks, *filter(None, [CONTENDERS[name].note])]),
        ]
        return table_row(cells)

    def _rounds(self, robot: str) -> list[dict[str, Any]]:
        return self.results.rounds_of(robot, self.speed_steps)

    def _returns(self, robot: str, name: str) -> dict[int, dict[str, Any]]:
        return self.results.returns_of(robot, name, self.return_steps)


def _by_seed(trainings: Iterable[dict[str, Any]], **wanted: Any) -> dict[int, dict[str, Any]]:
    """By seed, the trainings with these values. :param wanted: key → value."""
    return {
        one["seed"]: one
        for one in trainings
        if all(one[key] == value for key, value in wanted.items())
    }


def table_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _goal_times(trainings: Sequence[dict[str, Any]]) -> str:
    """Of those that have reached the goal, and how many have not."""
    reached = [one["goal_s"] for one in trainings if one["goal_s"] is not None]
    others = [one for one in trainings if one["goal_s"] is None]
    texts = [_figure(reached)] if reached else []
    if others:
        env_steps = max(one["env_steps"] for one in others)
        texts.append(f"{len(others)} of {len(trainings)} not within {env_steps:,} env_steps")
    return "; ".join(texts) or "–"


def this_machine() -> dict[str, Any]:
    versions = dict(provenance.installed_versions())
    return {"cpu": topology.cpu_model(), "cpus": len(topology.online_cpus()), "versions": versions}


def interval_words(least: int, most: int) -> str:
    """What the ranges in the table are: the range of n independent values holds their median but
    for 2 of 2ⁿ cases.

    :param least: the fewest repeats of a contender and robot; ``most`` the most.
    """
    if least < 2:
        return "one repeat, no interval"
    repeats = f"{least} repeats, a" if least == most else f"{least} to {most} repeats, at least a"
    return f"median (least – most of {repeats} {100 * (1 - 2 ** (1 - least)):.3g} % confidence interval of the median)"


def _figure(values: Sequence[float]) -> str:
    """Median and range; one value alone; or a dash."""
    if len(values) > 1:
        return spread(values)
    return spread(values).partition(" ")[0] if values else "–"


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
