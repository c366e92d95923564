"""Copies of robots: one of many on the disk where the file system can, and each its own all the same."""

from __future__ import annotations

import errno
import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core import atomic_files
from orchestrator.core.atomic_files import clone_file


def robot(folder: Path) -> Path:
    (folder / "staged/meshes").mkdir(parents=True)
    (folder / "staged/hopper.xml").write_text("<mujoco/>")
    (folder / "staged/meshes/torso.stl").write_bytes(b"mesh" * 1000)
    (folder / "staged/hopper.xml").chmod(0o600)
    return folder / "staged"


def test_an_edited_copy_leaves_the_other_copies_as_they_are(tmp_path: Path) -> None:
    staged = robot(tmp_path)
    for seed in "01":
        shutil.copytree(staged, tmp_path / seed, copy_function=clone_file)
    with (tmp_path / "0/meshes/torso.stl").open("r+b") as file:
        file.write(b"edited")
    (tmp_path / "0/hopper.xml").write_text("<mujoco>edited</mujoco>")
    for untouched in (staged, tmp_path / "1"):
        assert (untouched / "hopper.xml").read_text() == "<mujoco/>"
        assert (untouched / "meshes/torso.stl").read_bytes() == b"mesh" * 1000
    assert (tmp_path / "1/hopper.xml").stat().st_mode == (staged / "hopper.xml").stat().st_mode


@pytest.mark.parametrize("able", [True, False])
def test_blocks_are_shared_where_the_file_system_can(
    able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []

    def ioctl(target: Any, request: int, source: int) -> int:
        requests.append(request)
        if not able:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    clone_file(str(source), str(target))
    assert requests == [atomic_files.FICLONE]
    assert target.read_bytes() == (b"" if able else b"content")
