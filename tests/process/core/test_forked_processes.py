"""What a program has forked does not hold what was its own, however long it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import command_helpers as commands
import pytest

from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory

HOLDS = """
import os, pathlib, signal
from orchestrator.experiment import run_directory

with run_directory.claim(pathlib.Path("run")):
    pathlib.Path("run/jobs").mkdir()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    input()
print("given up", flush=True)
input()
"""


@pytest.mark.parametrize("end", ["given up", "killed"])
def test_a_run_directory_is_free_when_its_holder_is_done_whatever_that_has_forked(
    end: str, tmp_path: Path
) -> None:
    paths = RunPaths(tmp_path / "run")
    pipe = subprocess.PIPE
    with commands.start([sys.executable, "-c", HOLDS], cwd=tmp_path, stdin=pipe) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        child = int(program.stdout.readline())
        try:
            held = run_directory.holder(paths)
            assert held is not None
            assert held.pid == program.pid
            if end == "killed":
                program.kill()
                program.wait()
            else:
                program.stdin.write("\n")
                program.stdin.flush()
                assert program.stdout.readline() == "given up\n"
            assert run_directory.holder(paths) is None
            with run_directory.claim(paths.root):
                os.kill(child, 0)  # it lives
        finally:
            os.kill(child, signal.SIGKILL)
            program.stdin.close()
