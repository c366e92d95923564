"""The players of a video of all robots end with it."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import end_group
from orchestrator.experiment.policy_process import PlayRequest, PolicyProcess
from orchestrator.features.pictures import mosaic


class SleepingPlayer(PolicyProcess):
    """A player that never ends by itself."""

    def __init__(self, *_: object, **__: object) -> None:
        self._popen = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.pid, self.started = self._popen.pid, time.monotonic()
        PLAYERS.append(self)

    def end(self) -> tuple[int, str]:
        return end_group(self._popen), "killed"


PLAYERS: list[SleepingPlayer] = []


def test_an_interrupt_ends_the_players_and_robots_without_a_policy_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> NoReturn:
        raise KeyboardInterrupt

    paths, reports = RunPaths(tmp_path), list[str]()
    paths.job("a-s0").root.mkdir(parents=True)
    paths.job("a-s0").model.touch()
    rows = [
        {"name": id_, "job_id": f"{id_}-s0", "seed": 0, "eval_mean": None, "ep_rew_mean": None}
        for id_ in "ab"
    ]
    monkeypatch.setattr(
        mosaic.run_snapshot, "status", lambda run_dir: SimpleNamespace(rows=rows, paths=paths)
    )
    monkeypatch.setattr(mosaic, "PolicyProcess", SleepingPlayer)
    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mosaic.make(tmp_path, PlayRequest(), as_gif=False, report=reports.append)
    assert [player._popen.returncode for player in PLAYERS] == [-signal.SIGKILL]
    assert reports == [
        "left out, as they have no model.zip, which is written when a job succeeds: b"
    ]
