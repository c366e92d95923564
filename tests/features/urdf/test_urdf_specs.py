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

from orchestrator.core import job_parts
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
WRITTEN = {
    "actuators": "motor",
    "base": "floating",
    "collision": "collision",
    "effort": None,
    "floor": None,
    "frequency": 5.0,
    "passive": ["tail_*"],
}
"""What they wrote of the table of a URDF."""
FINGERPRINTS = {
    "pony.xml": "54908b331bffb4e27c9947fb4ed2245004c1aae39466cd9c3c23ea9d3c61ede6",
    "pony.urdf": "2159ce46b02c23f11e9a79ab4d593322b800f4f20a24fcb9ed319c6c7e78b7fd",
}


@pytest.fixture
def specs(tmp_path: Path) -> dict[str, WorkerSpec]:
    tables: dict[str, Any] = {"pony.xml": {}, "pony.urdf": {"urdf": TABLE}}
    found = {}
    for name, table in tables.items():
        (tmp_path / name).write_text("<robot/>")
        entry = {"xml": name, "task": "forward", **table}
        found[name] = resolve(tmp_path, entry).jobs[0].spec
    return found


def test_specs_have_the_bytes_and_fingerprints_that_they_had(specs: dict[str, WorkerSpec]) -> None:
    changed = {**json.loads(PLAIN), "urdf": WRITTEN, "xml": "robot/pony.urdf"}
    assert specs["pony.xml"].to_json() == PLAIN
    assert specs["pony.urdf"].to_json() == json.dumps(changed, indent=2, sort_keys=True) + "\n"
    assert {name: spec.fingerprint() for name, spec in specs.items()} == FINGERPRINTS


def test_specs_are_read_as_they_were_declared(specs: dict[str, WorkerSpec]) -> None:
    for spec in specs.values():
        assert WorkerSpec.from_json(spec.to_json()) == spec
    without = json.loads(PLAIN)
    del without["urdf"]
    assert WorkerSpec.from_json(json.dumps(without)) == specs["pony.xml"]


def test_without_the_feature_a_robot_that_is_no_urdf_is_trained_and_a_urdf_is_not(
    specs: dict[str, WorkerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {name: spec.to_json() for name, spec in specs.items()}
    monkeypatch.setattr(job_parts, "job_parts", dict)
    read = {name: WorkerSpec.from_json(text) for name, text in texts.items()}
    read["pony.xml"].refuse_unknown()
    assert read["pony.xml"].fingerprint() == FINGERPRINTS["pony.xml"]
    assert read["pony.urdf"].unknown == {"urdf": WRITTEN}
    with pytest.raises(ValueError, match="declared with urdf, which nothing here can read"):
        read["pony.urdf"].refuse_unknown()
