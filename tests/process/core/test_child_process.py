"""Child processes find this package, and one that could not be set up is not left running."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core.processes.child_process import PACKAGE_IS_INSTALLED, PACKAGE_PARENT, spawn
from orchestrator.core.processes.procfs import is_running


def test_a_child_that_cannot_be_confined_to_its_cpus_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def refuse(pid: int, cpus: object) -> None:
        started.append(pid)
        raise OSError(errno.EINVAL, "none of these CPUs may be used")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(OSError):
        spawn([sys.executable, "-c", "import time; time.sleep(60)"], folder=tmp_path, cpus={0})
    assert len(started) == 1
    assert not is_running(started[0])


def test_the_package_is_found_by_its_path_alone_from_any_folder(tmp_path: Path) -> None:
    """Without ``site``, as where the package is not installed."""
    subprocess.run(
        [sys.executable, "-S", "-c", "import orchestrator.core.errors"],
        cwd=tmp_path,
        env={"PYTHONPATH": PACKAGE_PARENT},
        check=True,
    )
    assert Path(PACKAGE_PARENT, "orchestrator", "__init__.py").is_file()
    is_in_site_packages = "site-packages" in Path(PACKAGE_PARENT).parts
    assert is_in_site_packages == PACKAGE_IS_INSTALLED
