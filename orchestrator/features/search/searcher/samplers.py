"""What proposes the points of a search, from the values known so far.

Every sampler is a function of its seed and of the asks and tells in their order, and can be pickled
at any time: the copy goes on as the original. Asks run ahead of tells: many points may be asked for
before one is told, points are told in any order, and some never.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.features.search.declaration.spec import SAMPLERS, SearchSpec
from orchestrator.features.search.searcher.simple_samplers import (
    FurtherOutcome,
    RandomSampler,
    Sampler,
    SobolSampler,
    TrialOutcome,
)
from orchestrator.features.search.searcher.space import Space

__all__ = ["FurtherOutcome", "Sampler", "TrialOutcome", "make"]


def make(spec: SearchSpec, search_path: Path | None = None) -> Sampler:
    """The sampler of a search, before its first ask.

    :param search_path: folder of the user's modules: that of the job file.
    :raises UsageError: the user's class cannot be made.
    """
    match spec.sampler:
        case "random":
            return RandomSampler(spec)
        case "sobol":
            return SobolSampler(spec)
        case "tpe" | "gp" | "nsga2":
            from orchestrator.features.search.searcher.optuna_samplers import OptunaSampler

            return OptunaSampler(spec)
        case "cmaes":
            from orchestrator.features.search.searcher.cmaes_sampler import CmaesSampler

            return CmaesSampler(spec)
        case "map-elites" | "cma-me":
            from orchestrator.features.search.searcher.archive_samplers import (
                CmaMeSampler,
                MapElitesSampler,
            )

            return MapElitesSampler(spec) if spec.sampler == "map-elites" else CmaMeSampler(spec)
    assert spec.sampler not in SAMPLERS
    return _users(spec, search_path)


def _users(spec: SearchSpec, search_path: Path | None) -> Sampler:
    module, _, name = spec.sampler.partition(":")
    if search_path is not None and str(search_path) not in sys.path:
        sys.path.insert(0, str(search_path))
    where = f'the sampler "{spec.sampler}"'
    try:
        kind = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        looked_for = f"its module is looked for in {search_path}, then among the installed packages"
        raise UsageError(
            f"{where} cannot be imported: {type(error).__name__}: {error}; {looked_for}"
        ) from error
    try:
        sampler = kind(
            space=Space(spec.space),
            seed=spec.seed,
            directions=spec.directions,
            **spec.sampler_options,
        )
    except (Exception, SystemExit) as error:
        raise UsageError(f"{where} cannot be made: {type(error).__name__}: {error}") from error
    missing = [method for method in ("ask", "tell") if not callable(getattr(sampler, method, None))]
    if missing:
        raise UsageError(
            f"{where} has no method {' and no method '.join(missing)}; expected ask(number) and tell(…)"
        )
    return sampler  # type: ignore[no-any-return]
