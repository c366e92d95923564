"""Makes the sampler of a search once, to see whether that can be done.

    python -m orchestrator.features.search.searcher.sampler_child FOLDER

FOLDER has the declaration of the search where a run directory has it. If the sampler cannot be
made, the last line of the output says why.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import changed_search
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.searcher import samplers
from orchestrator.features.search.searcher.watchdog import Watchdog, tell
from orchestrator.server.companions import CANNOT_GO_ON


def main(folder: str) -> int:
    watchdog = Watchdog()
    watchdog.start_on_standard_input()
    try:
        experiment = changed_search.declared_experiment(RunPaths(Path(folder)))
        search = declaration_of(experiment).search
        assert search is not None
        with watchdog.time_limit(search.sampler, "constructor"):
            samplers.make(search, experiment.base)
    except OrchestratorError as error:
        tell(str(error))
        return CANNOT_GO_ON
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
    os._exit(code)  # whatever threads the sampler has begun
