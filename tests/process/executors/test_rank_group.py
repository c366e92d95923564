"""Ranks: processes of one attempt that start together, end together, and can be distinguished."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from executor_helpers import (
    ASLEEP,
    IGNORES_STOP,
    Order,
    await_files,
    await_gone,
    descriptors,
    events_until,
    family,
    local,
    make_launch,
    make_rank_group,
    pid_of,
    until_exit,
    until_heard,
)

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import AttemptPaths
from orchestrator.core.processes import child_process
from orchestrator.core.processes.environment_variables import (
    CHANNEL_VARIABLE,
    DISTRIBUTED_VARIABLES,
    TOKEN_VARIABLE,
)
from orchestrator.executors import processes as local_module
from orchestrator.executors import worker_process
from orchestrator.executors.executor import AttemptId, Exited, Sampled
from orchestrator.executors.launcher import Launch
from orchestrator.executors.rank_group import RankExit, RankGroup
from orchestrator.machine import cgroup

LOST = ExitCode.RANK_LOST


def of_family(root: Path, ranks: int) -> list[int]:
    names = [root / f"{name}-{rank}" for rank in range(ranks) for name in ("child", "daemon")]
    return [int(text) for text in await_files(*names)]


# -- how ranks are started


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What each of three ranks found when it looked at itself; the supervisor is itself one of
    several."""
    for name in DISTRIBUTED_VARIABLES:
        monkeypatch.setenv(name, "7")
    cpus = sorted(os.sched_getaffinity(0))
    first, last = (cpus[0],), (cpus[-1],)
    changes: dict[str, Any] = {
        "cpus": first + last + first,
        "gpus": ("A", "B", "C"),
        "threads": 2,
        "number": 4,
    }
    with local() as executor:
        handle = executor.submit(make_rank_group(tmp_path, "a", *[[("look", None)]] * 3, **changes))
        pid = pid_of(executor, handle)
        assert until_exit(executor, handle)[handle] == Exited(handle, 0)
    found = [
        json.loads((tmp_path / "a" / name).read_text())
        for name in ("seen.json", "seen-1.json", "seen-2.json")
    ]
    assert int(found[0]["pid"]) == pid
    return found


def test_every_rank_knows_its_place_and_no_address_but_the_directory(
    seen: list[dict[str, str]],
) -> None:
    assert [one["RANK"] for one in seen] == [one["LOCAL_RANK"] for one in seen] == ["0", "1", "2"]
    assert {one["WORLD_SIZE"] for one in seen} == {"3"}
    assert not {"MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"} & {
        name for one in seen for name in one
    }


def test_every_rank_has_a_session_cpus_gpus_and_a_token_of_its_own(
    seen: list[dict[str, str]], tmp_path: Path
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    assert len({one["pid"] for one in seen}) == 3
    assert all(one["sid"] == one["pid"] for one in seen)
    assert [one["cpus"] for one in seen] == [str(cpus[0]), str(cpus[-1]), str(cpus[0])]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["A", "B", "C"]
    assert [one[TOKEN_VARIABLE].partition("/")[2] for one in seen] == ["a/4/0", "a/4/1", "a/4/2"]
    assert {one["OMP_NUM_THREADS"] for one in seen} == {"2"}
    assert {one["argv"] for one in seen} == {f"{tmp_path / 'a'} 4"}
    assert all(one[CHANNEL_VARIABLE] in one["fds"].split() for one in seen)


def test_a_single_worker_is_not_one_of_several_whatever_its_supervisor_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in DISTRIBUTED_VARIABLES:
        monkeypatch.setenv(name, "7")
    with local() as executor:
        handle = executor.submit(make_launch(tmp_path, "a", [("look", None)]))
        until_exit(executor, handle)
    found = json.loads((tmp_path / "a/seen.json").read_text())
    assert not set(DISTRIBUTED_VARIABLES) & set(found)


def test_every_rank_has_a_log_of_its_own(tmp_path: Path) -> None:
    program = "import os; print('I am', os.environ['RANK'])"
    with local(worker_command=(sys.executable, "-S", "-c", program)) as executor:
        handle = executor.submit(make_rank_group(tmp_path, "a", [], []))
        until_exit(executor, handle)
    attempt = AttemptPaths(tmp_path / "a/attempts/0")
    assert [attempt.log_of(rank).read_text() for rank in range(2)] == ["I am 0\n", "I am 1\n"]
    assert sorted(path.name for path in attempt.root.iterdir()) == ["rank-1.log", "worker.log"]


@pytest.mark.parametrize("cannot", [1, 2])
def test_when_a_rank_cannot_be_started_none_is(tmp_path: Path, cannot: int) -> None:
    cpus = [min(os.sched_getaffinity(0))] * 3
    cpus[cannot] = 100_000
    with local() as executor:
        until_heard(executor, executor.submit(make_launch(tmp_path, "other", ASLEEP)))
        before = descriptors()
        with pytest.raises(OSError, match="Invalid argument"):
            executor.submit(make_rank_group(tmp_path, "a", *[IGNORES_STOP] * 3, cpus=tuple(cpus)))
        assert descriptors() == before
        assert len(executor._groups) == 1
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        assert not any(child_process.has_ended(int(pid)) for pid in children), "a zombie is left"
        assert sum("puppet.py" in Path(f"/proc/{pid}/cmdline").read_text() for pid in children) == 1


def test_what_a_rank_has_left_behind_when_another_cannot_be_started_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = worker_process.start

    def second_fails(command: Any, launch: Launch, rank: int, **named: Any) -> Any:
        if rank == 1:
            await_files(tmp_path / "a/daemon-0")
            raise OSError(11, "no more processes")
        return start(command, launch, rank, **named)

    monkeypatch.setattr(worker_process, "start", second_fails)
    with local() as executor:
        with pytest.raises(OSError):
            executor.submit(make_rank_group(tmp_path, "a", family(0), []))
        await_gone(map(int, await_files(tmp_path / "a/child-0", tmp_path / "a/daemon-0")))


# -- how they end


@pytest.mark.parametrize("how", ["exits", "is killed"])
@pytest.mark.parametrize(
    "rank",
    [
        0,
        2,
    ],
)
def test_when_a_rank_ends_nothing_of_the_others_is_left(
    tmp_path: Path, how: str, rank: int
) -> None:
    orders = [family(number) for number in range(3)]
    last: Order = ("exit", 3) if how == "exits" else ("die", int(signal.SIGKILL))
    orders[rank] = family(rank, [*(("await", f"daemon-{other}") for other in range(3)), last])
    with local() as executor:
        handle = executor.submit(make_rank_group(tmp_path, "a", *orders))
        pids = of_family(tmp_path / "a", 3)
        code = 3 if how == "exits" else -signal.SIGKILL
        assert until_exit(executor, handle)[handle] == Exited(handle, code, rank=rank)
        await_gone(pids)


def await_zombie(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    "cause",
    [
        ("exit", 1),
        ("die", int(signal.SIGKILL)),
    ],
)
def test_of_ranks_that_ended_together_the_cause_is_told_from_its_consequences(
    tmp_path: Path, cause: Order
) -> None:
    with local() as executor:
        handle = executor.submit(
            make_rank_group(tmp_path, "a", [("exit", LOST)], [("exit", LOST)], [cause])
        )
        for worker in executor._groups[handle].running:
            await_zombie(worker.pid)
        code = cause[1] if cause[0] == "exit" else -cause[1]
        assert until_exit(executor, handle)[handle] == Exited(handle, code, rank=2)


def test_a_rank_that_dies_slowly_is_the_cause_although_another_has_lost_it_before(
    tmp_path: Path,
) -> None:
    with local() as executor:
        handle = executor.submit(
            make_rank_group(tmp_path, "a", [("exit", LOST)], [("await", "go"), ("die", 9)])
        )
        await_zombie(executor._groups[handle].running[0].pid)
        assert not [event for event in executor.poll(0.0) if isinstance(event, Exited)]
        (tmp_path / "a/go").touch()
        assert until_exit(executor, handle)[handle] == Exited(handle, -9, rank=1)


def test_a_rank_that_has_left_on_request_does_not_end_one_that_still_saves(tmp_path: Path) -> None:
    saves: list[Order] = [("note", "saving"), ("await", "go"), ("note", "saved"), ("exit", 11)]
    with local() as executor:
        handle = executor.submit(
            make_rank_group(tmp_path, "a", saves, [("await", "saving"), ("exit", 11)])
        )
        gone = executor._groups[handle].running[1].pid
        await_zombie(gone)
        assert not [event for event in executor.poll(0.0) if isinstance(event, Exited)]
        await_gone([gone])
        (tmp_path / "a/go").touch()
        assert until_exit(executor, handle)[handle] == Exited(handle, 11, rank=1)
        assert (tmp_path / "a/saved").exists()


def test_an_out_of_memory_kill_of_a_rank_explains_the_attempt_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = {"count": 5}
    monkeypatch.setattr(cgroup, "oom_kills", lambda: kills["count"])
    monkeypatch.setattr(local_module, "SAMPLE_EVERY_S", 1e9)
    with local() as executor:
        handle = executor.submit(
            make_rank_group(
                tmp_path, "a", IGNORES_STOP, [("await", "go"), ("die", 9)], IGNORES_STOP
            )
        )
        other = executor.submit(make_launch(tmp_path, "other", IGNORES_STOP))
        executor.poll(0.0)
        kills["count"] = (
            # of the other's family, say: for two ranks that we kill ourselves it is no explanation
            7
        )
        (tmp_path / "a/go").touch()
        assert until_exit(executor, handle)[handle] == Exited(handle, -signal.SIGKILL, True, rank=1)
        executor.cancel(other, kill=True)
        assert until_exit(executor, other)[other].oom_killed


def test_memory_is_that_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "SAMPLE_EVERY_S", 0.0)
    large: list[Order] = [("allocate", 100), ("note", "large"), ("sleep", None)]
    first: list[Order] = [("allocate", 100), ("await", "large"), *ASLEEP]
    with local() as executor:
        handle = executor.submit(make_rank_group(tmp_path, "a", first, large))
        until_heard(executor, handle)
        samples = events_until(
            executor, lambda events: any(isinstance(event, Sampled) for event in events)
        )
    sizes = [event.rss_mib for event in samples if isinstance(event, Sampled)]
    assert 200 < sizes[-1] < 300


# -- the exit of a group, in values


def rank_group(ranks: int) -> RankGroup:
    return RankGroup(id=AttemptId("a", 0), ranks=ranks, running=[])


@pytest.mark.parametrize(
    ("codes", "code", "rank"),
    [
        ([0, 0, 0], 0, None),
        ([0, 1, 2], 1, 1),
        ([2, 1, 0], 2, 0),
        ([LOST, -9, 1], -9, 1),
        ([LOST, LOST, 0], LOST, 0),
        ([11, 0, 11], 11, 0),
        ([0, 11, LOST], LOST, 2),
        ([11, 11, 12], 12, 2),
        ([None, None, None], None, 0),
        ([0, None, None], None, 0),
        ([0, None, -11], -11, 2),
        ([0, LOST, None], LOST, 1),
    ],
)
def test_the_end_that_says_most_counts_and_of_equals_the_first(
    codes: list[int | None], code: int | None, rank: int | None
) -> None:
    one = rank_group(len(codes))
    for number, returncode in enumerate(codes):
        one.note(RankExit(rank=number, returncode=returncode))
    assert one.settle() == Exited(one.id, code, rank=rank)
