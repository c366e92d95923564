"""Jobs as JSON: how clients send them to the supervisor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.decoding import FilePath, decode, field_values
from orchestrator.core.job import Job, Resources
from orchestrator.core.worker_spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobValues:
    """A :class:`Job` in JSON types."""

    job_id: str
    where: str
    spec: Mapping[str, Any]
    resources: Resources
    max_retries: int
    xml_source: FilePath | None = None
    allow_outside: bool = False
    folder: FilePath | None = None
    robot_settings: Mapping[str, Any] = field(default_factory=dict)
    point: Mapping[str, Any] = field(default_factory=dict)


def job_values(job: Job) -> dict[str, Any]:
    """Return a job in JSON types."""
    return {
        **field_values(job),
        "spec": job.spec.values(),
        "resources": field_values(job.resources),
        "xml_source": None if job.xml_source is None else str(job.xml_source),
        "folder": None if job.folder is None else str(job.folder),
        "robot_settings": dict(job.robot_settings),
        "point": dict(job.point),
    }


def job_from_values(values: Mapping[str, Any]) -> Job:
    """Return the job of :func:`job_values`. :raises ValueError: it is none."""
    read = decode(_JobValues, json.dumps(values))
    return Job(
        job_id=read.job_id,
        where=read.where,
        spec=WorkerSpec.from_json(json.dumps(read.spec)),
        resources=read.resources,
        max_retries=read.max_retries,
        xml_source=None if read.xml_source is None else Path(read.xml_source),
        allow_outside=read.allow_outside,
        folder=None if read.folder is None else Path(read.folder),
        robot_settings=read.robot_settings,
        point=read.point,
    )
