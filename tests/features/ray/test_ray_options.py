"""The options of the executor of Ray."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.core.paths import RunPaths
from orchestrator.experiment.planning import run_executor
from orchestrator.experiment.planning.run_plan import RunOptions


def test_the_address_and_the_storage_of_a_cluster_are_recorded_with_the_executor(
    tmp_path: Path,
) -> None:
    paths = RunPaths(tmp_path)
    facts = {"executor": "ray", "ray_address": "10.0.0.1:6379", "storage": "stream"}
    paths.provenance.write_text(json.dumps([facts]))
    asked = RunOptions(run_dir=paths.root, executor_options={"storage": "shared"})
    taken = run_executor.of_unclaimed(asked)
    assert taken.executor == "ray"
    assert taken.executor_options == {"ray_address": "10.0.0.1:6379", "storage": "shared"}
    explanation = run_executor.explanation(asked, taken)
    assert "--executor=ray and --ray-address=10.0.0.1:6379 and --storage=shared" in explanation
    elsewhere = run_executor.of_unclaimed(RunOptions(run_dir=paths.root, executor="local"))
    assert (elsewhere.executor, elsewhere.executor_options) == ("local", {})
