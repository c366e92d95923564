"""Temporary folders of killed processes are removed at the next start; those in use are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from command_helpers import bow_to_permissions

REPOSITORY = Path(__file__).parents[3]
HOLD = """
from orchestrator.core.files.temporary_folder import TemporaryFolder
with TemporaryFolder() as folder:
    print(folder, flush=True)
    input()
"""


def holder(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a temporary folder until its standard input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": "."},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start_and_no_other(
    tmp_path: Path,
) -> None:
    foreign = tmp_path / "preflight-of-another-program"
    foreign.mkdir()
    killed, left = holder(tmp_path)
    alive, used = holder(tmp_path)
    (left / "robot").mkdir()
    (left / "robot" / "mesh.stl").write_text("mesh")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.exists()
    os.utime(left, (0, 0))  # a new one may not be locked yet
    third, new = holder(tmp_path)
    assert not left.exists()
    assert used.exists()
    assert new.exists()
    for process in (alive, third):
        process.communicate("\n")
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_forked_process_that_ends_leaves_the_folders_of_its_parent(tmp_path: Path) -> None:
    """In whatever way it ends: normally, with the last reference, or out of the block."""
    program = """
import os, sys
from orchestrator.core.files.temporary_folder import TemporaryFolder
held, blocks = TemporaryFolder(), TemporaryFolder()
with blocks:
    for way in ("exit", "collected", "block"):
        child = os.fork()
        if child == 0:
            if way == "collected":
                del held
            if way == "block":
                break
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(way, os.path.isdir(held.name), os.path.isdir(blocks.name), flush=True)
    else:
        held.cleanup()
        print("cleaned", os.path.isdir(held.name), os.path.isdir(blocks.name), flush=True)
if child:
    print("after", os.path.isdir(blocks.name))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": "."}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        *(f"{way} True True" for way in ("exit", "collected", "block")),
        "cleaned False True",
        "after False",
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_read_only_folders_in_it_is_removed(tmp_path: Path) -> None:
    program = """
import pathlib
from orchestrator.core.files.temporary_folder import TemporaryFolder
with TemporaryFolder() as folder:
    meshes = pathlib.Path(folder, "copy/meshes")
    meshes.mkdir(parents=True)
    (meshes / "leg.stl").write_text("mesh")
    for path in (meshes, meshes.parent):
        path.chmod(0o500)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": "."}
    command = [sys.executable, "-c", program]
    subprocess.run(
        command, cwd=REPOSITORY, env=environment, preexec_fn=bow_to_permissions, check=True
    )
    assert list(tmp_path.iterdir()) == []


def test_folders_are_made_while_others_sweep(tmp_path: Path) -> None:
    """A folder is there for an instant before it is locked; a sweep of that instant takes it."""
    makes = """
from orchestrator.core.files import temporary_folder
for _ in range(1000):
    temporary_folder.sweep.cache_clear()
    with temporary_folder.TemporaryFolder():
        pass
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": "."}
    together = [
        subprocess.Popen(
            [sys.executable, "-c", makes],
            cwd=REPOSITORY,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    assert [one.communicate()[1] for one in together] == [""] * 3
