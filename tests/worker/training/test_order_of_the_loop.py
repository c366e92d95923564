"""An iteration is the same steps in the same order, whoever does them: bits, files and what ranks
exchange depend on it.
"""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worker_helpers as helpers

from orchestrator.core import job_parts
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.job_parts import JobPart
from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.ranks.ranks import Ranks
from orchestrator.worker.runtime import csv_tables
from orchestrator.worker.training import algorithms, loop_parts, train
from orchestrator.worker.training.checkpoint import Checkpoints
from orchestrator.worker.training.loop_parts import LoopContext, LoopPart

MODULE = "part_of_a_test"
START = [
    "gather object",  # which checkpoint all of them have
    *["broadcast"] * 9,  # the policy
    "the part is made",
    "progress.csv",
    "environments begin",
    "timings.csv",
    "the part starts",
    *["gather object"] * 2,  # statistics of the reset, and whether all are equal
]
END = ["checkpoint", "gather object"]


def iteration(number: int) -> list[str]:
    return [
        "the part begins an iteration",
        "numbers move",
        "rollout",
        "update",
        f"the part after update {number}",
        "gather object",  # statistics and episodes
        "gather array",  # divergences
        "the part before the row",
        "row of progress.csv",
        "row of timings.csv",
        "the part is due?",
        "gather array",  # what is due on any rank
        "the part acts",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    watched: bool = False


class Watched(LoopPart):
    """Writes down what it is asked. It is due at the end of every iteration."""

    columns = ("watching/due",)

    def __init__(self, context: LoopContext, deeds: list[str]) -> None:
        self._context, self._deeds = context, deeds
        deeds.append("the part is made")

    def start(self) -> None:
        self._deeds.append("the part starts")

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        self._deeds.append("the part begins an iteration")
        return moment

    def after_update(self, iteration: int) -> None:
        self._deeds.append(f"the part after update {iteration}")

    def before_row(self) -> None:
        self._deeds.append("the part before the row")
        self._context.model.logger.record("watching/due", 1)

    def is_due(self, row: Mapping[str, Any]) -> bool:
        assert row["watching/due"] == 1
        self._deeds.append("the part is due?")
        return True

    def act(self) -> None:
        self._deeds.append("the part acts")


class Mirror(Ranks):
    """Two ranks, of which the other one has the same as this one; its collectives are written
    down.
    """

    size = 2

    def __init__(self, deeds: list[str]) -> None:
        self._deeds = deeds

    def broadcast(self, array: np.ndarray) -> None:
        self._deeds.append("broadcast")

    def all_gather_array(self, array: np.ndarray) -> np.ndarray:
        self._deeds.append("gather array")
        return np.stack([array, array])

    def all_gather_object(self, value: Any) -> list[Any]:
        self._deeds.append("gather object")
        return [value, value]


@pytest.fixture
def deeds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a training in this test does, in order; it has a part of a feature."""
    done: list[str] = []

    def note(owner: Any, name: str, deed: Callable[..., str]) -> None:
        plain = getattr(owner, name)

        def noted(*arguments: Any, **settings: Any) -> Any:
            done.append(deed(*arguments))
            return plain(*arguments, **settings)

        monkeypatch.setattr(owner, name, noted)

    note(algorithms, "collect", lambda *_: "rollout")
    note(algorithms, "update", lambda *_: "update")
    note(MujocoVecEnv, "move", lambda *_: "numbers move")
    note(MujocoVecEnv, "reset", lambda *_: "environments begin")
    note(csv_tables.CsvTable, "__init__", lambda _, path, **__: path.name)
    note(csv_tables.CsvTable, "append", lambda table, _: f"row of {table._path.name}")
    note(Checkpoints, "save", lambda *_: "checkpoint")
    module = types.ModuleType(MODULE)
    vars(module)["loop_part"] = lambda context: Watched(context, done)
    monkeypatch.setitem(sys.modules, MODULE, module)
    part = JobPart(name="watching", settings=Settings, loop=MODULE)
    for asker in (job_parts, loop_parts):
        monkeypatch.setattr(asker, "job_parts", lambda: {"watching": part})
    monkeypatch.setattr(train, "join", lambda *_: Mirror(done))
    return done


def test_parts_of_kernel_and_features_come_in_one_order_in_every_iteration(
    deeds: list[str], tmp_path: Path
) -> None:
    given = helpers.spec(
        task="forward",
        xml="robot/hopper.xml",
        learner="fast",
        normalize=True,
        on_divergence="end-episode",
        parts={"watching": Settings(watched=True)},
        policy_kwargs={"net_arch": [8]},
        total_timesteps=256,
        checkpoint_every=1000,
    )
    paths = helpers.job(tmp_path, given)
    paths.robot.mkdir()
    shutil.copy(helpers.REPOSITORY / "mjcf/hopper.xml", paths.robot)
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.SUCCEEDED, log
    assert deeds == [*START, *iteration(1), *iteration(2), *END]
    header = paths.progress_csv.read_text().partition("\n")[0].split(",")
    assert header[2:4] == ["rollout/divergences", "watching/due"]
