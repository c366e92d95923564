"""What the table ``urdf`` means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.features.urdf.part import UrdfPart
from orchestrator.jobfile.job_table_rules import JobTableRules

FOLDERS = "asset_paths"
"""Where meshes are looked for decides nothing: the copy of the robot has them."""


def _settings(merged: Mapping[str, Any]) -> UrdfPart:
    table = merged["urdf"].items()
    return UrdfPart(urdf={key: value for key, value in table if key != FOLDERS})


def _robot_settings(merged: Mapping[str, Any], base: Path) -> dict[str, Any]:
    table = merged["urdf"]
    folders = tuple(os.path.normpath(base / path) for path in table[FOLDERS])
    return {**table, FOLDERS: folders}


RULES = JobTableRules(settings=_settings, robot_settings=_robot_settings)
