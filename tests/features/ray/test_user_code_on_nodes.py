"""Python code of the user on the nodes of a real cluster."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import ray_helpers
from command_helpers import odd, write_experiment
from executor_helpers import PUPPET, make_launch, until_exit
from ray_helpers import Cluster

from orchestrator.core.processes.environment_variables import SEARCH_PATH_VARIABLE
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.ray_launcher import RayLauncher
from orchestrator.features.ray.user_code import CodeFolders
from orchestrator.jobfile import load
from orchestrator.machine.imported_code import code_folder, python_files
from orchestrator.machine.slots import RankSlot

pytestmark = pytest.mark.nightly


def test_nodes_with_other_code_get_the_drivers_until_the_session_ends(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    project = tmp_path / "project"
    experiment = load(write_experiment(project, odd("same", "nothing"), odd("other", "nothing")))
    (project / "large.py").write_text(
        os.urandom(1 << 20).hex()
    )  # too large for the arguments of a task
    expected = python_files(project)
    search_paths = {}
    with ray_helpers.compatible_nodes(ray_cluster, tmp_path) as nodes:
        folders = {code_folder(job.spec) for job in experiment.jobs}
        assert folders == {str(project)}
        code = CodeFolders(driver_directory=DriverDirectory.create(project))
        executor = RayLauncher(nodes=nodes, worker_command=PUPPET, code=code.code)
        with ray_cluster.further() as late:
            ray_helpers.until_used(nodes, late.node_id)
            node_ids = {"here": nodes.registry.driver_node, "late": late.node_id}
            for job_id in ("same-s0", "other-s0", "of no code"):
                if job_id == "other-s0":
                    (project / "odd.py").write_text("raise SystemExit('stale')")
                for name, node in node_ids.items():
                    launch = make_launch(tmp_path / name, job_id, [("look", None), ("exit", 0)])
                    its_own = None if job_id == "of no code" else str(project)
                    changes = {
                        "rank_slots": (RankSlot(node=node),),
                        "code_folder": its_own,
                        "code_name": "odd:make",
                    }
                    handle = executor.submit(dataclasses.replace(launch, cpus=(), **changes))
                    assert until_exit(executor, handle)[handle].returncode == 0
                    seen = json.loads((launch.job_dir / "seen.json").read_text())
                    search_paths[job_id, name] = seen.get(SEARCH_PATH_VARIABLE)
                    if job_id == "other-s0":
                        assert (
                            python_files(Path(search_paths[job_id, name])).items()
                            == expected.items()
                        )
            executor.close()
    assert search_paths["same-s0", "here"] == search_paths["same-s0", "late"] == str(project)
    assert search_paths["other-s0", "here"] != search_paths["other-s0", "late"], (
        "each node has its own copy"
    )
    assert search_paths["of no code", "here"] is search_paths["of no code", "late"] is None
    assert not Path(search_paths["other-s0", "here"]).exists(), "it was removed with the session"


# -- a cluster of the `cluster` commands
