"""A searcher with a sampler of the user's own: whatever it does, the searcher ends, and its last
line says why."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import wait_until
from trial_helpers import Told, search_run

from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import end_group
from orchestrator.features.search import changed_search, sampler_check, search_events
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.server.companions import CANNOT_GO_ON, Companions, RunFacts
from orchestrator.server.ledger import ServerLedger

OWN = """
import atexit, os, re, sys, threading, time
from orchestrator.features.search.searcher import watchdog

watchdog.LIMIT_S = 0.5
DEEDS = {{"constructor": "", "ask": "", "tell": "", {deed!r}: {code!r}}}
atexit.register(print, "bye")

class Own:
    def __init__(self, space, **_):
        self.space = space
        exec(DEEDS["constructor"])

    def ask(self, number):
        exec(DEEDS["ask"])
        return self.space.decode([0.5] * len(self.space.dimensions))

    def tell(self, number, point, outcome):
        exec(DEEDS["tell"])
"""


def own_search(folder: Path, deed: str, code: str) -> RunPaths:
    (folder / "own.py").write_text(OWN.format(deed=deed, code=code))
    trials = [Told(values=[1.0]), Told(values=[2.0])]
    return search_run(
        folder / "run", trials, is_over=False, sampler="own:Own", scheduler={"kind": "none"}
    )


def test_a_sampler_that_cannot_be_made_is_a_problem_before_anything_is_launched(
    tmp_path: Path,
) -> None:
    paths = own_search(tmp_path, "constructor", "os.kill(os.getpid(), 11)")
    experiment = changed_search.declared_experiment(paths)
    problem = sampler_check.examine(experiment, time_limit_s=commands.PATIENCE_S)
    assert problem is not None
    assert problem.where == "search.sampler"


@contextlib.contextmanager
def searcher(paths: RunPaths) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "orchestrator.features.search.searcher.searcher",
        str(paths.root),
        "2",
    ]
    env = commands.environment()
    with (
        SearchPaths(paths.root).log.open("ab") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            end_group(process)


@pytest.mark.nightly
def test_a_sampler_that_hangs_stops_the_search_and_is_named_in_the_last_line(
    tmp_path: Path,
) -> None:
    paths = own_search(tmp_path, "ask", "time.sleep(600)")
    with searcher(paths) as process:
        assert process.wait(commands.PATIENCE_S) == CANNOT_GO_ON
    assert "own:Own" in SearchPaths(paths.root).log.read_text().splitlines()[-1]


def wait_for(found: Companions, condition: Callable[[], object], what: str) -> None:
    """Look after them until that."""

    def holds() -> object:
        found.tick(has_work=False, is_idle=False)
        return condition()

    wait_until(holds, what)


def waiting_search(folder: Path) -> RunPaths:
    """Its sampler computes in every call of `ask` until there is a file ``go``; its pid is in the
    file ``pid``."""
    pid, go = str(folder / "pid"), str(folder / "go")
    code = f"""
watchdog.LIMIT_S = 600
with open({pid!r}, "w") as file:
    file.write(f"{{os.getpid()}}.")
while not os.path.exists({go!r}):
    pass
"""
    return own_search(folder, "ask", code)


def test_a_killed_searcher_is_started_again_and_goes_on(tmp_path: Path) -> None:
    paths, pid = waiting_search(tmp_path), tmp_path / "pid"

    def asking() -> str:
        """The process whose sampler is being asked."""
        text = pid.read_text() if pid.exists() else ""
        return text.removesuffix(".") if text.endswith(".") else ""

    warnings: list[str] = []
    ledger = ServerLedger.open(paths.ledger)
    found = Companions(
        paths=paths, report=lambda _, message: warnings.append(message), jobs_at_once=lambda: 2
    )
    facts = RunFacts(
        paths=paths,
        ledger=ledger,
        report=lambda *_: None,
        name="found",
        base=tmp_path,
        tables={},
        experiment=None,
        is_declared=False,
        robots={},
    )
    found.begin(facts)
    ledger.close()
    with contextlib.closing(found):
        wait_for(found, asking, "a call of the sampler")
        killed = asking()
        os.kill(int(killed), signal.SIGKILL)
        wait_for(
            found, lambda: not found.are_adding or asking() not in ("", killed), "another searcher"
        )
        assert found.are_adding, "it has not stopped"
        (tmp_path / "go").touch()
        wait_for(found, lambda: not found.are_adding, "the end of the search")
        assert found.problem == ""
        assert any("signal 9" in warning for warning in warnings)
    kinds = [event.kind for event in search_events.events(paths)]
    assert [kinds.count(kind) for kind in ("told", "ended")] == [2, 1]
