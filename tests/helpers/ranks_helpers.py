"""Ranks for tests: functions called on several processes at once, and whole workers that are ranks
of one attempt."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import worker_helpers as worker

from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.processes.environment_variables import RANKS_SECRET_VARIABLE
from orchestrator.core.worker_spec import Backend, WorkerSpec

HERE = Path(__file__).parent
SECRET = {RANKS_SECRET_VARIABLE: "of all ranks that are started here by hand"}
TIMEOUT_S = 300.0
"""For an end that is certain to come; only a failing test waits this long."""


# -- functions


def together(
    size: int,
    directory: Path,
    function: Callable[..., Any],
    *arguments: Any,
    backend: Backend = "auto",
) -> list[Any]:
    """What ``function(ranks, *arguments)`` returns on each of ``size`` ranks, every one a process
    of its own.

    :param function: of a test module.
    """
    directory.mkdir(parents=True)
    module = Path(inspect.getfile(function))  # pytest imports test modules under names of its own
    (directory / "call.pkl").write_bytes(pickle.dumps((module.stem, function.__name__, arguments)))
    search_path = f"{worker.REPOSITORY}:{HERE}:{module.parent}"
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path, **SECRET}
    logs = [directory / f"log-{rank}" for rank in range(size)]
    processes = []
    for rank, path in enumerate(logs):
        with path.open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, str(directory)],
                    env={
                        **variables,
                        "RANK": str(rank),
                        "WORLD_SIZE": str(size),
                        "BACKEND": backend,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0] * size, "\n".join(
        f"-- rank {rank}\n{log.read_text()}" for rank, log in enumerate(logs)
    )
    return [pickle.loads((directory / f"returned-{rank}.pkl").read_bytes()) for rank in range(size)]


def _be_a_rank(directory: Path) -> None:
    from orchestrator.worker.runtime import import_speed

    with import_speed.fast_imports():
        import torch

        from orchestrator.worker.ranks.process_group import join
        from orchestrator.worker.runtime import sb3_internals
    sb3_internals.keep_compiler_out()
    torch.set_num_threads(1)
    module, name, arguments = pickle.loads((directory / "call.pkl").read_bytes())
    function = getattr(importlib.import_module(module), name)
    backend: Any = os.environ["BACKEND"]
    ranks = join(
        int(os.environ["WORLD_SIZE"]), backend, torch.device("cpu"), directory / "rendezvous"
    )
    returned = function(ranks, *arguments)
    (directory / f"returned-{ranks.rank}.pkl").write_bytes(pickle.dumps(returned))
    ranks.close()


class Thread:
    """A rank in a thread of its own, for what only gathers."""

    def __init__(self, rank: int, size: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self._board, self._barrier = board, barrier

    def all_gather_object(self, one: Any) -> list[Any]:
        self._board[self.rank] = one
        self._barrier.wait(TIMEOUT_S)
        everything = list(self._board)
        self._barrier.wait(TIMEOUT_S)  # nobody overwrites what another has not read
        return everything

    def any(self, flag: bool) -> bool:
        return any(self.all_gather_object(flag))


def in_threads(size: int, function: Callable[[Any], Any]) -> list[Any]:
    """What ``function(ranks)`` returns on each."""
    board, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(
            pool.map(function, [Thread(rank, size, board, barrier) for rank in range(size)])
        )


# -- workers


class Attempt:
    """The ranks of one attempt, started by hand; killed at the end of the block.

    :param commands: what precedes each rank's command, to run it elsewhere.
    :param environments: of each rank, over ``environment``.
    :param directories: of each rank, where they share no files; ``paths`` is of none of them then.
    """

    def __init__(
        self,
        paths: JobPaths,
        number: int = 0,
        *,
        ranks: int = 2,
        commands: Sequence[Sequence[str]] = (),
        environments: Sequence[Mapping[str, str]] = (),
        directories: Sequence[JobPaths] = (),
        **environment: str,
    ) -> None:
        self.paths, self.number, self.ranks = paths, number, ranks
        self.attempt = paths.attempt(number)
        of_ranks = list(directories) or [paths] * ranks
        self._attempts = [one.attempt(number) for one in of_ranks]
        for one in self._attempts:
            one.root.mkdir(parents=True, exist_ok=True)
        variables = {
            **os.environ,
            **SECRET,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(worker.REPOSITORY),
        } | environment
        self.processes = []
        for rank in range(ranks):
            its_own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            its_own |= environments[rank] if environments else {}
            with self._attempts[rank].log_of(rank).open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [
                            *(commands[rank] if commands else ()),
                            *(
                                sys.executable,
                                "-m",
                                "orchestrator.worker",
                                str(of_ranks[rank].root),
                                str(number),
                            ),
                        ],
                        env=variables | its_own,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def codes(self) -> list[int]:
        return [process.wait(TIMEOUT_S) for process in self.processes]

    @property
    def log(self) -> str:
        """Of all ranks."""
        logs = (one.log_of(rank).read_text() for rank, one in enumerate(self._attempts))
        return "\n".join(f"-- rank {rank}\n{text}" for rank, text in enumerate(logs))

    @property
    def records(self) -> list[ExitRecord]:
        return [
            ExitRecord.from_json(one.exit_of(rank).read_text())
            for rank, one in enumerate(self._attempts)
        ]


def run(paths: JobPaths, number: int = 0, **settings: Any) -> list[ExitRecord]:
    """Run an attempt to its end, which is to be a good one. Returns the last words of its ranks."""
    with Attempt(paths, number, **settings) as attempt:
        codes = attempt.codes()
        assert codes == [0] * len(codes), attempt.log
        return attempt.records


def job(directory: Path, algo: str = "ppo", **changes: Any) -> JobPaths:
    """A job of two ranks, a training of a few iterations, with ``changes``."""
    return worker.job(directory, spec(algo, **changes))


def spec(algo: str = "ppo", **changes: Any) -> WorkerSpec:
    given: dict[str, Any] = {
        "n_envs": 4,
        "normalize": True,
        "ranks": 2,
        "total_timesteps": 2048,
        "checkpoint_every": 512,
    }
    return worker.algorithm(algo, **given | changes)


if __name__ == "__main__":
    _be_a_rank(Path(sys.argv[1]))
