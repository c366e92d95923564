"""The executor ``prefixed``: the local one, with another command of the worker."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.executors.executor import ExecutorSettings
from orchestrator.executors.kinds import ExecutorKind, ExecutorOption
from orchestrator.executors.local import LocalExecutor
from orchestrator.executors.processes import WORKER_COMMAND, Processes
from orchestrator.machine.doctor import Finding
from orchestrator.machine.topology import Machine

PREFIX = ExecutorOption(
    name="prefix",
    metavar="COMMAND",
    help="What starts the workers of --executor prefixed, in place of [prefixed] in the job file.",
    default="",
)


class PrefixedExecutor(LocalExecutor):
    """See :class:`orchestrator.executors.executor.OpenedExecutor`.

    :raises UsageError: neither the command nor the job file says what starts the workers.
    """

    def __init__(self, settings: ExecutorSettings) -> None:
        given = settings.options["prefix"]
        table = settings.tables.get("prefixed")
        of_job_file = () if table is None else table.command
        self._command = tuple(shlex.split(given)) or of_job_file
        if not self._command or shutil.which(self._command[0]) is None:
            what = shlex.join(self._command) or "nothing"
            advice = f"name a program: {option('prefix', 'nice -n 5')}, or command in [prefixed]"
            raise UsageError(
                f"{option('executor', 'prefixed')}: {what} starts the workers; {advice}"
            )
        super().__init__(settings, Processes(worker_command=(*self._command, *WORKER_COMMAND)))

    def facts(self) -> Mapping[str, Any]:
        return {"executor": "prefixed", "worker_prefix": shlex.join(self._command)}


def findings(machine: Machine) -> Iterator[Finding]:
    found = [name for name in ("env", "nice", "ionice", "chrt") if shutil.which(name)]
    programs = ", ".join(found) or "any program that becomes the worker by exec"
    text = f"`run --executor prefixed` starts up to {machine.capacity} workers by {programs}."
    yield Finding("ok", "Prefixes", text)


KIND = ExecutorKind(name="prefixed", open=PrefixedExecutor, options=(PREFIX,))
