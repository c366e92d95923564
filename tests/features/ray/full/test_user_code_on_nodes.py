"""Python code of the user on the nodes of a real cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_helpers as helpers
import pytest
import ray_helpers
from cluster_helpers import Machine
from command_helpers import odd, summary, write_experiment
from executor_helpers import PUPPET, make_launch, until_exit
from ray_helpers import Cluster

from orchestrator.core.processes.environment_variables import SEARCH_PATH_VARIABLE
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.ray_executor import RayExecutor
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
        executor = RayExecutor(nodes=nodes, worker_command=PUPPET, code=code.code)
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

PRINTING = """
import os, warnings
warnings.warn("the knee creaks")
print("odd is", os.path.dirname(__file__))
print("Ray's:", [name for name, value in os.environ.items() if name.startswith("RAY_") or value.startswith("ray.")])
"""


SAMPLER = """
class Own:
    def __init__(self, **_):
        pass

    def ask(self, number):
        return {"ppo.learning_rate": 0.001 * (number + 1)}

    def tell(self, number, point, outcome):
        pass
"""


@pytest.fixture(scope="module")
def hidden_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Path]]:
    """The head of a cluster, and a project folder that it sees, and the other node does not."""
    project = tmp_path_factory.mktemp("project")
    hide = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {project} && exec "$@"', "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*hide, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no permission to hide a folder by a mount")
    with helpers.machines((), hide) as (head, node):
        address = f"127.0.0.1:{helpers.free_port()}"
        head.done("up", "--address", "127.0.0.1", "--port", address.partition(":")[2])
        node.take_token_of(head)
        node.done("join", address)
        yield head, project


def run_on_both(head: Machine, jobs: Path, name: str) -> Path:
    """Run a job file whose module ``odd`` says where it is; returns the run directory, on the
    head."""
    odd_module = jobs.with_name("odd.py")
    odd_module.write_text(PRINTING + odd_module.read_text())
    run_dir = head.home / name
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "run",
        str(jobs),
        "--run-dir",
        str(run_dir),
        "--executor",
        "ray",
    ]
    done = head.run([*command, "--ray-address", "auto"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "import code from" not in done.stderr
    return run_dir


@pytest.fixture(scope="module")
def hidden_folder_run(hidden_folder: tuple[Machine, Path]) -> tuple[Path, Path]:
    """Run directory and project folder of a run on a head, which sees the folder, and on a node,
    which does not."""
    head, project = hidden_folder
    return run_on_both(
        head, write_experiment(project, odd("a", "nothing", seeds=[0, 1])), "run"
    ), project


def logs(run_dir: Path) -> dict[str, str]:
    """Node → log of one of its attempts."""
    rows = summary(run_dir)
    return {
        row["node"]: (run_dir / f"jobs/{job_id}/attempts/0/worker.log").read_text()
        for job_id, row in rows.items()
    }


@pytest.mark.timeout(600)
def test_a_node_that_does_not_see_the_folder_uses_its_code(
    hidden_folder_run: tuple[Path, Path],
) -> None:
    run_dir, project = hidden_folder_run
    search_paths = [
        line
        for log in logs(run_dir).values()
        for line in log.splitlines()
        if line.startswith("odd is ")
    ]
    assert len(search_paths) == 2
    assert f"odd is {project}" in search_paths
    assert {row["state"] for row in summary(run_dir).values()} == {"SUCCEEDED"}


@pytest.mark.timeout(600)
def test_workers_have_no_variables_of_ray_and_print_warnings_as_usual(
    hidden_folder_run: tuple[Path, Path],
) -> None:
    for log in logs(hidden_folder_run[0]).values():
        assert "Ray's: []" in log
        assert "UserWarning: the knee creaks" in log


@pytest.mark.timeout(600)
def test_the_trials_of_a_search_use_its_code_wherever_they_train_on(
    hidden_folder: tuple[Machine, Path],
) -> None:
    """Environment and sampler are the user's; trials pause at a rung, and go on where there is
    room."""
    pytest.importorskip("orchestrator.features.search")
    head, project = hidden_folder
    search = """
[search]
sampler = "own:Own"
objective = "ep_rew_mean"
trials = 4
[search.space]
"ppo.learning_rate" = { low = 1e-4, high = 1e-2 }
[search.scheduler]
min_env_steps = 128
factor = 2
"""
    folder = project / "search"
    jobs = write_experiment(folder, odd("a", "nothing"))
    jobs.write_text(jobs.read_text() + search)
    (folder / "own.py").write_text(SAMPLER)
    run_dir = run_on_both(head, jobs, "search")
    rows: dict[str, Any] = summary(run_dir)
    assert list(rows) == [f"a-t{number:05d}-s0" for number in range(4)]
    assert [row["ppo.learning_rate"] for row in rows.values()] == [0.001, 0.002, 0.003, 0.004]
    assert {row["state"] for row in rows.values()} == {"SUCCEEDED", "PAUSED"}
    assert len({row["node"] for row in rows.values()}) == 2
    # A trial that was paused may go on at the other node: the logs of all attempts are read.
    printed = {
        line
        for log in run_dir.glob("jobs/*/attempts/*/worker.log")
        for line in log.read_text().splitlines()
        if line.startswith("odd is ")
    }
    assert f"odd is {folder}" in printed
    assert len(printed) == 2
