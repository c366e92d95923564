"""The options of a run, as on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from orchestrator.experiment.start_conditions import GRACE_S
from orchestrator.jobfile import Experiment
from orchestrator.machine.slots import MaxParallel
from orchestrator.server.differences import OnChange


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a user gives a run beside its job file."""

    run_dir: Path
    max_parallel: MaxParallel | Literal["auto"] = None
    """None: as in the job file."""
    fresh: bool = False
    on_change: OnChange = "refuse"
    executor: str | None = None
    """None: that of the run before in the run directory, which for a new one is ``local``."""
    executor_options: Mapping[str, str] = field(default_factory=dict)
    """Values of options of executors, by name. One that is missing is as in the run before if that
    had the same executor, otherwise its default. Those of other executors have no effect."""
    grace_s: float = GRACE_S
    until: float | None = None
    """When everything has to have ended, in seconds since the epoch; None: no such time."""
    is_listed: bool = False
    """Whether `list` shows it: what people run, but no benchmark."""
    refuses_shared: bool = False
    """Whether a problem that no robot causes is raised if no job can be trained, also with
    ``skip_invalid``."""


def with_on_change(experiment: Experiment, options: RunOptions) -> RunOptions:
    """Return the options with ``fresh`` if something else has begun in the run directory that makes
    the jobs, or compares them, and ``on_change`` allows to start over.
    """
    source = experiment.job_source
    may_start_over = options.on_change == "restart" and not options.fresh
    if source is not None and may_start_over and source.starts_over(experiment, options.run_dir):
        return replace(options, fresh=True)
    return options
