"""Code of the user's own on the nodes of a cluster: what travels, when, and what is found there in the end."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cluster_helpers as helpers
import pytest
import ray_helpers
from command_helpers import odd, summary, write_experiment
from executor_helpers import PUPPET, make_launch, until_exit
from ray_helpers import Cluster

from orchestrator.core.environment import SEARCH_PATH_VARIABLE
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.ray import user_code
from orchestrator.executors.ray.ray_executor import RayExecutor
from orchestrator.executors.ray.user_code import UserCode, digest, python_files
from orchestrator.jobfile import load
from orchestrator.machine.slots import RankSlot

CODE = {"tasks.py": b"import parts.legs\n", "parts/legs.py": b"LEGS = 4\n", "parts/__init__.py": b""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "project", CODE)


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


# -- what travels


def test_python_files_travel_and_nothing_else(folder: Path) -> None:
    written(
        folder,
        dict.fromkeys(
            [
                *("data.npy", "jobs.toml", ".hidden.py", ".git/hook.py", "parts/__pycache__/legs.py", "odd.pyc"),
                *("venv/pyvenv.cfg", "venv/lib/site.py", "conda/conda-meta/history", "conda/lib/site.py"),
                *(f"runs/walk/{RunPaths(Path()).ledger}", "runs/walk/jobs/a/robot/left.py"),
            ],
            b"",
        ),
    )
    (folder / "gone.py").symlink_to("nowhere.py")
    os.mkfifo(folder / "pipe.py")
    assert python_files(folder) == CODE
    assert python_files(folder / "nowhere") == {}


def test_links_are_followed_but_not_in_a_circle(folder: Path, tmp_path: Path) -> None:
    written(tmp_path / "elsewhere", {"arms.py": b"ARMS = 2\n"})
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    for circle in (folder / "parts/all", tmp_path / "elsewhere/project"):
        circle.symlink_to(folder)
    assert python_files(folder) == {**CODE, "more/arms.py": b"ARMS = 2\n"}


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [("MOST_FILES", 2, "2 Python files"), ("MOST_FOLDERS", 1, "1 folders"), ("MOST_MIB", 0, "0 MiB of Python files")],
)
def test_too_much_is_refused_with_the_limit_and_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, said: str
) -> None:
    monkeypatch.setattr(user_code, limit, most)
    with pytest.raises(UsageError, match=f"^{folder}: jobs import .* more than {said} below it. Put job file and code"):
        python_files(folder)


@pytest.mark.parametrize(
    ("changes", "travels"),
    [
        ({"task": "balance"}, False),
        ({"env": "Ant-v5", "search_path": "/p"}, False),
        ({"env": "my_envs:Ant-v9", "search_path": "/p"}, True),
        ({"entry_point": "my_envs:make", "search_path": "/p"}, True),
        ({"task": "my_tasks:Jump", "search_path": "/p"}, True),
    ],
)
def test_only_jobs_that_name_a_module_have_code(changes: dict[str, Any], travels: bool) -> None:
    spec = WorkerSpec(
        job_id="a",
        name="a",
        seed=0,
        algo="ppo",
        learner="auto",
        total_timesteps=1,
        n_envs=1,
        normalize=False,
        checkpoint_every=1,
        eval_episodes=0,
        **changes,
    )
    assert user_code.code_folder(spec) == ("/p" if travels else None)


# -- what is found on a node


def variable(code: UserCode, scratch: Path) -> Path:
    """Where a worker on this machine finds the code; what travels is the object itself."""
    (name, value), *others = code.variables(scratch, lambda files: files).items()
    assert (name, others) == (SEARCH_PATH_VARIABLE, [])
    return Path(value)


@pytest.fixture
def code(folder: Path) -> UserCode:
    files = python_files(folder)
    return UserCode(folder=str(folder), digest=digest(files), files=files)


def test_the_same_folder_is_used_as_it_is(folder: Path, code: UserCode, tmp_path: Path) -> None:
    written(folder, {"data.npy": b"", "__pycache__/tasks.py": b""})
    assert variable(code, tmp_path / "scratch") == folder
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("change", ["gone", "edited", "one more", "one less", "renamed", "too much"])
def test_another_folder_is_not(
    folder: Path, code: UserCode, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match change:
        case "gone":
            shutil.rmtree(folder)
        case "edited":
            (folder / "parts/legs.py").write_bytes(b"LEGS = 5\n")
        case "one more":
            written(folder, {"parts/random.py": b""})
        case "one less":
            (folder / "parts/__init__.py").unlink()
        case "renamed":
            (folder / "parts").rename(folder / "limbs")
        case "too much":
            monkeypatch.setattr(user_code, "MOST_FILES", 1)
    place = variable(code, tmp_path / "scratch")
    assert place == tmp_path / "scratch/code" / code.digest
    assert {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*.py")} == CODE


def test_what_is_not_here_comes_once(folder: Path, code: UserCode, tmp_path: Path) -> None:
    shutil.rmtree(folder)
    place = variable(code, tmp_path)

    def never(files: object) -> Mapping[str, bytes]:
        raise AssertionError("it is here already")

    assert code.variables(tmp_path, never) == {SEARCH_PATH_VARIABLE: str(place)}


def test_of_two_attempts_that_bring_it_at_a_time_both_find_it(folder: Path, code: UserCode, tmp_path: Path) -> None:
    shutil.rmtree(folder)

    def fetch(files: Any) -> Mapping[str, bytes]:
        variable(code, tmp_path)  # another attempt, which is faster
        return files  # type: ignore[no-any-return]

    place = Path(code.variables(tmp_path, fetch)[SEARCH_PATH_VARIABLE])
    assert python_files(place) == CODE
    assert list((tmp_path / "code").iterdir()) == [place], "nothing half made is left"


# -- with Ray


@pytest.mark.ray
def test_nodes_with_other_code_get_the_drivers_and_give_it_back(tmp_path: Path, ray_cluster: Cluster) -> None:
    project = tmp_path / "project"
    experiment = load(write_experiment(project, odd("same", "nothing"), odd("other", "nothing")))
    written(project, {"large.py": os.urandom(1 << 20).hex().encode()})  # too much to go with the task itself
    packed = python_files(project)
    places = {}
    with ray_helpers.compatible_nodes(ray_cluster, tmp_path) as nodes:
        code = user_code.upload(experiment.jobs)
        assert {of_job.folder for of_job in code.values()} == {str(project)}
        executor = RayExecutor(nodes=nodes, worker_command=PUPPET, code=code)
        with ray_cluster.further() as late:
            ray_helpers.until_used(nodes, late.node_id)
            node_ids = {"here": nodes.driver_node, "late": late.node_id}
            for job_id in ("same-s0", "other-s0", "of no code"):
                if job_id == "other-s0":
                    (project / "odd.py").write_text("raise SystemExit('stale')")
                for name, node in node_ids.items():
                    launch = make_launch(tmp_path / name, job_id, [("look", None), ("exit", 0)])
                    handle = executor.submit(dataclasses.replace(launch, cpus=(), rank_slots=(RankSlot(node=node),)))
                    assert until_exit(executor, handle)[handle].returncode == 0
                    seen = json.loads((launch.job_dir / "seen.json").read_text())
                    places[job_id, name] = seen.get(SEARCH_PATH_VARIABLE)
                    if job_id == "other-s0":
                        assert python_files(Path(places[job_id, name])).items() == packed.items()
            executor.close()
    assert places["same-s0", "here"] == places["same-s0", "late"] == str(project)
    assert places["other-s0", "here"] != places["other-s0", "late"], "each in its own node's place"
    assert places["of no code", "here"] is places["of no code", "late"] is None
    assert not Path(places["other-s0", "here"]).exists(), "it has gone with the session"


# -- a cluster as users have it

SPEAKING = """
import os, warnings
warnings.warn("the knee creaks")
print("odd is", os.path.dirname(__file__))
print("Ray's:", [name for name, value in os.environ.items() if name.startswith("RAY_") or value.startswith("ray.")])
"""


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A run over a head and a node that does not see the job file's folder: the run directory, and that folder."""
    project = tmp_path_factory.mktemp("project")
    hide = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {project} && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to hide a folder by a mount here")
    jobs = write_experiment(project, odd("a", "nothing", seeds=list(range(6))))
    (project / "odd.py").write_text(SPEAKING + (project / "odd.py").read_text())
    with helpers.machines((), hide) as (head, node):
        address = f"127.0.0.1:{helpers.free_port()}"
        head.done("up", "--address", "127.0.0.1", "--port", address.partition(":")[2])
        node.take_token_of(head)
        node.done("join", address)
        run_dir = head.home / "run"
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
        yield run_dir, project


def logs(run_dir: Path) -> dict[str, str]:
    """Node → the log of one of its attempts."""
    rows = summary(run_dir)
    return {row["node"]: (run_dir / f"jobs/{job_id}/attempts/0/worker.log").read_text() for job_id, row in rows.items()}


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_node_that_does_not_see_the_folder_trains_with_its_code(blind: tuple[Path, Path]) -> None:
    run_dir, project = blind
    places = [line for log in logs(run_dir).values() for line in log.splitlines() if line.startswith("odd is ")]
    assert len(places) == 2
    assert f"odd is {project}" in places
    assert {row["state"] for row in summary(run_dir).values()} == {"SUCCEEDED"}


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_workers_see_no_variable_of_rays_and_show_warnings_as_python_does(blind: tuple[Path, Path]) -> None:
    for log in logs(blind[0]).values():
        assert "Ray's: []" in log
        assert "UserWarning: the knee creaks" in log
