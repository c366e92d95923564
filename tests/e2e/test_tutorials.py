"""Every command and script of the tutorials, in order, with small budgets."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from command_helpers import REPOSITORY, environment, finish, wait_until

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RSYNC = (
    "#!/bin/sh\n# Simulates rsync -a HOST:PATH TARGET without ssh. "
    "PATH is below the parent of the home directory.\n"
)
RSYNC += 'mkdir -p "$3" && cp -r "$HOME/${2#*:*/}." "$3"\n'


class Reader:
    """Does what a tutorial says, in a folder with the robots of this repository."""

    def __init__(self, folder: Path, smaller: dict[str, str]) -> None:
        self.folder, self.smaller = folder, smaller
        (folder / "mjcf").symlink_to(REPOSITORY / "mjcf")
        programs = folder / "bin"
        programs.mkdir()
        (programs / "rsync").write_text(RSYNC)
        (programs / "rsync").chmod(0o755)
        (programs / "orchestrator").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m orchestrator "$@"\n'
        )
        (programs / "orchestrator").chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = environment(
            PATH=path, HOME=str(folder), DISPLAY="", WAYLAND_DISPLAY="", OMP_NUM_THREADS="1"
        )

    def follow(self, document: str) -> dict[str, str]:
        """Write its files and run its commands.

        :return: each command with its output.
        """
        outputs = {}
        text = (REPOSITORY / "docs" / document).read_text(encoding="utf-8")
        for old, new in self.smaller.items():
            text = text.replace(old, new)
        for language, block in BLOCK.findall(text):
            if language != "console":
                name = block.splitlines()[0].removeprefix("# ")
                (self.folder / name).write_text(block, encoding="utf-8")
                continue
            for line in block.splitlines():
                command = line.removeprefix("$ ")
                if " logs " in command:
                    self.wait_for_launch(*command.split()[-2:])
                outputs[command] = self.run(command)
        return outputs

    def wait_for_launch(self, run_dir: str, job_id: str) -> None:
        """A reader takes longer than the first launch, also on a busy machine."""

        def is_launched() -> bool:
            rows = json.loads(self.run(f"orchestrator status {run_dir} --json"))
            return any(row["job_id"] == job_id and row["attempts"] for row in rows)

        wait_until(is_launched, f"{job_id} is launched")

    def run(self, command: str) -> str:
        done = finish(["sh", "-c", command], cwd=self.folder, env=self.environment, patience_s=280)
        # An experiment that --until has stopped ends with 130, and so does `attach`.
        expected = (130,) if " attach " in command else (0,)
        assert done.returncode in expected, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.mark.slow
def test_own_robot_in_ten_minutes(tmp_path: Path) -> None:
    reader = Reader(
        tmp_path, {"200_000": "2_048", "my_robots hopper\n": "my_robots hopper --seconds 0.1\n"}
    )
    outputs = reader.follow("tutorial-own-robot.md")
    assert "return of 200 steps: " in outputs["python use_policy.py"]
    assert (tmp_path / "runs/my_robots/jobs/hopper-s0/video.mp4").is_file()
    assert (tmp_path / "runs/my_robots/report/index.html").is_file()


@pytest.mark.slow
def test_a_body_is_evolved(tmp_path: Path) -> None:
    reader = Reader(
        tmp_path,
        {"50_000": "2_048", "BODIES, FIRST = 30": "BODIES, FIRST = 3", "range(5)": "range(1)"},
    )
    outputs = reader.follow("tutorial-evolve.md")
    bodies = re.findall(
        r"^body (\d): .* m; best -?\d+\.\d m", outputs["python evolve.py"], re.MULTILINE
    )
    assert bodies == ["1", "2", "3"]


@pytest.mark.slow
def test_a_shared_machine(tmp_path: Path) -> None:
    robots = tmp_path / "my_robots"
    robots.mkdir()
    (robots / "hopper.xml").symlink_to(REPOSITORY / "mjcf/hopper.xml")
    reader = Reader(
        tmp_path, {"--until 07:00": "--until 15s --grace 10 --max-parallel 1", '"2 GiB"': "0"}
    )
    outputs = reader.follow("tutorial-shared-machine.md")
    assert "robots" in outputs["orchestrator list"]
    assert (tmp_path / "robots-report/index.html").is_file()
    assert (tmp_path / "ended.txt").read_text().splitlines()[-1] == "0 succeeded, 0 failed"
