"""Machines for tests of clusters, each with its own home, temporary directory and perhaps
address."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import command_helpers as commands
import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.processes.environment_variables import CPU_LOCKS_VARIABLE
from orchestrator.features.ray.cluster import cluster_token
from orchestrator.features.ray.cluster.address import check_own

PATIENCE_S = 300.0
TOKEN = ".config/orchestrator/cluster-token"


class Machine:
    """A user's home on a machine, and methods to run commands there."""

    def __init__(self, temporary: Path, within: Sequence[str] = ()) -> None:
        """:param within: put before every command."""
        self.temporary = temporary
        self.home = temporary / "home"
        self.home.mkdir()
        self.holders = str(temporary / "cpu-holders")
        """Where its runs say which CPUs they hold."""
        self._within = list(within)

    @property
    def token(self) -> Path:
        return self.home / TOKEN

    @property
    def record(self) -> Path | None:
        """The machine's record of its node."""
        return next(iter(self.home.glob(".local/state/orchestrator/cluster-*.json")), None)

    def environment(self, **added: str) -> dict[str, str]:
        ours = ("RAY_", "XDG_", "ORCHESTRATOR_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        places = {
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "PATH": path,
            CPU_LOCKS_VARIABLE: self.holders,
        }
        return {**kept, **places, "PYTHONPATH": str(commands.REPOSITORY), **added}

    def command(self, *arguments: str) -> list[str]:
        return [*self._within, sys.executable, *arguments]

    def run(
        self, command: Sequence[str], cwd: Path | None = None, **added: str
    ) -> subprocess.CompletedProcess[str]:
        """Run any command there and wait for its end."""
        there = [*self._within, *command]
        return commands.finish(
            there, cwd=cwd or self.home, env=self.environment(**added), patience_s=PATIENCE_S
        )

    @contextmanager
    def running(
        self, *arguments: str | Path, typed: Sequence[str] = ("-m", "orchestrator")
    ) -> Iterator[subprocess.Popen[str]]:
        """A ``run --json`` there, whose events can be read; killed after the block if it still
        runs."""
        command = self.command(*typed, "run", *map(str, arguments), "--json")
        with commands.start(command, cwd=self.home, env=self.environment(), stderr=None) as process:
            try:
                yield process
            finally:
                process.kill()

    def cluster(self, *arguments: str, **added: str) -> subprocess.CompletedProcess[str]:
        """Run a ``cluster`` command, which must not print a traceback."""
        done = self.run([sys.executable, "-m", "orchestrator", "cluster", *arguments], **added)
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def done(self, *arguments: str, **added: str) -> str:
        """Run a ``cluster`` command that succeeds; returns its output."""
        done = self.cluster(*arguments, **added)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, *arguments: str, **added: str) -> str:
        """Run a ``cluster`` command that is refused; returns its error message."""
        done = self.cluster(*arguments, **added)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, f"one message of one line: {done.stderr}"
        assert done.stderr.startswith("error: ")
        return done.stderr

    def take_token_of(self, other: Machine) -> None:
        self.token.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(other.token, self.token)


@pytest.fixture(name="home", autouse=True)
def cluster_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home directory, without a cluster's token or record."""
    for name in (
        cluster_token.MODE_VARIABLE,
        cluster_token.TOKEN_VARIABLE,
        cluster_token.TOKEN_FILE_VARIABLE,
        "XDG_CONFIG_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@contextmanager
def machines(*within: Sequence[str]) -> Iterator[list[Machine]]:
    """One for each of ``within``; their nodes are ended after the block.

    Their directories have short names, because the path of a socket has at most 107 characters.
    """
    with ExitStack() as stack:
        made = []
        for before in within:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="o", dir="/tmp"))
            made.append(Machine(Path(folder), before))
            stack.callback(_end_node, made[-1])
        yield made


def _end_node(machine: Machine) -> None:
    if machine.record is not None:
        machine.cluster("down")


def free_port() -> int:
    """A port above those of Ray's workers and below the kernel's ephemeral ones; every worker of
    pytest has its own."""
    first = 20100 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in range(first, first + 1000):
        try:
            check_own("127.0.0.1", port)
        except UsageError:
            continue
        return port
    raise AssertionError("no free port")


def processes_with(mark: str) -> Mapping[int, str]:
    """Pid → name of the processes that have ``mark`` in their environment."""
    names = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    names[int(entry.name)] = (entry / "comm").read_text().strip()
            except OSError:  # it has ended
                continue
    return names
