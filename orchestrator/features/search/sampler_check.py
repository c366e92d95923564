"""Whether the sampler of a search can be made, examined before anything is launched: one of the
user's own in a child process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.core.errors import Problem
from orchestrator.core.exit_codes import is_killed_from_outside
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.side_process import SideProcess
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.declaration.rules import missing_package
from orchestrator.features.search.declaration.spec import SAMPLERS
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.jobfile import Experiment

LOOK_EVERY_S = 0.02


def examine(
    experiment: Experiment, *, time_limit_s: float, turn: Callable[[], object] = lambda: None
) -> Problem | None:
    """Make the sampler of the user's once; returns why that cannot be done. One of this program
    needs its package.

    :param turn: called repeatedly; an exception that it raises ends the examination.
    """
    search = declaration_of(experiment).search
    if search is None:
        return None
    if search.sampler in SAMPLERS:
        missing = missing_package(search)
        return None if missing is None else Problem(where="search.sampler", message=missing)
    with TemporaryFolder() as folder:
        paths = RunPaths(Path(folder))
        own = SearchPaths(paths.root)
        written.declare(paths, experiment, {})
        process = SideProcess(
            arguments=["orchestrator.features.search.searcher.sampler_child", folder],
            run_dir=paths.root,
            log=own.log,
        )
        try:
            has_ended = _run(process, time_limit_s, turn)
            if has_ended and is_killed_from_outside(process.exit_code or 0):
                # Once more: that may not be the sampler's doing.
                has_ended = _run(process, time_limit_s, turn)
            if has_ended and process.exit_code == 0:
                return None
            last = process.why_it_ended()
        finally:
            process.end()
    why = last.removeprefix("search: ")
    if not has_ended:
        why = f'the sampler "{search.sampler}" was not made within {time_limit_s:g} s'
    elif why == last:  # it has ended the process
        why = f'the sampler "{search.sampler}" cannot be made: {last}'
    return Problem(where="search.sampler", message=why)


def _run(process: SideProcess, time_limit_s: float, turn: Callable[[], object]) -> bool:
    """Start it; returns whether it has ended within the limit."""
    deadline = time.monotonic() + time_limit_s
    process.start()
    while process.is_alive and time.monotonic() < deadline:
        turn()
        time.sleep(LOOK_EVERY_S)
    return not process.is_alive
