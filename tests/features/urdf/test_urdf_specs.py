"""``spec.json`` and fingerprints of jobs with a URDF, and of those without one, are those of the versions
in which URDFs were no feature."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import resolve
from spec_helpers import written

from orchestrator.core.worker_spec import WorkerSpec

TABLE = {"base": "floating", "passive": ["tail_*"]}
PLAIN = written(
    job_id="pony-s0",
    name="pony",
    preview=find_spec("orchestrator.features.pictures") is not None,
    task="forward",
    total_timesteps=200000,
    urdf={},
    xml="robot/pony.xml",
)
"""``spec.json`` of an MJCF, as those versions wrote it."""


@pytest.fixture
def specs(tmp_path: Path) -> dict[str, WorkerSpec]:
    tables: dict[str, Any] = {"pony.xml": {}, "pony.urdf": {"urdf": TABLE}}
    found = {}
    for name, table in tables.items():
        (tmp_path / name).write_text("<robot/>")
        entry = {"xml": name, "task": "forward", **table}
        found[name] = resolve(tmp_path, entry).jobs[0].spec
    return found


def test_specs_are_read_as_they_were_declared(specs: dict[str, WorkerSpec]) -> None:
    for spec in specs.values():
        assert WorkerSpec.from_json(spec.to_json()) == spec
    without = json.loads(PLAIN)
    del without["urdf"]
    assert WorkerSpec.from_json(json.dumps(without)) == specs["pony.xml"]
