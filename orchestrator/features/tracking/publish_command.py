"""The command ``publish``: sends what a run directory has to a tracker."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.analysis.run_reader import read_json_object
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.job import TERMINAL
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.features.tracking import files
from orchestrator.features.tracking.publisher import CLASSES, Publisher
from orchestrator.features.tracking.track_settings import missing_package
from orchestrator.features.tracking.track_table import WANDB_PROJECT, WANDB_PROJECTS

OPTIONS = {"project": ("wandb", "trackio"), "mode": ("wandb",), "uri": ("mlflow",)}
"""Options of the command, and the trackers that have them."""


def publish(run_dir: Path, backend: str, chosen: Mapping[str, Any]) -> str:
    """Returns what was sent, in a sentence.

    :param chosen: options that are given on the command line, in place of those of the job file.
    :raises UsageError: the tracker is unknown, has no such option, is not installed, or is being
        told already.
    :raises OrchestratorError: it did not take everything.
    """
    if backend not in CLASSES:
        raise UsageError(
            f"publish: --to {backend}: unknown tracker; expected one of {', '.join(CLASSES)}"
        )
    for name in chosen:
        if backend not in OPTIONS[name]:
            raise UsageError(f"publish: --{name}: {backend} has no such option")
    if backend == "wandb" and not re.match(WANDB_PROJECT, chosen.get("project", backend)):
        raise UsageError(f"publish: --project: expected {WANDB_PROJECTS}, as W&B has them")
    if (missing := missing_package(backend)) is not None:
        raise UsageError(f"publish: {backend} {missing}")
    paths = run_directory.existing_run(run_dir)
    run_snapshot.refuse_benchmark(paths)
    declared = read_json_object(files.declaration_file(paths.root)) or {}
    options = {**dict(declared.get("trackers", {}).get(backend, {})), **chosen}
    name = declared.get("name") or paths.root.absolute().name
    failures: list[str] = []
    publisher = Publisher(
        paths=paths, experiment=name, backend=backend, options=options, report=failures.append
    )
    with contextlib.closing(publisher):
        publisher.lock()
        with run_directory.reading_ledger(paths) as ledger:
            rows = ledger.summary()
        # The second one begins where the first one gave up.
        is_complete = publisher.turn(rows, is_last=True) or publisher.turn(rows, is_last=True)
        states = [row["state"] for row in rows]
        destination = publisher.destination
    if failures and not is_complete:
        raise OrchestratorError(f"{run_dir}: {failures[0]}. The same command sends what is missing")
    ended = sum(state in TERMINAL for state in states)
    is_all = is_complete and ended == len(states)
    rest = "" if is_all else "; the same command sends what is still to come"
    return (
        f"{run_dir}: {ended} of {len(states)} jobs have ended, and what "
        f"there is has been sent to {destination}{rest}"
    )
