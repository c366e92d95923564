"""Tests of this folder start no process (and import no training library, see ``test_imports.py``);
shared fixtures."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

platform.platform()  # Python asks a command for a part of it, once in a process


def refuse(*arguments: object, **_: object) -> NoReturn:
    pytest.fail(f"a test in tests/unit starts a process; move it to tests/process: {arguments[1:]}")


def _without_processes() -> Generator[None, Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refuse)
        patch.setattr(os, "fork", refuse)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _without_processes())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _without_processes())


# -- of test_jobfile*.py


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder ``jobs`` with robots beside it, as in the repository."""
    root = tmp_path_factory.mktemp("project")
    (root / "jobs").mkdir()
    for name in (
        "hopper.xml",
        "zoo/ant.xml",
        "zoo/bug.xml",
        "menagerie/go1/scene.xml",
        "menagerie/spot/scene.xml",
    ):
        path = root / "mjcf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<mujoco/>")
    (root / "mjcf" / "empty").mkdir()
    return root / "jobs"


@pytest.fixture
def write(place: Path) -> Callable[..., Path]:
    def write(text: str | bytes, name: str = "robots.toml") -> Path:
        path = place / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
