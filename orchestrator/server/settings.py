"""What a client tells the supervisor's process before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.core.decoding import FilePath
from orchestrator.core.messages import JsonLine

CLIENT_VARIABLE = "ORCHESTRATOR_CLIENT"
"""Environment variable with the pid of the client: it may end before it has written its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(JsonLine):
    """The settings of a run: one line on the standard input of the process."""

    client_pid: int
    """The run stops when this process ends, unless it is detached."""
    run_dir: FilePath = ""
    name: str = ""
    """Of the experiment."""
    is_detached: bool = False
    holds_open: bool = False
    """Whether the run goes on without work until its client releases it, or ends."""
    awaits_jobs: bool = True
    """Whether nothing is launched before a client has added jobs."""
    fresh: bool = False
    is_listed: bool = True
    """Whether `list` shows the run."""
    max_parallel: int | Literal["idle", "auto"] | None = None
    executor: str | None = None
    """None: that of the run before in the run directory, else the local one."""
    executor_options: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    """What tables of features mean for the executor."""
    grace_s: float = 30.0
    until: float | None = None
    """When everything has to have ended, in seconds since the epoch; None: no such time."""
    warnings: Sequence[str] = ()
    """Warnings of the job file, reported at the start."""
    asked_max_parallel: int | Literal["idle", "auto"] | None = None
    """``max_parallel`` of the command, which `resume --all` repeats; None: as in the job file."""
    command: Sequence[str] = ()
    """The arguments of the client's process, for ``provenance.json``."""
    thread_variables: Mapping[str, str | None] = field(default_factory=dict)
    """The variables of the client that decide numbers of threads, for ``provenance.json``."""
    base: FilePath = ""
    """The folder of the job file, whose git commit is recorded."""
    declared_by: Mapping[str, Any] | None = None
    """The job file and the options from which the jobs were made (``provenance.json``)."""
    resumed_by: str = ""
    """What resumes a run that a Python program made: a clause with ``{run_dir}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyLine(JsonLine):
    """The answer on standard output: the run directory is locked, or why it is not."""

    holder: str = ""
    """The key of the supervisor."""
    error: str = ""
    kind: str = ""
    """The class of the error, of :mod:`orchestrator.core.errors`."""
