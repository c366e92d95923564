"""Copies of robots: one of many on the disk where the file system can, and each its own all the
same."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import DiskFullError, FileLimitError, disk_full_explained
from orchestrator.core.files import atomic_files, regular_files
from orchestrator.core.files.atomic_files import clone_tree, refuse_special_file


def robot(folder: Path) -> Path:
    (folder / "staged/meshes").mkdir(parents=True)
    (folder / "staged/hopper.xml").write_text("<mujoco/>")
    (folder / "staged/meshes/torso.stl").write_bytes(b"mesh" * 1000)
    (folder / "staged/hopper.xml").chmod(0o600)
    return folder / "staged"


def test_an_edited_copy_leaves_the_other_copies_as_they_are(tmp_path: Path) -> None:
    staged = robot(tmp_path)
    for seed in "01":
        clone_tree(staged, tmp_path / seed)
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
    source.mkdir()
    (source / "file").write_bytes(b"content")
    clone_tree(source, target)
    assert requests == [atomic_files.FICLONE]
    assert (target / "file").read_bytes() == (b"" if able else b"content")


def test_a_copy_that_is_not_whole_can_be_read_by_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, modes = robot(tmp_path), []
    (staged / "hopper.xml").chmod(0o644)
    staged.chmod(0o755)
    copied = shutil.copystat

    def copystat(source: Path, target: Path) -> None:
        modes.append(stat.S_IMODE(target.stat().st_mode))
        copied(source, target)

    monkeypatch.setattr(shutil, "copystat", copystat)
    clone_tree(staged, tmp_path / "copy")
    assert sorted(modes) == [0o600, 0o600, 0o700, 0o700]
    for path in (staged, *staged.rglob("*")):
        copy = tmp_path / "copy" / path.relative_to(staged)
        assert (copy.stat().st_mode, copy.stat().st_mtime_ns) == (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
        )


def test_a_disk_that_fills_up_while_a_robot_is_copied_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copyfileobj(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    staged = robot(tmp_path)
    (
        staged / "hopper.xml"
    ).unlink()  # the disk has room for the first folder, and none for what is in the next
    monkeypatch.setattr(shutil, "copyfileobj", copyfileobj)
    with pytest.raises(DiskFullError), disk_full_explained(tmp_path):
        clone_tree(staged, tmp_path / "copy")


def test_a_file_that_reaches_the_limit_on_its_size_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(FileLimitError), disk_full_explained(tmp_path):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def test_a_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 1001)
    assert regular_files.read_regular(tmp_path / "large", 1001) == b"x" * 1001
    with pytest.raises(ValueError, match="larger than"):
        regular_files.read_regular(tmp_path / "large", 1000)


def test_a_target_that_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to("pipe")
    for name in ("pipe", "stdout", "."):
        with pytest.raises(OSError):
            refuse_special_file(tmp_path / name)
    for link in ("/dev/stdout", "/proc/self/fd/0"):  # the target may be a regular file
        with pytest.raises(OSError):
            refuse_special_file(Path(link))
    (tmp_path / "old").write_text("old")
    refuse_special_file(tmp_path / "old")
    refuse_special_file(tmp_path / "new")
