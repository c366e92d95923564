"""``resources.nice``: the niceness of a worker, and of its session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from executor_helpers import local, make_launch, make_rank_group, until_exit, until_it_waits

from orchestrator.core.processes.environment_variables import NICE_VARIABLE
from orchestrator.worker.runtime import niceness

LOOK = [("look", None), ("exit", 0)]


def seen(root: Path, nice: int, session: int) -> list[str]:
    """The niceness of both ranks of an attempt, whose sessions have the niceness ``session``."""
    launch = make_rank_group(root, f"nice-{nice}", LOOK, LOOK, nice=nice)
    with local() as executor:
        handle = executor.submit(launch)
        assert until_exit(executor, handle)[handle].returncode == 0
    found = [
        json.loads((launch.job_dir / name).read_text()) for name in ("seen.json", "seen-1.json")
    ]
    assert {of_rank.get(NICE_VARIABLE) for of_rank in found} == {str(session) if session else None}
    return [of_rank["nice"] for of_rank in found]


def test_every_rank_has_the_niceness_of_its_job(tmp_path: Path) -> None:
    assert seen(tmp_path, 19, 19) == ["19", "19"]


def test_a_worker_does_nothing_before_its_cpus_and_niceness_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_affinity = os.sched_setaffinity

    def set_late(pid: int, cpus: set[int]) -> None:
        until_it_waits(pid)
        set_affinity(pid, cpus)

    monkeypatch.setattr(os, "sched_setaffinity", set_late)
    cpu = max(os.sched_getaffinity(0))
    launch = make_launch(tmp_path, "late", LOOK, cpus=(cpu,), nice=7)
    with local() as executor:
        handle = executor.submit(launch)
        assert until_exit(executor, handle)[handle].returncode == 0
    found = json.loads((launch.job_dir / "seen.json").read_text())
    assert (found["cpus"], found["nice"]) == (str(cpu), "7")


def test_it_is_not_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda *_: 10)  # as if the launcher had this niceness
    assert seen(tmp_path, 5, 10) == [str(os.nice(0))] * 2


@pytest.mark.skipif(not niceness.AUTOGROUP.exists(), reason="this kernel has no autogroups")
@pytest.mark.parametrize(("given", "expected"), [({NICE_VARIABLE: "7"}, 7), ({}, 0)])
def test_its_session_has_it_too(given: dict[str, str], expected: int) -> None:
    code = (
        "import os, threading; from orchestrator.worker.runtime import niceness; niceness.apply_to_session();"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'niceness'];"
        f"print(niceness.AUTOGROUP.read_text().split()[-1], os.environ.get('{NICE_VARIABLE}'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        start_new_session=True,
        env={**os.environ, **given},
    )
    assert done.stdout.split() == [str(expected), "None"]
