"""What the spec of a job has of its URDF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.job_parts import JobPart


@dataclass(frozen=True, slots=True, kw_only=True)
class UrdfPart:
    urdf: Mapping[str, Any] = field(default_factory=dict)
    """How the bundle in ``robot`` was made of a URDF: its table of the job file, but for where meshes
    were looked for; empty: it was none."""


PART = JobPart(name="urdf", settings=UrdfPart, written_without=("urdf",), loop=None)
