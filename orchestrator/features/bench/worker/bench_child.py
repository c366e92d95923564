"""``python -m orchestrator.features.bench.worker.bench_child HOW THREADS JOB_DIR...``: trainings of a
benchmark.

HOW is ``alone`` (one training, in this process), ``subproc`` (one training by stock
Stable-Baselines3 with a process per environment), ``fork`` or ``spawn`` (one training per job
directory in a ``multiprocessing.Pool``). THREADS is the thread budget, or ``default`` for the
libraries' own number.

The training is that of :mod:`orchestrator.worker`, with the same timings. Only its start differs,
so that a difference between figures has one cause. The trainings continue until they are killed.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.runtime import failures, import_speed, supervisor_connection
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.progress import Phase, ProgressReporter

USAGE = "usage: bench_child alone|subproc|fork|spawn THREADS|default JOB_DIR..."


class FirstStepReporter(ProgressReporter):
    """Writes ``begun.json`` after the first environment step; later steps cost one attribute
    access.
    """

    def __init__(self, path: Path, facts: AttemptFacts) -> None:
        super().__init__(None, facts)
        self._path = path
        self._written = False

    def report(self, phase: Phase, env_steps: int) -> None:
        if self._written or phase != "training":
            return
        self._written = True
        begun = {
            "pid": os.getpid(),
            "learner": self._facts.learner,
            "import_s": self._facts.import_s,
            "first_step_s": self._facts.first_step_s,
            "clock_s": time.monotonic(),
        }
        write_whole(self._path, json.dumps(begun), durable=False)


def train(job_dir: str, threads: int | None, *, over_processes: bool = False) -> None:
    """Run the training in ``job_dir`` in this process. An error is written to ``exit.json``, as by
    a worker.

    :param over_processes: whether each environment has a process of its own.
    """
    paths = JobPaths(Path(job_dir))
    facts = AttemptFacts()
    try:
        _import()
        import torch

        from orchestrator.worker.training import train as training

        if threads is not None:
            torch.set_num_threads(threads)
            torch.set_num_interop_threads(1)
        facts.import_s = facts.age_s()
        spec = WorkerSpec.from_json(paths.spec.read_text(encoding="utf-8"))
        if spec.search_path is not None:
            sys.path.insert(0, spec.search_path)
        reporter = FirstStepReporter(paths.begun, facts)
        if over_processes:
            from orchestrator.features.bench.worker import subproc

            subproc.run(spec, paths, facts, reporter)
        else:
            training.run(spec, paths, facts, reporter, lambda: False, paths.attempt(0).rendezvous)
    except BaseException as error:
        code, message, trace = failures.classify(error)
        exit_path = paths.attempt(0).exit
        exit_path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(exit_path, facts.record(code, message, trace).to_json(), durable=False)
        raise


def _import() -> None:
    with import_speed.fast_imports():
        from orchestrator.worker.runtime import sb3_internals
        from orchestrator.worker.training import train  # noqa: F401 - torch and all the rest with it
    sb3_internals.keep_compiler_out()


def main(arguments: list[str]) -> None:
    supervisor_connection.attach()
    if len(arguments) < 3 or arguments[0] not in ("alone", "subproc", "fork", "spawn"):
        sys.exit(USAGE)
    how, budget, *job_dirs = arguments
    work = functools.partial(train, threads=None if budget == "default" else int(budget))
    if how in ("alone", "subproc"):
        work(job_dirs[0], over_processes=how == "subproc")
        return
    # As at the top of a user's script: forked processes inherit the modules, spawned ones import
    # them again.
    _import()
    with multiprocessing.get_context(how).Pool(len(job_dirs)) as pool:
        pool.map(work, job_dirs, chunksize=1)


if __name__ == "__main__":
    main(sys.argv[1:])
