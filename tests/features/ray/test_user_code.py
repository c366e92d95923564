"""Python code of the user: which files are copied to nodes, and which code a node uses."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import make_job, make_spec

from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.environment_variables import SEARCH_PATH_VARIABLE
from orchestrator.features.ray import user_code
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.ray_executor import RayExecutor
from orchestrator.features.ray.user_code import CodeFolders, UserCode
from orchestrator.machine import imported_code
from orchestrator.machine.imported_code import digest, python_files

CODE = {
    "tasks.py": b"import parts.legs\n",
    "parts/legs.py": b"LEGS = 4\n",
    "parts/__init__.py": b"",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "project", CODE)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


# -- the files copied to nodes


def test_only_python_files_are_copied(folder: Path) -> None:
    write_files(
        folder,
        dict.fromkeys(
            [
                *(
                    "data.npy",
                    "jobs.toml",
                    ".hidden.py",
                    ".git/hook.py",
                    "parts/__pycache__/legs.py",
                    "odd.pyc",
                ),
                *(
                    "venv/pyvenv.cfg",
                    "venv/lib/site.py",
                    "conda/conda-meta/history",
                    "conda/lib/site.py",
                ),
                *(f"runs/walk/{RunPaths(Path()).ledger}", "runs/walk/jobs/a/robot/left.py"),
            ],
            b"",
        ),
    )
    (folder / "gone.py").symlink_to("nowhere.py")
    os.mkfifo(folder / "pipe.py")
    assert python_files(folder) == CODE
    assert python_files(folder / "nowhere") == {}


@pytest.mark.parametrize(
    ("limit", "most", "message"),
    [
        ("MOST_FILES", 2, "2 Python files"),
        ("MOST_FOLDERS", 1, "1 folders"),
        ("MOST_MIB", 0, "0 MiB"),
    ],
)
def test_too_many_files_are_refused_with_the_limit_and_a_hint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, message: str
) -> None:
    monkeypatch.setattr(imported_code, limit, most)
    with pytest.raises(UsageError, match=f"^{folder}: jobs import .* more than .*{message}"):
        python_files(folder)


def test_a_job_whose_code_cannot_be_copied_is_refused_before_its_launch(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imported_code, "MOST_FILES", 2)
    backend = object.__new__(RayExecutor)
    backend._code = CodeFolders(driver_directory=DriverDirectory.create(tmp_path))
    job = make_job("a", spec={"entry_point": "tasks:make", "search_path": str(folder)})
    (problem,) = backend.problems(job)
    assert problem.where == "jobs[0]"
    assert "more than 5,000 folders, 2 Python files" in problem.message


@pytest.mark.parametrize(
    ("changes", "is_copied"),
    [
        ({"task": "balance"}, False),
        ({"env": "Ant-v5", "search_path": "/p"}, False),
        ({"env": "my_envs:Ant-v9", "search_path": "/p"}, True),
        ({"entry_point": "my_envs:make", "search_path": "/p"}, True),
        ({"task": "my_tasks:Jump", "search_path": "/p"}, True),
    ],
)
def test_only_jobs_that_name_a_module_have_code(changes: dict[str, Any], is_copied: bool) -> None:
    spec = make_spec("a", **{"env": None, **changes})
    assert imported_code.code_folder(spec) == ("/p" if is_copied else None)


# -- the code that a node uses


def search_path(code: UserCode, scratch: Path) -> Path:
    """Where a worker on this machine finds the code."""
    (name, value), *others = code.variables(scratch, "the driver's node").items()
    assert (name, others) == (SEARCH_PATH_VARIABLE, [])
    return Path(value)


@pytest.fixture
def code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserCode]:
    """As copied by a driver on this machine, which is asked without Ray."""
    monkeypatch.setattr(user_code, "_fetch", lambda copy, driver_node: copy.read_bytes())
    (tmp_path / "run").mkdir()
    driver_directory = DriverDirectory.create(tmp_path / "run")
    copy = driver_directory.keep("code", pickle.dumps(python_files(folder)))
    yield UserCode(folder=str(folder), digest=digest(CODE), copy=copy)
    driver_directory.remove()
    assert not list((tmp_path / "run").iterdir())


def test_a_folder_with_the_same_code_is_used(folder: Path, code: UserCode, tmp_path: Path) -> None:
    write_files(folder, {"data.npy": b"", "__pycache__/tasks.py": b""})
    assert search_path(code, tmp_path / "scratch") == folder
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    "change", ["gone", "edited", "one more", "one less", "renamed", "too much"]
)
def test_a_different_folder_is_replaced_by_a_copy(
    folder: Path, code: UserCode, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match change:
        case "gone":
            shutil.rmtree(folder)
        case "edited":
            (folder / "parts/legs.py").write_bytes(b"LEGS = 5\n")
        case "one more":
            write_files(folder, {"parts/random.py": b""})
        case "one less":
            (folder / "parts/__init__.py").unlink()
        case "renamed":
            (folder / "parts").rename(folder / "limbs")
        case "too much":
            monkeypatch.setattr(imported_code, "MOST_FILES", 1)
    place = search_path(code, tmp_path / "scratch")
    assert place == tmp_path / "scratch/code" / code.digest
    assert {
        path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*.py")
    } == CODE


def test_the_code_is_fetched_once(
    folder: Path, code: UserCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder)
    copy = search_path(code, tmp_path)
    monkeypatch.setattr(user_code, "_fetch", lambda *_: pytest.fail("fetched again"))
    assert search_path(code, tmp_path) == copy
