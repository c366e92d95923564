"""The contenders, the environments that they are installed into, and one training of one of
them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from orchestrator.core.processes.environment_variables import worker_thread_settings

PINS = Path(__file__).parent / "pins"
CPU_ONLY = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
LONGEST_REASON = 300
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""
LIBC = ctypes.CDLL(None)


class ContenderFailed(Exception):
    """A contender cannot be installed, or its training ends with an error; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str
    title: str
    runner: str
    """Module of this package that trains it."""
    pins: str | None = None
    """File of its versions in ``pins/`` without suffix; None: it runs in the environment of this
    program."""
    note: str = ""
    """What differs from Stable-Baselines3's PPO beside the implementation."""


STOCK = "sb3"
CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(name=STOCK, title="Stable-Baselines3 (stock)", runner="sb3_runner"),
        Contender(
            name="fast",
            title="`fast` learner of this program",
            runner="sb3_runner",
            note="gymnasium's environment as a job steps it, without the copies of `DummyVecEnv`",
        ),
        Contender(
            name="cleanrl",
            title="CleanRL's recipe",
            runner="cleanrl_runner",
            note="own code in one file of torch over `SyncVectorEnv`; no value is added at a time limit",
        ),
        Contender(
            name="sbx",
            title="SBX (JAX)",
            runner="sb3_runner",
            pins="sbx",
            note="hidden layers start as flax's; policy and value function have an optimiser each",
        ),
        Contender(
            name="envpool",
            title="Stable-Baselines3 over EnvPool",
            runner="envpool_runner",
            pins="envpool",
            note="as EnvPool's example: 4 environments in a batch, 512 steps of each; EnvPool has its own MuJoCo",
        ),
        Contender(
            name="mjbatch",
            title="mjbatch's recipe",
            runner="mjbatch_runner",
            pins="mjbatch",
            note="own code with the settings of mjbatch's example, 64 environments: normalised, ELU, 24 steps of each",
        ),
        Contender(
            name="rl_games",
            title="rl_games with EnvPool",
            runner="rl_games_runner",
            pins="rl_games",
            note="minibatches are not shuffled; Adam's eps is 1e-8; EnvPool has its own MuJoCo and counts resets",
        ),
        Contender(
            name="rl_games_own",
            title="rl_games with EnvPool, its own settings",
            runner="rl_games_runner",
            pins="rl_games",
            note="64 environments, normalised, with networks and large minibatches of the package's own file; no GPU",
        ),
        Contender(
            name="fast_wide",
            title="`fast` learner, settings of rl_games",
            runner="sb3_runner",
            note="64 environments in a batch, normalised; the same layers, not shared; learning rate not adapted",
        ),
        Contender(
            name="torchrl",
            title="TorchRL",
            runner="torchrl_runner",
            pins="torchrl",
            note="its collector, advantages, loss and buffer; not compiled",
        ),
    )
}


def python_of(contender: Contender, cache: Path) -> Path:
    """The interpreter of the contender's environment, which is made in ``cache`` where it is not
    there yet.

    The file of pins names every package that is needed, so that pip installs these and nothing
    else.

    :raises ContenderFailed: it cannot be installed.
    """
    if contender.pins is None:
        return Path(sys.executable)
    pins = PINS / f"{contender.pins}.txt"
    folder = cache / f"{contender.pins}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:8]}"
    python = folder / "bin" / "python"
    whole = folder / "installed"
    if not whole.exists():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(pins)],
        ):
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False
            )
            if done.returncode != 0:
                raise ContenderFailed(f"not installed: {reason(done.stderr, done.returncode)}")
        whole.touch()
    return python


class Training:
    """A training of one contender, in a process group of its own, with as many threads as cores.

    The kernel kills it when this process dies.

    :param asked: the fields of :class:`benchmarks.contenders.stopwatch.Asked` but for the result.
    """

    def __init__(
        self, contender: Contender, python: Path, asked: Mapping[str, Any], cores: Sequence[int]
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="contender-")
        folder = Path(self._folder.name)
        self._result = folder / "result.json"
        self._log = folder / "log"
        os.sched_setaffinity(0, cores)  # inherited; this process itself only waits
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(python),
                    "-m",
                    f"{__package__}.{contender.runner}",
                    json.dumps(asked),
                    str(self._result),
                ],
                cwd=folder,
                env={
                    **os.environ,
                    **worker_thread_settings(len(cores)),
                    **CPU_ONLY,
                    "PYTHONPATH": str(ROOT),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            )

    def ended(self) -> bool:
        return self._process.poll() is not None

    def record(self) -> dict[str, Any]:
        """What :meth:`benchmarks.contenders.stopwatch.Stopwatch.write` has written.

        :raises ContenderFailed: the process has ended with an error.
        """
        status = self._process.returncode
        try:
            if status != 0:
                raise ContenderFailed(
                    f"failed: {reason(self._log.read_text(errors='replace'), status)}"
                )
            record: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
            return record
        finally:
            self.end()

    def end(self) -> None:
        """Kill what still runs, and remove its files."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()


def die_with_parent() -> None:
    """Let the kernel kill this process when the one that started it dies."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def reason(output: str, status: int) -> str:
    """The first line that pip marks as an error, or else the last line, which is that of a
    traceback."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("ERROR: ")]
    if marked:
        return marked[0][:LONGEST_REASON]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return lines[-1][:LONGEST_REASON] if lines else f"exit status {status}"
