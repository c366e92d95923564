"""Workers as processes of this machine: how they are started, and that nothing of them is ever
left."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_helpers import wait_until
from executor_helpers import (
    ASLEEP,
    IGNORES_STOP,
    LIFELINE,
    PUPPET,
    READY,
    Order,
    await_files,
    await_gone,
    descriptors,
    events_until,
    local,
    make_launch,
    make_rank_group,
    pid_of,
    until_exit,
    until_heard,
)

from orchestrator.core.errors import is_disk_full
from orchestrator.core.files.log_limit import GAP_BYTES, HEAD_BYTES, dropped_bytes
from orchestrator.core.processes.environment_variables import (
    CHANNEL_VARIABLE,
    THREAD_VARIABLES,
    TOKEN_VARIABLE,
)
from orchestrator.core.processes.procfs import process_stat
from orchestrator.executors import orphan_reaper
from orchestrator.executors import processes as local_module
from orchestrator.executors.executor import Exited, Progressed, Sampled
from orchestrator.machine import cgroup, process_tree
from orchestrator.machine.topology import MIB

REPOSITORY = Path(__file__).parents[3]


def seen(
    tmp_path: Path,
    orders: Sequence[Order] = (),
    environment: dict[str, str] | None = None,
    **changes: Any,
) -> Any:
    """What a worker found when it looked at itself."""
    with local(environment=environment or {}) as executor:
        handle = executor.submit(make_launch(tmp_path, "a", [*orders, ("look", None)], **changes))
        pid = pid_of(executor, handle)
        assert until_exit(executor, handle)[handle].returncode == 0
    found = json.loads((tmp_path / "a/seen.json").read_text())
    assert int(found["pid"]) == pid
    return found


# -- how a worker is started


def test_no_log_is_written_through_a_link(tmp_path: Path) -> None:
    launch = make_launch(tmp_path, "a", [("print", 1000)])
    (tmp_path / "precious").write_text("content")
    (tmp_path / "a/attempts/0/worker.log").symlink_to(tmp_path / "precious")
    with local() as executor, pytest.raises(OSError, match="symbolic links"):
        executor.submit(launch)
    assert (tmp_path / "precious").read_text() == "content"


def test_a_worker_leads_a_session_of_its_own_and_reads_nothing(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert found["sid"] == found["pid"] != str(os.getsid(0))
    assert found["stdin"] == "/dev/null"


def test_a_worker_is_given_job_directory_and_attempt_number(tmp_path: Path) -> None:
    assert seen(tmp_path, number=3)["argv"] == f"{tmp_path / 'a'} 3"


def test_a_worker_runs_on_its_own_cpus_only(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    assert seen(tmp_path, cpus=(cpu,))["cpus"] == str(cpu)


def test_a_worker_has_its_thread_budget_and_its_gpus_in_the_environment(tmp_path: Path) -> None:
    found = seen(tmp_path, threads=3, gpus=("GPU-a", "GPU-b"), environment={"MUJOCO_GL": "egl"})
    assert {found[name] for name in THREAD_VARIABLES} == {"3"}
    assert found["OMP_WAIT_POLICY"] == "PASSIVE"
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert found["MUJOCO_GL"] == "egl"
    assert found[TOKEN_VARIABLE].endswith("/a/0")


def test_a_worker_inherits_no_descriptor_but_its_channel(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        found = seen(tmp_path)
    # One more for the listing itself.
    assert len(found["fds"].split()) == 5
    assert found[CHANNEL_VARIABLE] in found["fds"].split()


def test_what_a_worker_prints_is_in_its_log_after_what_an_earlier_one_of_that_number_printed(
    tmp_path: Path,
) -> None:
    log = make_launch(tmp_path, "a").job_dir / "attempts/0/worker.log"
    log.write_text("before\n")
    with local(
        worker_command=(
            sys.executable,
            "-S",
            "-c",
            "import os; os.write(1, b'out\\n'); os.write(2, b'err\\n')",
        )
    ) as executor:
        handle = executor.submit(make_launch(tmp_path, "a"))
        until_exit(executor, handle)
    assert log.read_text() == "before\nout\nerr\n"


def test_a_worker_that_prints_more_than_its_limit_leaves_the_head_and_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_module, "SAMPLE_EVERY_S", 0.05)
    orders: list[Order] = [("print", 40_000_000), ("note", "printed"), ("sleep", None)]
    log = make_launch(tmp_path, "a").job_dir / "attempts/0/worker.log"
    with local() as executor:
        handle = executor.submit(make_launch(tmp_path, "a", orders, log_mib=8))
        while (
            not (tmp_path / "a/printed").exists() or log.stat().st_size > 8 * MIB
        ):  # while it still runs
            executor.poll(0.01)
        executor.cancel(handle, kill=True)
        until_exit(executor, handle)
    content = log.read_bytes()
    with log.open("rb") as file:
        dropped = dropped_bytes(file.fileno())
    assert content.startswith(b"x" * 999 + b"\n")
    # What the worker writes between the last look and the cut may be lost, and it writes as fast
    # as it can: on a busy machine some MB, of which the last ones may be counted.
    assert 30_000_000 < len(content) - GAP_BYTES + dropped <= 40_000_000
    lines = content[HEAD_BYTES + GAP_BYTES :].split(b"\n")
    assert {line for line in lines[:-1] if len(line) == 999} == {b"x" * 999}


def test_a_worker_that_floods_its_channel_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    with local() as executor:
        flood = executor.submit(make_launch(tmp_path, "flood", [("flood", 10**9)]))
        other = executor.submit(make_launch(tmp_path, "other", [("say", READY), ("exit", 0)]))
        assert until_exit(executor, other)[other].returncode == 0
        executor.cancel(flood, kill=True)
        until_exit(executor, flood)


def test_memory_is_sampled_and_forked_children_are_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_module, "SAMPLE_EVERY_S", 0.0)
    orders: list[Order] = [
        ("allocate", 100),
        *[("fork", f"child{number}") for number in range(4)],
        *ASLEEP,
    ]
    with local() as executor:
        handle = executor.submit(make_launch(tmp_path, "a", orders))
        until_heard(executor, handle)
        samples = events_until(
            executor, lambda events: any(isinstance(event, Sampled) for event in events)
        )
    sizes = [event.rss_mib for event in samples if isinstance(event, Sampled)]
    assert 100 < sizes[-1] < 200
    assert process_tree.resident_mib(2**22 + 1) == 0.0


# -- what could not be started


def test_a_command_that_does_not_exist_is_an_os_error_and_leaks_nothing(tmp_path: Path) -> None:
    with local(worker_command=("/does/not/exist",)) as executor:
        counts = []
        for numbers in (range(1), range(1, 20)):
            for number in numbers:
                with pytest.raises(FileNotFoundError):
                    executor.submit(make_launch(tmp_path, f"j{number}"))
            counts.append(descriptors())
        assert len(set(counts)) == 1
        assert not executor.poll(0.0)


def test_cpus_that_do_not_exist_are_an_os_error_and_leave_no_process(tmp_path: Path) -> None:
    with local() as executor:
        with pytest.raises(OSError, match="Invalid argument"):
            executor.submit(make_launch(tmp_path, "a", IGNORES_STOP, cpus=(100_000,)))
        assert not children("puppet.py")


@pytest.mark.parametrize(
    "selector",
    [
        "_channels",
    ],
)
def test_a_worker_that_cannot_be_watched_is_an_os_error_and_leaves_no_process(
    selector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with local() as executor:
        assert until_exit(executor, executor.submit(make_launch(tmp_path, "a")))
        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(getattr(executor, selector), "register", refuse)
            with pytest.raises(OSError) as refused:
                executor.submit(make_rank_group(tmp_path, "b", IGNORES_STOP, IGNORES_STOP))
        assert not is_disk_full(refused.value)
        assert not children("puppet.py")
        assert descriptors() == before
        assert not executor.poll(0.0)
        assert until_exit(executor, executor.submit(make_launch(tmp_path, "c")))


def children(part: str) -> list[int]:
    """Our own children with ``part`` in their command line, zombies among them."""
    pids = []
    for task in os.listdir("/proc/self/task"):
        for pid in map(int, Path(f"/proc/self/task/{task}/children").read_text().split()):
            stat = process_stat(pid)
            if stat is not None and (
                stat.state == "Z" or part in Path(f"/proc/{pid}/cmdline").read_text()
            ):
                pids.append(pid)
    return pids


def test_twenty_launches_leak_no_descriptor_and_leave_no_zombie(tmp_path: Path) -> None:
    before = descriptors()
    with local(worker_command=("/bin/true",)) as executor:
        for number in range(20):
            handle = executor.submit(make_launch(tmp_path, f"j{number}"))
            assert until_exit(executor, handle)[handle].returncode == 0
        assert not children("true")
    assert descriptors() == before
    assert not children("orphan_reaper")


# -- ends


def test_a_worker_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with local() as executor:
        handle = executor.submit(make_launch(tmp_path, "a", IGNORES_STOP))
        until_heard(executor, handle)
        executor.cancel(handle, kill=False)
        executor.cancel(handle, kill=True)
        assert until_exit(executor, handle)[handle].returncode == -signal.SIGKILL


def test_a_stopped_worker_is_killed(tmp_path: Path) -> None:
    with local() as executor:
        handle = executor.submit(make_launch(tmp_path, "a", ASLEEP))
        until_heard(executor, handle)
        pid = pid_of(executor, handle)
        os.kill(pid, signal.SIGSTOP)
        # Before it has stopped, it would end by the SIGTERM.
        wait_until(
            lambda: (stat := process_stat(pid)) is not None and stat.state == "T",
            "it stops",
        )
        executor.cancel(handle, kill=False)
        executor.cancel(handle, kill=True)
        assert until_exit(executor, handle)[handle].returncode == -signal.SIGKILL


def test_an_out_of_memory_kill_explains_one_exit_whether_a_sample_comes_before_it_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = {"count": 0}
    monkeypatch.setattr(cgroup, "oom_kills", lambda: kills["count"])
    with local() as executor:
        until_heard(executor, executor.submit(make_launch(tmp_path, "a", ASLEEP)))

        def sample() -> None:
            executor._next_sample = 0.0
            executor._sample()

        for before, after in ((sample, lambda: None), (lambda: None, sample)):
            kills["count"] += 1
            before()
            assert executor._take_oom_kill()
            after()
            assert not executor._take_oom_kill()
            sample()
            assert not executor._take_oom_kill()


def test_only_the_worker_itself_is_asked_to_leave_but_its_group_is_killed(tmp_path: Path) -> None:
    orders: list[Order] = [("when asked", 11), ("fork", "child"), *ASLEEP]
    with local() as executor:
        handle = executor.submit(make_launch(tmp_path, "a", orders))
        (child,) = map(int, await_files(tmp_path / "a/child"))
        until_heard(executor, handle)
        executor.cancel(handle, kill=False)
        assert until_exit(executor, handle)[handle].returncode == 11
        await_gone([child])


@pytest.mark.parametrize("how", ["exits", "is killed", "is closed"])
def test_descendants_in_the_group_and_in_sessions_of_their_own_end_with_the_worker(
    tmp_path: Path, how: str
) -> None:
    orders: list[Order] = [("fork", "child"), ("daemon", "daemon"), *ASLEEP]
    if how == "exits":
        orders[2:] = [("exit", 0)]
    with local() as executor:
        handle = executor.submit(make_launch(tmp_path, "a", orders))
        pids = [int(text) for text in await_files(tmp_path / "a/child", tmp_path / "a/daemon")]
        pids.append(pid_of(executor, handle))
        if how == "is killed":
            os.kill(pids[-1], signal.SIGKILL)
        if how != "is closed":
            until_exit(executor, handle)
            await_gone(pids)
    await_gone(pids)


def test_a_sweep_leaves_the_descendants_of_other_attempts_alone(tmp_path: Path) -> None:
    with local() as executor:
        one = executor.submit(make_launch(tmp_path, "one", [("daemon", "daemon"), *ASLEEP]))
        other = executor.submit(make_launch(tmp_path, "one0", [("daemon", "daemon"), *ASLEEP]))
        gone, stays = (
            int(text) for text in await_files(tmp_path / "one/daemon", tmp_path / "one0/daemon")
        )
        executor.cancel(one, kill=True)
        until_exit(executor, one)
        await_gone([gone])
        os.kill(pid_of(executor, other), 0)
        os.kill(stays, 0)
    await_gone([stays])


def test_the_last_words_before_the_end_are_not_lost(tmp_path: Path) -> None:
    lines: list[Order] = [("say", READY)] * 100
    with local() as executor:
        handle = executor.submit(make_launch(tmp_path, "a", [*lines, ("exit", 0)]))
        events = events_until(
            executor, lambda events: any(isinstance(event, Exited) for event in events)
        )
    assert sum(isinstance(event, Progressed) for event in events) == 100
    assert events[-1].attempt == handle


def test_without_pidfds_ends_are_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with local() as executor:
        first = executor.submit(make_launch(tmp_path, "a", [("say", READY), ("exit", 3)]))
        second = executor.submit(make_launch(tmp_path, "b", ASLEEP))
        assert until_exit(executor, first)[first].returncode == 3
        executor.cancel(second, kill=True)
        assert until_exit(executor, second)[second].returncode == -signal.SIGKILL


# -- the reaper by itself


def test_the_reaper_looks_for_the_variable_that_workers_have() -> None:
    assert orphan_reaper.VARIABLE.decode() == f"{TOKEN_VARIABLE}="


def test_the_reaper_tells_its_own_from_others() -> None:
    def sleeper(**environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], env=environment)

    name = TOKEN_VARIABLE
    family = [sleeper(**{name: "aaa/job/0"}), sleeper(A="x" * 100_000, **{name: "aaa/job/0/more"})]
    others = [
        sleeper(**{name: "aaa/job/01"}),
        sleeper(**{name: "aaa/jo"}),
        sleeper(**{"NOT_" + name: "aaa/job/0"}),
        sleeper(B=f"{name}=aaa/job/0"),
        sleeper(),
    ]
    try:
        for one in family:  # the kernel shows no environment for an instant of ``exec``
            wait_until(Path(f"/proc/{one.pid}/environ").read_bytes, "its environment")
        found = orphan_reaper.carriers({b"aaa/job/0", b"something else"})
        assert sorted(found) == sorted(one.pid for one in family)
        orphan_reaper.sweep({b"aaa/job/0"})
        assert [one.wait() for one in family] == [-signal.SIGKILL] * 2
        assert [one.poll() for one in others] == [None] * 5
    finally:
        for one in family + others:
            one.kill()
            one.wait()


def test_the_reaper_imports_little() -> None:
    """It starts with every supervisor, and stays beside it."""
    code = "import sys; sys.path[:0] = [sys.argv[1]]; import orphan_reaper; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(orphan_reaper.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"subprocess", "pathlib", "re", "json", "socket", "threading"} & set(
        done.stdout.split()
    )


def test_a_worker_ends_when_the_other_end_of_its_channel_does(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        worker = subprocess.Popen(
            [sys.executable, "-S", "-c", LIFELINE],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                CHANNEL_VARIABLE: str(theirs.fileno()),
            },
        )
    with worker:
        assert ours.recv(4096)
        ours.close()
        assert worker.wait() == -signal.SIGKILL


def test_a_puppet_stands_for_a_worker() -> None:
    assert Path(PUPPET[-1]).exists()
