"""The options of the executor of Ray."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.core.paths import RunPaths
from orchestrator.server.start import choose_executor


def test_the_address_and_the_storage_of_a_cluster_are_recorded_with_the_executor(
    tmp_path: Path,
) -> None:
    paths = RunPaths(tmp_path)
    facts = {"executor": "ray", "ray_address": "10.0.0.1:6379", "storage": "stream"}
    paths.provenance.write_text(json.dumps([facts]))
    taken = choose_executor(paths, None, {"storage": "shared"}, fresh=False)
    assert taken.kind.name == "ray"
    assert taken.options == {"ray_address": "10.0.0.1:6379", "storage": "shared"}
    named = "--executor=ray and --ray-address=10.0.0.1:6379 and --storage=shared"
    assert named in taken.reason
    elsewhere = choose_executor(paths, "local", {}, fresh=False)
    assert (elsewhere.kind.name, elsewhere.options, elsewhere.reason) == ("local", {}, "")
