"""What ``[track]`` names: trackers with their options, and the packages that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from orchestrator.core.text import install_extra, is_installed, joined
from orchestrator.features.tracking.track_table import TrackTable
from orchestrator.keys.feature_tables import FeatureTable
from orchestrator.keys.problems import Problems

Backend: TypeAlias = Literal["tensorboard", "wandb", "mlflow"]
Trackers: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The options of each tracker, by its name; only keys that were set."""


def read_trackers(table: Mapping[str, Any], problems: Problems) -> Trackers:
    """The trackers that ``[track]`` names; a missing package is a problem.

    :param table: the keys that the user has written, each valid by itself.
    """
    chosen = {
        name: {} if options is True else dict(options)
        for name, options in table.items()
        if options is not False
    }
    for name in chosen:
        if not is_installed(name):
            missing = f"needs the package {name}, which is not installed here"
            problems.add(f"track.{name}", f"{missing}: {install_extra(name)}")
    return chosen


def lines(trackers: Trackers) -> Iterator[str]:
    if trackers:
        yield f"track: {joined(trackers)}"


def facts(trackers: Trackers) -> dict[str, dict[str, Any]]:
    return {name: dict(options) for name, options in trackers.items()}


TABLE = FeatureTable(
    name="track",
    about="Experiment trackers that are told of every job: TensorBoard, W&B, MLflow.",
    model=TrackTable,
    read=read_trackers,
    lines=lines,
    facts=facts,
)
