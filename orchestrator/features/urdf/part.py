"""What the spec of a job has of its URDF, or of what was added to its MJCF."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MjcfPart:
    mjcf: Mapping[str, Any] = field(default_factory=dict)
    """What was added to the MJCF of which the bundle in ``robot`` was made: its table of the job
    file, but for keys with their defaults; empty: nothing."""


MJCF_PART = JobPart(name="mjcf", settings=MjcfPart, loop=None)
PART = JobPart(name="urdf", settings=UrdfPart, loop=None)
