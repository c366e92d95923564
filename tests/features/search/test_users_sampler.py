"""A searcher with a sampler of the user's own: whatever it does, the searcher ends, and its last
line says why."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import wait_until
from searcher_helpers import beginning
from trial_helpers import Told, search_run

from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import end_group
from orchestrator.experiment.processes.side_process import SideProcess
from orchestrator.features.search import (
    changed_search,
    sampler_check,
    search_events,
    search_process,
)
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.search_process import (
    CANNOT_GO_ON,
    ENDED,
    Finished,
    SearchBesideRun,
)
from orchestrator.ledger import Ledger

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


@pytest.mark.parametrize(
    ("sampler", "code", "message"),
    [
        (
            "gone:Own",
            "",
            "cannot be imported: ModuleNotFoundError: No module named 'gone'; its module",
        ),
        *(
            pytest.param(*rest, marks=pytest.mark.nightly)
            for rest in (
                ("own:Gone", "", "AttributeError: module 'own' has no attribute 'Gone'"),
                (
                    "own:Own",
                    "raise ValueError('two\\nlines')",
                    "cannot be made: ValueError: two lines",
                ),
                (
                    "own:Own",
                    "os.kill(os.getpid(), 11)",
                    "cannot be made: its process ended with signal 11",
                ),
                (
                    "own:Own",
                    "watchdog.LIMIT_S = 600; time.sleep(600)",
                    'the sampler "own:Own" was not made within 2 s',
                ),
            )
        ),
    ],
)
def test_a_sampler_that_cannot_be_made_is_a_problem_before_anything_is_launched(
    sampler: str, code: str, message: str, tmp_path: Path
) -> None:
    paths = own_search(tmp_path, "constructor", code)
    declared = SearchPaths(paths.root).declaration
    declared.write_text(declared.read_text().replace("own:Own", sampler))
    experiment = changed_search.declared_experiment(paths)
    time_limit_s = 2.0 if "within 2 s" in message else commands.PATIENCE_S
    problem = sampler_check.examine(experiment, time_limit_s=time_limit_s)
    assert problem is not None
    assert problem.where == "search.sampler"
    assert message in problem.message


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_sampler_whose_process_is_killed_is_made_once_more(kills: int, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'made')!r}, 'a').write('.'); "
    code += f"os.path.getsize({str(tmp_path / 'made')!r}) > {kills} or os.kill(os.getpid(), 9)"
    experiment = changed_search.declared_experiment(own_search(tmp_path, "constructor", code))
    problem = sampler_check.examine(experiment, time_limit_s=commands.PATIENCE_S)
    assert (tmp_path / "made").read_text() == ".."
    if kills == 1:
        assert problem is None
    else:
        assert (
            "cannot be made: its process ended with signal 9 (Killed), which the kernel sends"
            in str(problem)
        )


@pytest.mark.nightly
def test_check_and_run_refuse_a_sampler_that_cannot_be_made(tmp_path: Path) -> None:
    job = {"name": "hopper", "xml": commands.HOPPER, "task": "forward"}
    jobs = commands.write_experiment(tmp_path, job)
    space = 'space."ppo.learning_rate" = { low = 1e-4, high = 1e-2 }'
    table = f'[search]\nsampler = "own:Own"\ntrials = 2\nobjective = "ep_rew_mean"\n{space}\n'
    jobs.write_text(jobs.read_text() + table)
    (tmp_path / "own.py").write_text(OWN.format(deed="constructor", code="raise ValueError(1)"))
    for given, code in (
        (["check", jobs], 1),
        (["run", jobs, "--dry-run"], 2),
        (["run", jobs, "--run-dir", "run"], 2),
    ):
        done = commands.invoke(*given, cwd=tmp_path)
        assert done.returncode == code, done.stdout
        shown = " ".join((done.stdout + done.stderr).split())
        assert 'search.sampler: the sampler "own:Own" cannot be made: ValueError: 1' in shown
    assert not (tmp_path / "run/jobs").exists()
    (tmp_path / "own.py").write_text(OWN.format(deed="", code=""))
    commands.succeed("check", jobs, cwd=tmp_path)
    commands.succeed("run", jobs, "--dry-run", cwd=tmp_path)


@contextlib.contextmanager
def searcher(paths: RunPaths) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "orchestrator.features.search.searcher.searcher",
        str(paths.root),
        "1:1.0:none",
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


@pytest.mark.parametrize(
    ("deed", "code", "message"),
    [
        (
            "ask",
            "time.sleep(600)",
            'the sampler "own:Own" has not returned within 1 s from its method ask',
        ),
        *(
            pytest.param(*rest, marks=pytest.mark.nightly)
            for rest in (
                (
                    "ask",
                    "print(1, end=''); raise ValueError('two\\nlines')",
                    "its method ask: ValueError: two lines",
                ),
                ("constructor", "exit(0)", 'the sampler "own:Own" cannot be made: SystemExit: 0'),
                (
                    "constructor",
                    "time.sleep(600)",
                    "has not returned within 1 s from its constructor",
                ),
                (
                    "tell",
                    "threading.Event().wait()",
                    "has not returned within 1 s from its method tell",
                ),
                ("tell", "input()", "has failed in its method tell: EOFError"),
            )
        ),
    ],
)
def test_a_sampler_that_hangs_or_fails_is_named_in_the_last_line(
    deed: str, code: str, message: str, tmp_path: Path
) -> None:
    paths = own_search(tmp_path, deed, code)
    with searcher(paths) as process:
        assert process.wait(commands.PATIENCE_S) == CANNOT_GO_ON
    last = SearchPaths(paths.root).log.read_text().splitlines()[-1]
    assert last.startswith("search: ")
    assert message in last


def test_a_searcher_without_progress_ends_also_where_its_sampler_is_not_the_cause(
    tmp_path: Path,
) -> None:
    paths = own_search(
        tmp_path,
        "constructor",
        "sys.modules['__main__'].Searcher._turn = lambda _: time.sleep(600)",
    )
    with searcher(paths) as process:
        assert process.wait(commands.PATIENCE_S) == 1, "it is started again"
    log = SearchPaths(paths.root).log.read_text()
    assert "in _turn" not in log.splitlines()[-1]
    assert "it has made no progress for 1 s" in log.splitlines()[-1]
    assert "in <lambda>" in log, "where it hung"


@pytest.mark.nightly
def test_compiled_code_that_lets_no_thread_run_is_ended_by_the_kernel(tmp_path: Path) -> None:
    code = "watchdog.LIMIT_S = 2; time.sleep(1); re.match('(a+)+$', 60 * 'a' + 'b')"
    with searcher(own_search(tmp_path, "ask", code)) as process:
        assert process.wait(commands.PATIENCE_S) == -signal.SIGPROF


@pytest.mark.nightly
def test_children_and_threads_of_a_sampler_do_not_search_nor_keep_the_searcher_from_ending(
    tmp_path: Path,
) -> None:
    code = (
        "print('asked', end=''); os.fork(); threading.Thread(target=time.sleep, args=[600]).start()"
    )
    paths = own_search(tmp_path, "ask", code)
    with searcher(paths) as process:
        assert process.wait(commands.PATIENCE_S) == ENDED
    ledger = Ledger.open(paths.ledger)
    kinds = [event.kind for event in search_events.events(ledger)]
    ledger.close()
    assert [kinds.count(kind) for kind in ("began", "told", "ended")] == [2, 2, 1]


@pytest.mark.nightly
def test_what_a_sampler_has_started_ends_with_the_supervisor(tmp_path: Path) -> None:
    code = "import subprocess; open('pid', 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); time.sleep(600)"
    paths = own_search(
        tmp_path, "ask", f"watchdog.LIMIT_S = 600; {code.replace('pid', str(tmp_path / 'pid'), 1)}"
    )
    with searcher(paths) as process:
        wait_until(
            lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "a child"
        )
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(commands.PATIENCE_S) == -signal.SIGKILL
    child = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    wait_until(
        lambda: not child.exists() or child.read_text().split()[2] == "Z", "the end of the child"
    )


def side_process(process: SearchBesideRun) -> SideProcess:
    assert process._process is not None
    return process._process


def wait_for(process: SearchBesideRun, condition: Callable[[], object], what: str) -> None:
    """Look after it until that."""

    def holds() -> object:
        process.before_turn()
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


@pytest.mark.nightly
def test_a_stopped_searcher_is_killed_and_started_again_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_process, "STOPPED_S", 0.5)
    paths, pid = waiting_search(tmp_path), tmp_path / "pid"

    def asking() -> str:
        """The process whose sampler is being asked."""
        text = pid.read_text() if pid.exists() else ""
        return text.removesuffix(".") if text.endswith(".") else ""

    with beginning(paths, jobs_at_once=2) as process:
        wait_for(process, asking, "a call of the sampler")
        stopped = asking()
        os.kill(int(stopped), signal.SIGSTOP)
        wait_for(process, lambda: asking() not in ("", stopped), "another searcher")
        (tmp_path / "go").touch()
        wait_for(process, lambda: not process.may_add_jobs(), "the end of the search")
        assert process._ended == Finished()
        assert "SIGSTOP" in process.reporter.messages()  # type: ignore[attr-defined]
    ledger = Ledger.open(paths.ledger)
    kinds = [event.kind for event in search_events.events(ledger)]
    ledger.close()
    assert [kinds.count(kind) for kind in ("told", "ended")] == [2, 1]


@pytest.mark.nightly
def test_a_searcher_in_which_nothing_can_run_is_killed_and_after_some_starts_the_search_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_process, "SILENT_S", 2.0)
    monkeypatch.setattr(search_process, "MOST_STARTS", 2)
    paths = own_search(tmp_path, "tell", "import ctypes; ctypes.PyDLL(None).sleep(600)")
    with beginning(paths, jobs_at_once=2) as process:
        wait_for(process, lambda: not process.may_add_jobs(), "the end of the search")
        problem = process.problem()
        assert problem is not None
        assert "no sign of life" in problem.what
        assert side_process(process).starts == 2


@pytest.mark.nightly
def test_a_long_call_of_a_sampler_shows_signs_of_life(tmp_path: Path) -> None:
    with beginning(waiting_search(tmp_path), jobs_at_once=2) as process:
        wait_for(process, (tmp_path / "pid").exists, "a call of the sampler")
        silent_s = [side_process(process).liveness.silent_s]

        def beats() -> int:
            silent_s.append(side_process(process).liveness.silent_s)
            return sum(now < before for before, now in itertools.pairwise(silent_s))

        wait_for(process, lambda: beats() >= 3, "signs of life")
        (tmp_path / "go").touch()
        wait_for(process, lambda: not process.may_add_jobs(), "the end of the search")
        assert process._ended == Finished()
        assert side_process(process).starts == 1
