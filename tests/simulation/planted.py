"""Faults that are planted in the program, one at a time, to see that the simulated world finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from orchestrator.server import decide, job_directory, jobs, leftovers, retry_policy
from orchestrator.server.attempts import Attempts
from orchestrator.server.entering import Entering
from orchestrator.server.jobs import JobTable
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import RequestFolder
from orchestrator.server.supervisor import Supervisor
from orchestrator.server.verbs import Verbs
from tests.simulation.drawing import made
from tests.simulation.play import play


@dataclass(frozen=True, slots=True)
class Fault:
    """A function in the place of another one."""

    name: str
    owner: Any
    function: str
    replacement: Callable[..., Any]
    """Called with the original function, and then what that is called with."""

    def planted(self) -> Any:
        """Return a context in which the fault is planted."""
        original = getattr(self.owner, self.function)

        def faulty(*arguments: Any, **options: Any) -> Any:
            return self.replacement(original, *arguments, **options)

        return mock.patch.object(self.owner, self.function, faulty)


def first_seed(fault: Fault, seeds: Iterable[int]) -> tuple[int | None, str]:
    """Return the first seed that finds a fault, and what it finds."""
    with fault.planted():
        for seed in seeds:
            violation = play(made(seed)).violation
            if violation:
                return seed, violation
    return None, ""


def nothing(*_: Any, **__: Any) -> None:
    pass


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def with_option(name: str, value: Any, original: Any, *arguments: Any, **options: Any) -> Any:
    return original(*arguments, **{**options, name: value})


def kill_at_once(original: Any, attempts: Any, attempt: Any, reason: Any, _grace: float) -> None:
    original(attempts, attempt, reason, 0.0)


def remove_before(original: Any, verbs: Any, received: Any) -> None:
    verbs.supervisor.request_folder.remove(received.id)
    original(verbs, received)


def one_more_retry(original: Any, outcome: Any, **options: Any) -> Any:
    return original(outcome, **{**options, "max_retries": options["max_retries"] + 1})


def pause_at_its_end(original: Any, state: Any, wanted: str) -> Any:
    return state if wanted == "pause" else original(state, wanted)


def find_no_training(original: Any, *arguments: Any) -> Any:
    return replace(original(*arguments), training=None)


FAULTS = [
    Fault(
        "an answer does not keep a request from being applied again",
        ServerLedger,
        "answer",
        nothing,
    ),
    Fault("files of requests stay", RequestFolder, "remove", always(True)),
    Fault("a request is removed before it is applied", Verbs, "apply", remove_before),
    Fault("a file that is no request stays", RequestFolder, "set_aside", nothing),
    Fault("jobs do not wait for their parents", JobTable, "missing_parents", always([])),
    Fault("no wait before a retry", retry_policy, "backoff_s", always(0.0)),
    Fault("one retry too many", retry_policy, "next_state", one_more_retry),
    Fault(
        "an exit code of 0 is a success",
        retry_policy,
        "judge",
        partial(with_option, "silent", False),
    ),
    Fault("no limit is enforced", Attempts, "enforce_limits", nothing),
    Fault("no grace time", Attempts, "ask_to_end", kill_at_once),
    Fault("limits count the time of a suspended machine", Attempts, "_leave_out", nothing),
    Fault("a stop ends no attempt", Attempts, "stop_all", nothing),
    Fault("a pause waits for nothing", jobs, "wanted_state", pause_at_its_end),
    Fault("workers of a dead supervisor train on", leftovers, "kill_leftover", nothing),
    Fault("an old exit record stays", job_directory, "_remove", always(False)),
    Fault("jobs are launched on a full disk", Supervisor, "_has_disk", always(True)),
    Fault("jobs that are no longer declared stay", Entering, "_drop_undeclared", nothing),
    Fault("no job directory is adopted", leftovers, "find", find_no_training),
    Fault("changed jobs go on", decide, "differences", always([])),
    Fault("every run is a success", retry_policy, "exit_code", always(0)),
]
