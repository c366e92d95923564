"""What the tables ``urdf`` and ``mjcf`` mean."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.features.urdf.part import MjcfPart, UrdfPart
from orchestrator.features.urdf.settings import MjcfSettings, UrdfSettings
from orchestrator.jobfile.job_table_rules import JobTableRules

FOLDERS = "asset_paths"
"""Where meshes are looked for decides nothing: the copy of the robot has them."""


def _settings(merged: Mapping[str, Any]) -> UrdfPart:
    table = {"base": UrdfSettings().base, **_without_unset_base(merged["urdf"])}
    return UrdfPart(urdf={key: value for key, value in table.items() if key != FOLDERS})


def _without_unset_base(table: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` is left out where nobody has set it: of a robot on legs, that is worth a warning."""
    return {key: value for key, value in table.items() if key != "base" or value is not None}


def _is_set(table: Mapping[str, Any], key: str) -> bool:
    """Whether a key of a table says anything. Lists of settings are tuples, and of tables lists."""
    default = getattr(MjcfSettings(), key)
    return bool(table[key] != (list(default) if isinstance(default, tuple) else default))


def _robot_settings(merged: Mapping[str, Any], base: Path) -> dict[str, Any]:
    settings = _without_unset_base(merged["urdf"])
    if FOLDERS in settings:
        settings[FOLDERS] = tuple(os.path.normpath(base / path) for path in settings[FOLDERS])
    return settings


def _mjcf_settings(merged: Mapping[str, Any]) -> MjcfPart:
    return MjcfPart(mjcf=_added_to_mjcf(merged, Path()))


def _added_to_mjcf(merged: Mapping[str, Any], _: Path) -> dict[str, Any]:
    """Nothing where the table says nothing: the robot is then taken as it is."""
    table = merged["mjcf"]
    return {key: value for key, value in table.items() if _is_set(table, key)}


MJCF_RULES = JobTableRules(settings=_mjcf_settings, robot_settings=_added_to_mjcf)
RULES = JobTableRules(settings=_settings, robot_settings=_robot_settings)
