"""Every command of ``docs/cluster.md``, in order, on simulated machines with the names and
addresses used there."""

from __future__ import annotations

import re
from pathlib import Path

import cluster_helpers as helpers
import pytest
from command_helpers import REPOSITORY
from network_helpers import network

pytestmark = pytest.mark.nightly

DOCUMENT = REPOSITORY / "docs/cluster.md"
MACHINES = {"head": "10.0.0.1", "node1": "10.0.0.2", "node2": "10.0.0.3"}
SCP = """#!/bin/sh
# Simulates scp HOST:PATH TARGET without ssh. PATH is below the home directory on HOST; file modes are those of scp.
host=${1%%:*}
exec cp "$(cat "@hosts@/$host")/${1#*:}" "$2"
"""


def commands() -> list[tuple[str, str]]:
    """Machine and command of each line of the document's code blocks."""
    blocks = re.findall(
        r"^```console\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    lines = [line for block in blocks for line in block.splitlines()]
    pairs = [line.partition("$ ")[::2] for line in lines]
    assert all(machine in MACHINES and command for machine, command in pairs), lines
    return pairs


def shortest(jobs: Path) -> str:
    """The job file with one iteration a job, and no evaluation or picture: the trainings are run as
    they are in CI."""
    text = jobs.read_text()
    for key, value in (("total_timesteps", "1_024"), ("eval_episodes", "0")):
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert count == 1, f"{jobs}: {key}"
    return text


def test_from_nothing_to_a_running_cluster_takes_five_commands() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    first = text[text.index("five commands:") :].split("```")[1].splitlines()[1:]
    assert len(first) == 5
    assert " run " in first[-1]


def test_every_code_block_of_the_document_is_a_console_block() -> None:
    fences = re.findall(
        r"^[ \t]*(?:```|~~~).*$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert fences == ["```console", "```"] * (len(fences) // 2)


@pytest.mark.timeout(1800)
def test_every_command_of_the_document_works(tmp_path: Path) -> None:
    hosts, programs = tmp_path / "hosts", tmp_path / "bin"
    for folder in (hosts, programs):
        folder.mkdir()
    scp = programs / "scp"
    scp.write_text(SCP.replace("@hosts@", str(hosts)))
    scp.chmod(0o755)
    with network(*MACHINES.values()) as made:
        within = [made.within(number, name) for number, name in enumerate(MACHINES)]
        with helpers.machines(*within) as there:
            machines = dict(zip(MACHINES, there, strict=True))
            for name, machine in machines.items():
                (hosts / MACHINES[name]).write_text(str(machine.home))
                (machine.home / "mjcf").symlink_to(REPOSITORY / "mjcf")
                (machine.home / "jobs").mkdir()
                (machine.home / "jobs/smoke.toml").write_text(
                    shortest(REPOSITORY / "jobs/smoke.toml")
                )
            for name, command in commands():
                path = f"{programs}:{machines[name].environment()['PATH']}"
                done = machines[name].run(["sh", "-c", command], PATH=path)
                assert done.returncode == 0, f"{name}$ {command}\n{done.stdout}{done.stderr}"
                if command.startswith("ls -l"):
                    assert done.stdout.startswith("-rw------- ")
                if " down" in command:
                    assert done.stdout.startswith("ended ")
            assert [machine.record for machine in there] == [None] * 3
            assert list((machines["head"].home / "runs/smoke/jobs").glob("*/model.zip"))
            assert list((machines["node1"].home / "runs/from-node1/jobs").glob("*/model.zip"))
