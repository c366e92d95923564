"""``search/declared.json`` of a run directory: what its search, or the comparison of its jobs at
rungs, was declared as.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.core.decoding import parsed_json
from orchestrator.core.errors import LedgerError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.front_end import option
from orchestrator.core.paths import RunPaths
from orchestrator.features.search.auto_sampler import SamplerChoice
from orchestrator.features.search.declaration.spec import race_in
from orchestrator.features.search.search_paths import SearchPaths

if TYPE_CHECKING:  # which reads job files, and `status` does not
    from orchestrator.jobfile import Experiment

OF_THE_SEARCH = ("search", "scheduler", "defaults", "jobs")
"""Keys at the top of a job file that trials depend on: a resumed search takes over all others."""
AUTO_SAMPLER = "auto_sampler"
"""Key beside those of the job file: what ``sampler = "auto"`` was when the search began."""
BUDGET = ("trials", "max_env_steps", "max_time", "reevaluate")
"""Keys of ``[search]`` on which no trial has depended so far: a resumed search takes these over."""


def start_over_by(means: str) -> str:
    """What can be done other than to go on."""
    starts_over = f"{means} starts over and keeps what is here under another name"
    return f"{starts_over}; another {option('run_dir')} leaves it as it is"


def start_over() -> str:
    return start_over_by("`run --fresh`")


def read_declaration(paths: RunPaths) -> Mapping[str, Any]:
    """The declaration of what has begun here. :raises LedgerError: it cannot be read."""
    try:
        declaration: Mapping[str, Any] = parsed_json(
            read_regular(SearchPaths(paths.root).declaration)
        )
        if not all(isinstance(declaration[key], dict) for key in ("data", "overrides")):
            raise TypeError("it is no declaration")
        chosen_sampler(declaration)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(paths, error) from error
    return declaration


def unreadable(paths: RunPaths, error: Exception) -> LedgerError:
    """The error that says what is wrong with the declaration."""
    return LedgerError(
        f"{SearchPaths(paths.root).declaration}: cannot be read ({error!r}); {start_over()}"
    )


def declare(paths: RunPaths, experiment: Experiment, robots: Mapping[str, str]) -> None:
    """Write it. :param robots: see :mod:`orchestrator.features.search.search_robots`."""
    from orchestrator.features.search.declaration.declared_search import declaration_of

    content = {**experiment.declaration, "robots": dict(robots)}
    search = declaration_of(experiment).search
    if search is not None and search.auto is not None:
        content[AUTO_SAMPLER] = dataclasses.asdict(search.auto)
    file = SearchPaths(paths.root).declaration
    file.parent.mkdir(exist_ok=True)
    write_whole(file, json.dumps(content, indent=1) + "\n")


def chosen_sampler(declaration: Mapping[str, Any]) -> SamplerChoice | None:
    """What ``sampler = "auto"`` was when the search of a declaration that was read began; None where
    a sampler is named.
    """
    written = declaration.get(AUTO_SAMPLER)
    return None if written is None else SamplerChoice(**written)


def as_begun(experiment: Experiment, before: Mapping[str, Any]) -> Experiment:
    """Return ``experiment`` with the sampler that ``auto`` was when the search of the declaration
    ``before`` began.
    """
    from orchestrator.features.search.declaration.declared_search import SearchDeclaration

    source = experiment.job_source
    if not isinstance(source, SearchDeclaration):
        return experiment
    begun = source.begun_with(chosen_sampler(before))
    return dataclasses.replace(experiment, job_source=begun)


def with_chosen_sampler(declaration: Mapping[str, Any]) -> Mapping[str, Any]:
    """The declaration as if its job file named the sampler that ``auto`` was."""
    chosen = chosen_sampler(declaration)
    if chosen is None:
        return declaration
    data = declaration["data"]
    search = {**data["search"], "sampler": chosen.sampler}
    return {**declaration, "data": {**data, "search": search}}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Of two declarations: each key that decides which trials there are and differs, with both
    values.
    """
    return list(_differences(_decisive(before), _decisive(now)))


def budget_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The same of the keys of :data:`BUDGET`."""
    return list(_differences(_budget(before), _budget(now)))


def _decisive(declaration: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that decide which trials there are, dotted."""
    kept = {key: value for key, value in declaration["data"].items() if key in OF_THE_SEARCH}
    search = kept.get("search")
    if isinstance(search, dict):
        table = {key: value for key, value in search.items() if key not in BUDGET}
        if "race" in table:
            table["race"] = race_in(table)
        kept["search"] = {"start": "nothing", **table}
    return dict(_flat("", {**kept, **declaration["overrides"]}))


def _budget(declaration: Mapping[str, Any]) -> dict[str, Any]:
    table = declaration["data"].get("search", {})
    return {key: table[key] for key in BUDGET if key in table}


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        yield prefix, value
        return
    for key, inner in value.items():
        quoted = f'"{key}"' if "." in key and prefix else key
        yield from _flat(f"{prefix}.{quoted}" if prefix else quoted, inner)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in {**before, **now}:
        shown = [
            json.dumps(keys[key], ensure_ascii=False) if key in keys else "not set"
            for keys in (before, now)
        ]
        if shown[0] != shown[1]:
            yield f"{key}: {shown[0]} → {shown[1]}"
