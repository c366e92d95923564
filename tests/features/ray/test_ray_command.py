"""The command with ``--executor ray`` on a real cluster of several nodes."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import Run, give, summary, wait_until, write_experiment
from ray_helpers import Cluster, options
from run_helpers import LONG, SHORT, weights

import orchestrator

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A job file, and the weights of its jobs when trained on this machine without Ray."""
    cwd = tmp_path_factory.mktemp("near")
    jobs = write_experiment(cwd, SHORT, {"name": "hopper", "xml": commands.HOPPER})
    assert give("run", jobs, "--run-dir", "local", cwd=cwd).returncode == 0
    assert all(weights(cwd / "local").values())
    return jobs, weights(cwd / "local")


@pytest.mark.parametrize("way", ["shared", "file"])
def test_an_experiment_on_two_nodes_has_the_same_weights_as_on_one_machine(
    tmp_path: Path, ray_cluster: Cluster, near: tuple[Path, dict[str, str]], way: str
) -> None:
    """``test_cluster_network.py`` shows it for streamed files."""
    between = tmp_path / "between"
    storage = f"file://{between}" if way == "file" else way
    with Run(near[0], *options(ray_cluster, "far", storage), cwd=tmp_path) as run:
        nodes = {run.until("launched")["node"] for _ in near[1]}
        if way == "file":
            wait_until(lambda: list(between.iterdir()), "a file in the storage")
        assert run.end() == 0, run.stderr
    assert run.stderr == "", "no messages of Ray"
    assert len(nodes) == 2
    assert weights(tmp_path / "far") == near[1]
    assert not list(between.glob("*")), "the storage is empty afterwards"
    shown = give("status", "far", cwd=tmp_path).stdout
    assert all(row["node"] in shown for row in summary(tmp_path / "far").values())


def rows(table: Path) -> int:
    return len(table.read_text().splitlines()) - 1 if table.exists() else 0


def test_files_are_synchronised_during_the_training_for_the_other_commands(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1], "checkpoint_every": 10_000_000})
    one, other = (tmp_path / f"stream/jobs/long-s{seed}" for seed in range(2))
    with Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as run:
        for _ in range(2):
            run.until("launched")
        for table in ("timings.csv", "progress.csv"):
            wait_until(lambda: rows(one / table) > 0, f"rows of {table}")  # noqa: B023 - called before it changes
            had = rows(one / table)
            wait_until(lambda: rows(one / table) > had, f"more rows of {table}")  # noqa: B023
        wait_until(lambda: rows(other / "timings.csv") > 0, "rows of the other")
        assert not list(one.glob("checkpoints/*.pt")), "they do not wait for a checkpoint"
        shown = give("logs", "stream", "long-s0", cwd=tmp_path)
        assert (shown.returncode, bool(shown.stdout)) == (0, True)
        assert give("stop", "stream", "long-s0", cwd=tmp_path).returncode == 0
        run.until("cancelled", "long-s0")
        assert give("retry", "stream", "long-s0", cwd=tmp_path).returncode == 0
        assert run.until("launched", "long-s0")["number"] == 1
        assert give("stop", "stream", cwd=tmp_path).returncode == 0
        assert run.end() == 130
    assert run.stderr == ""
    done = give("report", "stream", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "long-s1" in (tmp_path / "stream/report/index.html").read_text()


# -- versions


def test_a_node_with_other_code_or_versions_is_refused_with_the_list(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    jobs = write_experiment(tmp_path, SHORT)
    its_own = tmp_path / "its own"
    package = Path(orchestrator.__file__).parent
    shutil.copytree(package, its_own / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (its_own / package.name / "core/text.py").open("a") as file:
        file.write("# one line more\n")
    other_numpy = its_own / "numpy-1.0.0.dist-info"
    other_numpy.mkdir()
    (other_numpy / "METADATA").write_text(
        "HeadVersions-Version: 2.1\nName: numpy\nVersion: 1.0.0\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(its_own), prepend=os.pathsep)
        node = ray_cluster.add()
    try:
        done = give("run", jobs, *options(ray_cluster, "stream"), cwd=tmp_path)
    finally:
        ray_cluster.kill(node)
    assert done.returncode == 2, done.stderr
    assert "on 1 node of the cluster:" in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if ray_cluster.name(node) in line]
    assert f"numpy 1.0.0, here {importlib.metadata.version('numpy')}" in line
    assert "code of orchestrator " in line
    assert not (tmp_path / "stream/jobs").exists(), "nothing was launched"
