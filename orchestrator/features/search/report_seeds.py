"""The same search with several seeds: run directories whose best so far a report draws over each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import report_data
from orchestrator.features.search.declaration import written
from orchestrator.features.search.report_data import SearchedSeed, SearchFacts
from orchestrator.features.search.search_paths import SearchPaths

SEED = "search.seed: "


def gather(run_dir: Path, facts: SearchFacts, others: Sequence[Path]) -> list[SearchedSeed]:
    """``run_dir`` and ``others``, each with what a search with its seed has found.

    :param facts: of ``run_dir``.
    :raises UsageError: one has no search, or another one than ``run_dir``, or a seed is there
        twice.
    """
    first, *declarations = [
        written.with_chosen_sampler(written.read_declaration(_searched_in(path)))
        for path in (run_dir, *others)
    ]
    for other, declared in zip(others, declarations, strict=True):
        changes = written.differences(first, declared)
        if different := [line for line in changes if not line.startswith(SEED)]:
            text = f"{other}: this is not the search of {run_dir} with another seed; it differs in"
            raise UsageError("\n".join([text, *(f"    {line}" for line in different)]))
    found = [
        _searched_seed(run_dir, facts),
        *(_searched_seed(path, _read(path)) for path in others),
    ]
    for place, one in enumerate(found):
        for earlier in found[:place]:
            if earlier["seed"] == one["seed"]:
                what = f"{earlier['run_dir']} and {one['run_dir']}: both have the search seed {one['seed']}"
                raise UsageError(
                    f"{what}; set another `seed` in [search], and run it with another --run-dir"
                )
    return found


def _searched_in(run_dir: Path) -> RunPaths:
    paths = run_directory.existing_run(run_dir)
    if not SearchPaths(paths.root).declaration.exists():
        raise _without_search(run_dir)
    return paths


def _without_search(run_dir: Path) -> UsageError:
    return UsageError(
        f"{run_dir}: there is no search here, which could have several seeds; its job file has none"
    )


def _read(run_dir: Path) -> SearchFacts | None:
    paths = RunPaths(run_dir)
    with run_directory.reading_ledger(paths) as ledger:
        return report_data.gather(paths, ledger, with_estimates=False)


def _searched_seed(run_dir: Path, facts: SearchFacts | None) -> SearchedSeed:
    if facts is None:
        raise _without_search(run_dir)
    if facts["seed"] is None:
        raise UsageError(f"{run_dir}: its jobs are compared at rungs, and that has no seeds")
    return {
        "run_dir": str(run_dir),
        "seed": facts["seed"],
        "finished": len(facts["best"]),
        "env_steps": facts["env_steps"],
        "elapsed_s": facts["elapsed_s"],
        "improvements": facts["improvements"],
    }
