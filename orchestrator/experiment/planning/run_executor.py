"""The executor of a run directory is part of its record: a run that names none takes the one of the
run before.

It is in ``provenance.json``. A supervisor that was killed before it wrote that may have submitted
batch jobs: their files say so, and no other executor trains beside them.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.core.errors import RunDirError
from orchestrator.core.front_end import option
from orchestrator.core.paths import RunPaths
from orchestrator.executors.kinds import ExecutorKind, LeftBatchJobs, executor_kinds, kind_named
from orchestrator.experiment.directory import left_batch_jobs, run_directory
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.machine import provenance


def of_unclaimed(asked: RunOptions) -> RunOptions:
    """As :func:`of_claimed`, while a supervisor may hold the run directory; of its batch jobs
    nothing is left.
    """
    paths = RunPaths(asked.run_dir)
    left = left_batch_jobs.of(paths) if run_directory.holder(paths) is None else None
    return _with_executor(asked, paths, left)


def of_claimed(asked: RunOptions, paths: RunPaths) -> RunOptions:
    """``asked`` with the executor of the run before where they name none, and with its options.

    :param paths: the run directory, which this process holds.
    :raises RunDirError: batch jobs are left that may still train, and another executor is named, or
        all jobs are to start over; or this program has no such executor.
    """
    return _with_executor(asked, paths, left_batch_jobs.of(paths))


def explanation(asked: RunOptions, taken: RunOptions) -> str:
    """A sentence that names the executor where the command does not, unless it is the local one."""
    if asked.executor is not None or taken.executor in (None, "local"):
        return ""
    given = taken.executor_options
    named = "".join(
        f" and {option(one.name, given[one.name], sign='=')}"
        for one in executor_kinds()[taken.executor].options
        if given.get(one.name, one.default) != one.default
    )
    executor = option("executor", taken.executor, sign="=")
    return f"the jobs run with {executor}{named}, as in the run before"


def _with_executor(asked: RunOptions, paths: RunPaths, left: LeftBatchJobs | None) -> RunOptions:
    if left is not None:
        _refuse_beside(left, asked, paths)
    recorded = provenance.executor(paths)
    if asked.executor is not None:
        name: str | None = asked.executor
    elif left is not None:
        name = left.executor
    elif recorded:
        name = _executor_before(recorded["executor"], paths)
    else:
        name = left_batch_jobs.executor_of(paths)
    if name is None or recorded.get("executor") != name:
        return dataclasses.replace(asked, executor=name)
    before = _recorded_options(kind_named(name), recorded)
    return dataclasses.replace(
        asked, executor=name, executor_options={**before, **asked.executor_options}
    )


def _recorded_options(kind: ExecutorKind, recorded: Mapping[str, Any]) -> dict[str, str]:
    """The options of the run before."""
    return {
        option.name: value
        for option in kind.options
        if isinstance(value := recorded.get(option.name), str)
    }


def _executor_before(name: str, paths: RunPaths) -> str:
    """:param name: the executor of the run before.
    :raises RunDirError: this program has none of this name.
    """
    if name in executor_kinds():
        return name
    gone = f"the run before had the executor {name}, of a feature that is not installed here"
    advice = (
        f"install it; or, once nothing trains there any more, name another {option('executor')}"
    )
    raise RunDirError(f"{paths.root}: {gone}; {advice}")


def _refuse_beside(left: LeftBatchJobs, asked: RunOptions, paths: RunPaths) -> None:
    run_dir = shlex.quote(str(paths.root))
    nobody = f"{paths.root}: no supervisor is running, and {left}"
    if asked.fresh:
        advice = f"`stop --wait {run_dir}` ends them; then {option('fresh', True)} starts over"
        raise RunDirError(f"{nobody} in the run directory, so it cannot be renamed. {advice}")
    if asked.executor not in (None, left.executor):
        other = option("executor", asked.executor, sign="=")
        same = option("executor", left.executor, sign="=")
        why = f"{other} would train the same jobs a second time"
        taken_over = f"Without {option('executor')}, or with {same}, the run takes them over"
        otherwise = f"`stop --wait {run_dir}` ends them; then {other} resumes the jobs"
        raise RunDirError(f"{nobody}; {why}. {taken_over}. {otherwise}")
