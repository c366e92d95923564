"""Does what a tutorial says, command by command."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

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
        done = finish(["sh", "-c", command], cwd=self.folder, env=self.environment)
        # An experiment that --until has stopped ends with 130, and so does `attach`.
        expected = (130,) if " attach " in command else (0,)
        assert done.returncode in expected, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr
