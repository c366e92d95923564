"""Workers that are forked: the same as those that are exec'ed, whatever becomes of the process that
forks them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
from executor_helpers import (
    ASLEEP,
    ASLEEP_FAMILY,
    DEADLINE_S,
    READY,
    Order,
    await_files,
    await_gone,
    descriptors,
    forking,
    local,
    make_launch,
    pid_of,
    puppet_template,
    template_pid,
    until_exit,
    until_heard,
)

from orchestrator.core.processes.environment_variables import (
    CHANNEL_VARIABLE,
    START_VARIABLE,
    TOKEN_VARIABLE,
)
from orchestrator.executors import processes as local_module
from orchestrator.executors import worker_template
from orchestrator.executors.executor import AttemptId
from orchestrator.executors.processes import Processes
from orchestrator.machine import cgroup

LOOK: list[Order] = [("print", 1000), ("look", None), ("exit", 7)]
AT_FORK = "fork = sibling_fork.fork_sibling; sibling_fork.fork_sibling = lambda: {}"
"""In place of a fork in the template process."""
AFTER_SETSID = "setsid = os.setsid; os.setsid = lambda: setsid() or {}"
"""In a worker that has been forked and is not ready yet."""
SIGKILL_ITSELF = "os.kill(os.getpid(), 9)"


def log(root: Path, job_id: str) -> str:
    return (root / job_id / "attempts/0/worker.log").read_text()


def is_forked(root: Path, job_id: str) -> bool:
    return "started by exec" not in log(root, job_id)


def ended(executor: Processes, handle: AttemptId) -> int | None:
    return until_exit(executor, handle)[handle].returncode


def children() -> set[int]:
    """Our own, zombies among them."""
    tasks = os.listdir("/proc/self/task")
    return {
        int(pid)
        for task in tasks
        for pid in Path(f"/proc/self/task/{task}/children").read_text().split()
    }


def test_a_forked_worker_has_all_that_one_that_is_execed_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, seen = max(os.sched_getaffinity(0)), {}
    nice = min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    with forking() as executor:
        assert (
            ended(
                executor,
                executor.submit(make_launch(tmp_path, "starts the template", LOOK, fork=True)),
            )
            == 7
        )
        monkeypatch.setenv("SET_LATER", "\udcff")
        monkeypatch.chdir(tmp_path)
        for job_id in ("forked", "exec"):
            launch = make_launch(
                tmp_path, job_id, LOOK, cpus=(cpu,), nice=nice, fork=job_id == "forked"
            )
            handle = executor.submit(launch)
            pid = pid_of(executor, handle)
            assert ended(executor, handle) == 7
            seen[job_id] = json.loads((tmp_path / job_id / "seen.json").read_text())
            assert int(seen[job_id]["pid"]) == int(seen[job_id]["sid"]) == pid
            assert seen[job_id][TOKEN_VARIABLE].endswith(f"/{job_id}/0")
            assert seen[job_id][CHANNEL_VARIABLE] in seen[job_id]["fds"].split()
            assert len(seen[job_id]["fds"].split()) == 5
            assert log(tmp_path, job_id) == "x" * 999 + "\n"
    differ = {"pid", "sid", "argv", "fds", TOKEN_VARIABLE, CHANNEL_VARIABLE, START_VARIABLE}
    forked, by_exec = (
        {name: value for name, value in one.items() if name not in differ} for one in seen.values()
    )
    assert forked == by_exec
    assert seen["forked"]["argv"].replace("/forked 0", "/exec 0") == seen["exec"]["argv"]
    assert (forked["cpus"], forked["nice"], forked["SET_LATER"]) == (str(cpu), str(nice), "\udcff")


def test_a_forked_worker_is_known_by_its_own_token_and_is_a_child_of_the_supervisor(
    tmp_path: Path,
) -> None:
    with forking() as executor:
        handle = executor.submit(
            make_launch(tmp_path, "a", [("fork", "child"), *ASLEEP], fork=True)
        )
        until_heard(executor, handle)
        worker = pid_of(executor, handle)
        assert worker in children()
        for pid in (worker, *map(int, await_files(tmp_path / "a/child"))):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert f"{TOKEN_VARIABLE}={executor._token}/a/0".encode() in variables
        assert is_forked(tmp_path, "a")


@pytest.mark.parametrize(
    "how",
    [
        "is killed",
        *(pytest.param(how, marks=pytest.mark.nightly) for how in ("exits", "is closed")),
    ],
)
def test_descendants_of_a_forked_worker_end_with_it(tmp_path: Path, how: str) -> None:
    before = children()
    with forking() as executor:
        orders = [*ASLEEP_FAMILY[:3], ("exit", 3) if how == "exits" else ASLEEP_FAMILY[-1]]
        handle = executor.submit(make_launch(tmp_path, "a", orders, fork=True))
        pids = [int(text) for text in await_files(tmp_path / "a/child", tmp_path / "a/daemon")]
        pids.append(pid_of(executor, handle))
        if how == "is killed":
            os.kill(pids[-1], signal.SIGKILL)
        if how != "is closed":
            assert ended(executor, handle) == (3 if how == "exits" else -signal.SIGKILL)
            await_gone(pids)
    await_gone(pids)
    assert children() == before


def test_workers_outlive_their_template_and_another_one_forks_the_next(tmp_path: Path) -> None:
    before, open_before = children(), descriptors()
    with forking() as executor:
        orders: list[Order] = [("say", READY), ("await", "go"), ("exit", 5)]
        handle = executor.submit(make_launch(tmp_path, "a", orders, fork=True))
        until_heard(executor, handle)
        os.kill(template_pid(executor), signal.SIGKILL)
        for job_id in "bc":
            assert (
                ended(executor, executor.submit(make_launch(tmp_path, job_id, LOOK, fork=True)))
                == 7
            )
        (tmp_path / "a/go").touch()
        assert ended(executor, handle) == 5
        assert [is_forked(tmp_path, job_id) for job_id in "abc"] == [True, False, True]
    assert (children(), descriptors()) == (before, open_before)


@pytest.mark.parametrize(
    ("at_fork", "forked"),
    [
        pytest.param(SIGKILL_ITSELF, False, id="before it forks", marks=pytest.mark.nightly),
        pytest.param(f"fork() and {SIGKILL_ITSELF}", True, id="when it has forked"),
        pytest.param(f"fork() or {SIGKILL_ITSELF}", False, id="the worker, before anything else"),
    ],
)
def test_a_kill_at_the_instant_of_the_fork_leaves_one_worker_and_no_other(
    tmp_path: Path, at_fork: str, forked: bool
) -> None:
    before = children()
    with forking(AT_FORK.format(at_fork)) as executor:
        assert ended(executor, executor.submit(make_launch(tmp_path, "a", LOOK, fork=True))) == 7
        assert is_forked(tmp_path, "a") == forked
    assert children() == before


def test_a_worker_that_is_killed_before_it_is_ready_is_reaped_and_its_template_forks_on(
    tmp_path: Path,
) -> None:
    before = children()
    with forking(AFTER_SETSID.format(SIGKILL_ITSELF)) as executor:
        for job_id in "abcd":
            assert (
                ended(executor, executor.submit(make_launch(tmp_path, job_id, LOOK, fork=True)))
                == 7
            )
            assert executor._reaper is not None
            assert children() - before == {executor._reaper._popen.pid, template_pid(executor)}
    assert children() == before


def test_an_out_of_memory_kill_of_the_template_explains_no_end_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = {"count": 0}
    monkeypatch.setattr(cgroup, "oom_kills", lambda: kills["count"])
    monkeypatch.setattr(local_module, "SAMPLE_EVERY_S", 1e9)
    with forking() as executor:
        until_heard(executor, executor.submit(make_launch(tmp_path, "a", ASLEEP, fork=True)))
        template = template_pid(executor)
        os.kill(template, signal.SIGKILL)
        os.waitid(os.P_PID, template, os.WEXITED | os.WNOWAIT)
        kills["count"] = 1
        assert not executor._take_oom_kill()
        kills["count"] = 2
        assert executor._take_oom_kill()


def test_launches_wait_for_imports_of_the_template_while_the_executor_answers(
    tmp_path: Path,
) -> None:
    """An exec'ed worker would make the same imports beside the template, and be ready no sooner."""
    go = tmp_path / "go"
    with local(
        template_command=puppet_template(f"while not os.path.exists({str(go)!r}): pass")
    ) as executor:
        assert not executor.prepare_to_fork()
        first = template_pid(executor)
        assert executor.poll(0.0) == []
        assert not executor.prepare_to_fork()
        go.touch()
        until = time.monotonic() + DEADLINE_S
        while not executor.prepare_to_fork():
            assert time.monotonic() < until
            executor.poll(DEADLINE_S)
        assert template_pid(executor) == first
        assert ended(executor, executor.submit(make_launch(tmp_path, "a", LOOK, fork=True))) == 7
    assert is_forked(tmp_path, "a")


def test_launches_do_not_wait_for_a_template_that_cannot_import_or_takes_too_long(
    tmp_path: Path,
) -> None:
    with local(template_command=puppet_template("import no_such_module")) as executor:
        until = time.monotonic() + DEADLINE_S
        while not executor.prepare_to_fork():
            assert time.monotonic() < until
            executor.poll(0.05)
        assert ended(executor, executor.submit(make_launch(tmp_path, "a", LOOK, fork=True))) == 7
    assert "no_such_module" in log(tmp_path, "a")
    with (
        mock.patch.object(worker_template, "IMPORT_PATIENCE_S", 0.0),
        local(template_command=puppet_template("while True: pass")) as executor,
    ):
        assert executor.prepare_to_fork()


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (
            "import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()",
            "2 threads",
        ),
        pytest.param("import no_such_module", "named 'no_such_module'", marks=pytest.mark.nightly),
    ],
)
def test_what_cannot_be_forked_safely_is_execed_and_the_log_says_why(
    tmp_path: Path, prepare: str, reason: str
) -> None:
    with forking(prepare) as executor:
        for job_id in ("a", "b"):
            assert (
                ended(executor, executor.submit(make_launch(tmp_path, job_id, LOOK, fork=True)))
                == 7
            )
            assert reason in log(tmp_path, job_id)
        assert executor._template._popen is None, "it is not tried again"
