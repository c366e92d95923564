"""What ``[track]`` names: trackers with their options, and the packages that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from orchestrator.core.text import install_extra, is_installed, joined
from orchestrator.features.tracking.track_table import TrackTable
from orchestrator.keys.feature_tables import FeatureTable
from orchestrator.keys.problems import Problems

Backend: TypeAlias = Literal["tensorboard", "wandb", "mlflow", "trackio"]
Trackers: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The options of each tracker, by its name; only keys that were set."""
WITHOUT_PINS = ("trackio",)
"""Extras with packages that do not agree with ``constraints.txt``."""


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
        if (missing := missing_package(name)) is not None:
            problems.add(f"track.{name}", missing)
    return chosen


def missing_package(backend: str) -> str | None:
    """Says what to install if the package of a tracker is not installed."""
    if is_installed(backend):
        return None
    advice = install_extra(backend, pinned=backend not in WITHOUT_PINS)
    return f"needs the package {backend}, which is not installed here: {advice}"


def lines(trackers: Trackers) -> Iterator[str]:
    if trackers:
        yield f"track: {joined(trackers)}"


def facts(trackers: Trackers) -> dict[str, dict[str, Any]]:
    return {name: dict(options) for name, options in trackers.items()}


TABLE = FeatureTable(
    name="track",
    about="Experiment trackers that are told of every job: TensorBoard, W&B, MLflow, Trackio.",
    model=TrackTable,
    read=read_trackers,
    lines=lines,
    facts=facts,
)
