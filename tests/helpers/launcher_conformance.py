"""The conformance suite of launchers: what executors rely on.

A test module of a launcher runs it by importing all of it, and a fixture ``stage`` that makes a
:class:`Stage` of the launcher::

    from launcher_conformance import *


    @pytest.fixture
    def stage(tmp_path: Path) -> Iterator[Stage]:
        made = LocalStage(tmp_path, MyLauncher(worker_command=PUPPET))
        yield made
        made.executor.close()
"""

from __future__ import annotations

import dataclasses
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from executor_helpers import (
    Order,
    events_until,
    make_launch,
    make_rank_group,
    until_exit,
    until_heard,
)

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import Progress
from orchestrator.executors.executor import AttemptId, Event, Exited, Progressed
from orchestrator.executors.launcher import Launch, Launcher

SAID = Progress(phase="training", env_steps=640, iteration=5, ep_rew_mean=1.5, learner="sb3")
ALSO_SAID = Progress(phase="training", env_steps=7)
"""By ranks that nobody listens to."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a worker does: says something, then ends, or runs until it is ended."""

    says: tuple[bytes, ...] = ()
    exits: int | None = None
    dies: int | None = None
    when_asked: int | None = None
    """Exit code once it is asked to leave; None: it notes that, and goes on."""
    saves: bool = True
    """Whether it notes that it is asked for a checkpoint; otherwise it has no handler for that
    yet."""


class Stage(Protocol):
    """A launcher, and how scripts, one a rank, become a launch on it."""

    executor: Launcher
    simulates: bool = False
    """Whether it starts no processes, but knows the end of each launch beforehand: what would only
    find that again is skipped."""
    has_disk_of_its_own: bool = False
    """Whether workers write to another disk than that of the run directory."""

    def launch(self, job_id: str, *scripts: Script) -> Launch: ...

    def until_asked(self, job_id: str) -> list[Event]:
        """What happens until rank 0, which does not listen, has been asked to leave."""
        ...

    def until_saved(self, job_id: str) -> None:
        """Until rank 0 has been asked for a checkpoint."""
        ...


class LocalStage(Stage):
    """Of an executor whose workers are :data:`executor_helpers.PUPPET`, on this machine."""

    def __init__(self, root: Path, executor: Launcher) -> None:
        self.executor = executor
        self._root = root

    def launch(self, job_id: str, *scripts: Script) -> Launch:
        orders = [self._orders(script, rank, len(scripts)) for rank, script in enumerate(scripts)]
        if len(orders) == 1:
            return make_launch(self._root, job_id, orders[0])
        return make_rank_group(self._root, job_id, *orders)

    def until_asked(self, job_id: str) -> list[Event]:
        note = self._root / job_id / "asked-0"
        return events_until(self.executor, lambda _: note.exists())

    def until_saved(self, job_id: str) -> None:
        note = self._root / job_id / "saved-0"
        events_until(self.executor, lambda _: note.exists())

    def _orders(self, script: Script, rank: int, ranks: int) -> list[Order]:
        orders: list[Order] = [("when asked", script.when_asked)]
        orders += [("when asked to save", None)] if script.saves else []
        if rank:
            orders.append(("note", f"listens-{rank}"))
        elif (
            script.exits is None and script.dies is None
        ):  # once it is heard all of them can be asked
            orders += [("await", f"listens-{other}") for other in range(1, ranks)]
        said = ALSO_SAID if rank else SAID
        orders += [("say", line.decode("latin-1")) for line in (*script.says, said.to_line())]
        if script.exits is not None:
            orders.append(("exit", script.exits))
        orders += [("die", script.dies)] if script.dies is not None else []
        return [*orders, ("sleep", None)]


@pytest.fixture
def real_stage(stage: Stage) -> Stage:
    """One that starts processes."""
    if stage.simulates:
        pytest.skip("it simulates what this looks at")
    return stage


def start(stage: Stage, script: Script, job_id: str = "a") -> AttemptId:
    return stage.executor.submit(stage.launch(job_id, script))


def start_ranks(stage: Stage, *scripts: Script, job_id: str = "a") -> AttemptId:
    return stage.executor.submit(stage.launch(job_id, *scripts))


@pytest.mark.parametrize(
    "code", [0, 11, *(pytest.param(code, marks=pytest.mark.nightly) for code in (1, 10, 13, 255))]
)
def test_the_exit_code_arrives(stage: Stage, code: int) -> None:
    handle = start(stage, Script(exits=code))
    assert until_exit(stage.executor, handle)[handle].returncode == code


def test_a_full_disk_of_the_run_directory_is_an_exit_code_too(stage: Stage) -> None:
    if stage.has_disk_of_its_own:
        pytest.skip("another machine may have room")
    handle = start(stage, Script(exits=ExitCode.DISK_FULL))
    assert until_exit(stage.executor, handle)[handle].returncode == ExitCode.DISK_FULL


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGSEGV,
        *(
            pytest.param(number, marks=pytest.mark.nightly)
            for number in (signal.SIGKILL, signal.SIGABRT)
        ),
    ],
)
def test_death_by_a_signal_is_a_negative_code(stage: Stage, number: int) -> None:
    handle = start(stage, Script(dies=number))
    assert until_exit(stage.executor, handle)[handle] == Exited(handle, -number)


def test_a_handle_names_job_and_attempt(stage: Stage) -> None:
    launch = dataclasses.replace(stage.launch("a", Script(exits=0)), number=7)
    (launch.job_dir / "attempts" / "7").mkdir()
    handle = stage.executor.submit(launch)
    assert (handle.job_id, handle.number) == ("a", 7)


def test_ends_of_many_attempts_arrive_once_each(stage: Stage) -> None:
    handles = {start(stage, Script(exits=number), f"j{number}"): number for number in range(8)}
    ended = until_exit(stage.executor, *handles)
    assert {handle: event.returncode for handle, event in ended.items()} == handles
    assert not [event for event in stage.executor.poll(0.0) if isinstance(event, Exited)]


def test_progress_arrives_before_the_end(stage: Stage) -> None:
    handle = start(stage, Script(exits=0))
    events = events_until(
        stage.executor, lambda events: any(isinstance(event, Exited) for event in events)
    )
    kinds = [type(event) for event in events if event.attempt == handle]
    assert Progressed(handle, SAID) in events
    assert kinds.index(Progressed) < kinds.index(Exited) == len(kinds) - 1


def test_progress_arrives_while_it_runs(stage: Stage) -> None:
    handle = start(stage, Script())
    assert Progressed(handle, SAID) in until_heard(stage.executor, handle)


GARBAGE = [
    b"\n",
    b"hello\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"\xff\xfe\x00\n",
    b"[" * 50_000 + b"\n",
    b"x" * 100_000 + b"\n",
    b'{"phase": "dancing"}\n',
    b'{"phase": "training", "env_steps": "many"}\n',
    b'{"phase": "training", "env_steps": [1]}\n',
    b'{"phase": "training", "env_steps": 1e400}\n',
    b'{"phase": "training", "env_steps": %d}\n' % 10**30,
    b'{"env_steps": 1}\n',
    json.dumps({"phase": 5}).encode() + b"\n",
]


def test_garbage_on_the_channel_is_ignored(real_stage: Stage) -> None:
    handle = start(real_stage, Script(says=tuple(GARBAGE), exits=0))

    def both(events: list[Event]) -> bool:
        return any(isinstance(event, Exited) for event in events)

    events = events_until(real_stage.executor, both)
    assert {event.progress for event in events if isinstance(event, Progressed)} == {SAID}
    assert Exited(handle, 0) in events


def test_asked_politely_it_leaves_with_a_code_of_its_own(stage: Stage) -> None:
    handle = start(stage, Script(when_asked=11))
    until_heard(stage.executor, handle)
    stage.executor.cancel(handle, kill=False)
    assert until_exit(stage.executor, handle)[handle].returncode == 11


def test_asked_for_a_checkpoint_it_saves_and_goes_on(stage: Stage) -> None:
    handle = start(stage, Script(when_asked=11))
    until_heard(stage.executor, handle)
    stage.executor.checkpoint(handle)
    stage.until_saved("a")
    stage.executor.cancel(handle, kill=False)
    assert until_exit(stage.executor, handle)[handle].returncode == 11


def test_one_that_cannot_save_yet_does_not_die_of_the_request(real_stage: Stage) -> None:
    handle = start(real_stage, Script(when_asked=11, saves=False))
    real_stage.executor.checkpoint(handle)
    until_heard(real_stage.executor, handle)
    real_stage.executor.checkpoint(handle)
    real_stage.executor.cancel(handle, kill=False)
    assert until_exit(real_stage.executor, handle)[handle].returncode == 11


def test_one_that_does_not_listen_can_be_killed(stage: Stage) -> None:
    handle = start(stage, Script())
    until_heard(stage.executor, handle)
    stage.executor.cancel(handle, kill=False)
    events = [*stage.until_asked("a"), *stage.executor.poll(0.6)]
    assert not [event for event in events if isinstance(event, Exited)]
    stage.executor.cancel(handle, kill=True)
    stage.executor.cancel(handle, kill=True)
    assert until_exit(stage.executor, handle)[handle].returncode == -signal.SIGKILL


def test_killing_one_leaves_the_others_alone(stage: Stage) -> None:
    one, other = start(stage, Script(), "one"), start(stage, Script(), "other")
    until_heard(stage.executor, other)
    stage.executor.cancel(one, kill=True)
    assert until_exit(stage.executor, one).keys() == {one}
    stage.executor.cancel(other, kill=True)
    assert until_exit(stage.executor, other).keys() == {other}


@pytest.mark.parametrize("kill", [True, False])
def test_unknown_and_finished_handles_are_ignored(stage: Stage, kill: bool) -> None:
    handle = start(stage, Script(exits=0))
    stage.executor.cancel(AttemptId("nobody", 3), kill=kill)
    stage.executor.cancel(dataclasses.replace(handle, number=99), kill=kill)
    stage.executor.checkpoint(dataclasses.replace(handle, number=99))
    assert until_exit(stage.executor, handle)[handle].returncode == 0
    stage.executor.cancel(handle, kill=kill)
    stage.executor.checkpoint(handle)
    assert not stage.executor.poll(0.0)


def test_poll_without_attempts_returns_nothing(stage: Stage) -> None:
    assert list(stage.executor.poll(0.0)) == []
    assert list(stage.executor.poll(0.01)) == []


def test_close_ends_everything_and_may_be_called_again(stage: Stage) -> None:
    for number in range(3):
        start(stage, Script(), f"j{number}")
    stage.executor.close()
    stage.executor.close()
    assert list(stage.executor.poll(0.0)) == []


# -- several ranks


def test_ranks_that_all_end_well_are_one_end_that_blames_nobody(stage: Stage) -> None:
    handle = start_ranks(stage, *[Script(exits=0)] * 3)
    events = events_until(
        stage.executor, lambda events: any(isinstance(event, Exited) for event in events)
    )
    assert [event for event in events if isinstance(event, Exited)] == [Exited(handle, 0)]
    assert not [event for event in stage.executor.poll(0.0) if isinstance(event, Exited)]


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        (Script(exits=1), 0),
        (Script(dies=signal.SIGKILL), 2),
        *(
            pytest.param(ends, rank, marks=pytest.mark.nightly)
            for ends, rank in (
                (Script(exits=1), 2),
                (Script(exits=10), 0),
                (Script(exits=10), 2),
                (Script(dies=signal.SIGKILL), 0),
            )
        ),
    ],
)
def test_the_first_rank_that_fails_ends_the_attempt_and_is_named(
    real_stage: Stage, ends: Script, rank: int
) -> None:
    scripts = [ends if number == rank else Script() for number in range(3)]
    handle = start_ranks(real_stage, *scripts)
    code = ends.exits if ends.exits is not None else -signal.SIGKILL
    assert until_exit(real_stage.executor, handle)[handle] == Exited(handle, code, rank=rank)


def test_ranks_that_are_done_wait_for_the_others(real_stage: Stage) -> None:
    handle = start_ranks(real_stage, Script(), Script(exits=0), Script(exits=0))
    until_heard(real_stage.executor, handle)
    assert not [event for event in real_stage.executor.poll(0.6) if isinstance(event, Exited)]
    real_stage.executor.cancel(handle, kill=True)
    assert until_exit(real_stage.executor, handle)[handle].returncode == -signal.SIGKILL


def test_rank_0_speaks_for_all(real_stage: Stage) -> None:
    handle = start_ranks(real_stage, *[Script(exits=0)] * 3)
    events = events_until(
        real_stage.executor, lambda events: any(isinstance(event, Exited) for event in events)
    )
    assert {event.progress for event in events if isinstance(event, Progressed)} == {SAID}
    assert {event.attempt for event in events} == {handle}


def test_every_rank_is_asked_to_leave(stage: Stage) -> None:
    handle = start_ranks(stage, *[Script(when_asked=11)] * 3)
    other = start(
        stage, Script(when_asked=11), "other"
    )  # a node of a cluster for tests has four CPUs
    until_heard(stage.executor, handle, other)
    stage.executor.cancel(handle, kill=False)
    ended = until_exit(stage.executor, handle)
    assert ended.keys() == {handle}
    assert ended[handle].returncode == 11
    assert ended[handle].rank is not None


def test_one_rank_is_asked_for_a_checkpoint_of_all(real_stage: Stage, tmp_path: Path) -> None:
    handle = start_ranks(real_stage, *[Script(when_asked=11)] * 2)
    until_heard(real_stage.executor, handle)
    real_stage.executor.checkpoint(handle)
    real_stage.until_saved("a")
    real_stage.executor.cancel(handle, kill=False)
    assert until_exit(real_stage.executor, handle)[handle].returncode == 11
    assert not list(tmp_path.rglob("saved-1"))


def test_every_rank_is_killed(stage: Stage) -> None:
    handle = start_ranks(stage, *[Script()] * 3)
    until_heard(stage.executor, handle)
    stage.executor.cancel(handle, kill=True)
    assert until_exit(stage.executor, handle)[handle].returncode == -signal.SIGKILL
    assert not [event for event in stage.executor.poll(0.0) if isinstance(event, Exited)]


def test_close_ends_ranks_too(stage: Stage) -> None:
    start_ranks(stage, *[Script()] * 3)
    stage.executor.close()
    assert list(stage.executor.poll(0.0)) == []
