"""Starting real workers in job directories of their own, and looking at what they leave."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib
import io
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.processes.environment_variables import CHANNEL_VARIABLE, GO
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.runtime import failures, sb3_internals
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.progress import ProgressReporter
from orchestrator.worker.training import train

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 60

SMALL_PPO = {"n_steps": 64, "batch_size": 32, "n_epochs": 2}
SMALL_BUFFER = {"buffer_size": 1500, "learning_starts": 64, "batch_size": 16, "train_freq": 4}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": SMALL_PPO,
    "a2c": {"n_steps": 16},
    "sac": SMALL_BUFFER,
    "td3": {**SMALL_BUFFER, "action_noise": 0.2},
}
"""Hyperparameters of short trainings."""


def spec(**changes: Any) -> WorkerSpec:
    """A short training of CartPole, with ``changes``."""
    values: dict[str, Any] = {
        "job_id": "test-s3",
        "name": "test",
        "seed": 3,
        "algo": "ppo",
        "learner": "auto",
        "total_timesteps": 512,
        "n_envs": 2,
        "normalize": False,
        "checkpoint_every": 256,
        "eval_episodes": 0,
        "hyperparameters": SMALL_PPO,
    }
    if not changes.keys() & {"env", "entry_point", "task"}:
        values["env"] = "CartPole-v1"
    return WorkerSpec(**values | changes)


def job(directory: Path, given: WorkerSpec) -> JobPaths:
    directory.mkdir(parents=True, exist_ok=True)
    paths = JobPaths(directory)
    paths.spec.write_text(given.to_json())
    return paths


class Worker:
    """A worker process in its own session, its output in the attempt's log; killed at the end of
    the block."""

    def __init__(
        self,
        paths: JobPaths,
        number: int = 0,
        *,
        channel: bool = False,
        goes: bool = True,
        **environment: str,
    ) -> None:
        """:param goes: whether it is given the word that a worker with a channel waits for."""
        self.attempt = paths.attempt(number)
        self.attempt.root.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        search_path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path, **environment}
        if channel:
            variables[CHANNEL_VARIABLE] = str(theirs.fileno())
        self.channel = ours
        if channel and goes:
            ours.sendall(GO)
        with theirs, self.attempt.worker_log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.worker", str(paths.root), str(number)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
                pass_fds=[theirs.fileno()] if channel else [],
                start_new_session=True,
                cwd=self.attempt.root,
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.channel.close()

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    @property
    def log(self) -> str:
        return self.attempt.worker_log.read_text()

    @property
    def record(self) -> ExitRecord:
        return ExitRecord.from_json(self.attempt.exit.read_text())


def run(paths: JobPaths, number: int = 0, **environment: str) -> tuple[ExitRecord, str]:
    """Run an attempt to its end. Returns its exit record, whose code is that of the process, and
    its log."""
    with Worker(paths, number, **environment) as worker:
        code = worker.wait()
        record = worker.record
        assert record.code == code
        return record, worker.log


def train_here(paths: JobPaths, number: int = 0) -> tuple[ExitRecord, str]:
    """Run an attempt in this process, as the worker does but for its start, its signals and its
    exit."""
    spec = WorkerSpec.from_json(paths.spec.read_text())
    files, facts, log = paths.attempt(number), AttemptFacts(started=time.monotonic()), io.StringIO()
    files.root.mkdir(parents=True, exist_ok=True)
    search_path = list(sys.path)
    for file in Path(spec.search_path).glob("*.py") if spec.search_path else ():
        sys.modules.pop(file.stem, None)  # of another test's folder
    sb3_internals.keep_compiler_out()
    torch.set_num_threads(spec.threads)
    sys.path[:0] = [spec.search_path] if spec.search_path else []
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(log), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train.run(
                spec, paths, facts, ProgressReporter(None, facts), lambda: False, files.rendezvous
            )
        record = facts.record(ExitCode.SUCCEEDED)
    except Exception as error:
        record = facts.record(*failures.classify(error))
    finally:
        sys.path[:] = search_path
    files.exit.write_text(record.to_json())
    return record, f"{log.getvalue()}{record.traceback}"


def train_to_its_end(paths: JobPaths, number: int = 0) -> ExitRecord:
    """Like :func:`train_here`; it must succeed."""
    record, log = train_here(paths, number)
    assert record.code == ExitCode.SUCCEEDED, log
    return record


def train_again(trained: JobPaths, directory: Path, **changes: Any) -> tuple[JobPaths, ExitRecord]:
    """Train a job again in ``directory`` and in this process, alone and undisturbed, with
    ``changes`` to its spec."""
    paths = job(
        directory, dataclasses.replace(WorkerSpec.from_json(trained.spec.read_text()), **changes)
    )
    shutil.copytree(trained.robot, paths.robot)
    return paths, train_to_its_end(paths)


def algorithm(algo: str, **changes: Any) -> WorkerSpec:
    """A short training with ``algo``, of two iterations and a bit, with ``changes``; its networks
    are tiny."""
    given: dict[str, Any] = {
        "algo": algo,
        "total_timesteps": 1300,
        "checkpoint_every": 512,
        "hyperparameters": SMALL.get(algo, {}),
        "policy_kwargs": {"net_arch": [8]},
    }
    if not changes.keys() & {"env", "entry_point", "task"}:
        given["env"] = "Pendulum-v1"
    return spec(**given | changes)


def parameters(model: Path) -> dict[str, torch.Tensor]:
    """The policy's and the optimisers' tensors in a ``model.zip``, by name, and SAC's
    temperature."""
    found: dict[str, torch.Tensor] = {}
    with zipfile.ZipFile(model) as archive:
        for member in archive.namelist():
            if not member.endswith(".pth"):
                continue
            with archive.open(member) as file:
                content = torch.load(file, weights_only=True)
            if member.endswith("optimizer.pth"):
                kind = member.removeprefix("policy.").removesuffix("optimizer.pth")
                for index, moments in content["state"].items():
                    found |= {f"{kind}{index}.{name}": tensor for name, tensor in moments.items()}
            elif member in ("policy.pth", "pytorch_variables.pth"):
                found |= {name: tensor.detach() for name, tensor in (content or {}).items()}
    return found


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def normalization(path: Path) -> dict[str, bytes]:
    """Its running statistics; those of observations are missing where these are no numbers."""
    statistics = vars(pickle.loads(path.read_bytes()))
    return {
        f"{rms}.{part}": getattr(statistics[rms], part).tobytes()
        for rms in ("obs_rms", "ret_rms")
        if rms in statistics
        for part in ("mean", "var")
    }


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
