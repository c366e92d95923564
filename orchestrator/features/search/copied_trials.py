"""Copies the best trials out of a run directory: robots, policies, and a job file that trains them
again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core import job_parts
from orchestrator.core.errors import RunDirError, UsageError, disk_full_explained
from orchestrator.core.files.atomic_files import clone_tree
from orchestrator.core.job import Job
from orchestrator.core.paths import JobPaths, RunPaths, absolute
from orchestrator.core.worker_spec import INIT_JOB
from orchestrator.features.search.history import Trial
from orchestrator.jobfile.expand import SAME_IN_SPEC
from orchestrator.jobfile.job_file_text import comment, write
from orchestrator.jobfile.job_names import without_seed
from orchestrator.jobfile.toml_models import Settings
from orchestrator.keys.toml_text import toml

JOB_FILE = "jobs.toml"
_SAME_IN_JOB_FILE = (
    *SAME_IN_SPEC,
    "task",
    "env",
    "entry_point",
    "env_kwargs",
    "task_options",
    "randomize",
    "asymmetric",
    "evaluate",
)
"""Keys of a job that are fields of its spec with the same name and value."""
_TABLES = ("resources", "distributed", "retry")
"""Tables of which only what differs from the defaults is written."""


def copy(
    paths: RunPaths,
    trials: Sequence[Trial],
    jobs: Mapping[str, Job],
    about: Sequence[str],
    target: Path,
    name: str,
) -> Path:
    """Copy the jobs of ``trials`` into the folder ``target``, each as a folder that
    `orchestrator.load` takes.

    :param about: a line about each trial, for the job file.
    :param name: of the experiment in the job file, whose path is returned.
    :raises UsageError: ``target`` is no empty folder, or results are missing.
    """
    absolute(target)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(
            f"{target}: exists and is not an empty folder; nothing was copied. Choose another with --to"
        )
    for trial in trials:
        for job_id in trial.jobs:
            _check_results(paths, jobs[job_id])
    with disk_full_explained(target, "run the same command again"):
        target.mkdir(parents=True, exist_ok=True)
        try:
            for trial in trials:
                for job_id in trial.jobs:
                    _copy_job(paths.job(job_id), JobPaths(target / job_id))
                _copy_modules(jobs[trial.jobs[0]], target)
            origin = f"the best of {paths.root}, to be trained again"
            robots = "Robots are as they were trained: what was edited in them is in their files."
            lines = [
                comment(f"Written by `orchestrator best`: {origin}."),
                comment(robots),
                f"name = {toml(name)}",
            ]
            for trial, remark in zip(trials, about, strict=True):
                entry = _entry(trial, [jobs[job_id] for job_id in trial.jobs])
                lines += ["", comment(remark), *entry]
            write(target / JOB_FILE, "\n".join(lines) + "\n", force=False)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    return target / JOB_FILE


def _check_results(paths: RunPaths, job: Job) -> None:
    """:raises RunDirError: the policy of ``job`` is gone."""
    if not paths.job(job.job_id).has_results(normalize=job.spec.normalize):
        what = f"the policy of {job.job_id} is gone ({paths.job(job.job_id).model})"
        raise RunDirError(f"{paths.root}: {what}; nothing was copied. `run` trains it again")


def _copy_job(source: JobPaths, target: JobPaths) -> None:
    target.root.mkdir()
    for name in ("spec", "robot_hash", "model", "vecnormalize", "eval", "video", "preview"):
        if getattr(source, name).exists():
            shutil.copy2(getattr(source, name), getattr(target, name))
    if source.robot.exists():
        clone_tree(source.robot, target.robot)


def _copy_modules(job: Job, target: Path) -> None:
    """Copy the user's modules of task and environment beside the job file, where they are looked
    for.
    """
    spec = job.spec
    for text in (spec.task, spec.env, spec.entry_point, spec.algo):
        module, colon, _ = (text or "").partition(":")
        if not colon or spec.search_path is None:
            continue
        top = module.partition(".")[0]
        file = Path(spec.search_path, f"{top}.py")
        package = Path(spec.search_path, top)
        if file.is_file() and not (target / file.name).exists():
            shutil.copy2(file, target / file.name)
        elif package.is_dir() and not (target / top).exists():
            shutil.copytree(package, target / top, ignore=shutil.ignore_patterns("__pycache__"))


def _entry(trial: Trial, jobs: Sequence[Job]) -> Iterator[str]:
    """A ``[[jobs]]`` table; what is as the defaults is left out."""
    job = jobs[0]
    yield "[[jobs]]"
    yield f"name = {toml(without_seed(job.job_id, job.spec.seed))}"
    if job.spec.xml is not None:
        yield f"xml = {toml(f'{job.job_id}/{job.spec.xml}')}"
    defaults = Settings().model_dump()
    for key, value in _settings(job).items():
        differing = value
        if key in _TABLES:
            differing = {name: part for name, part in value.items() if part != defaults[key][name]}
        if differing not in (None, {}, defaults[key]):
            yield f"{key} = {toml(_with_units(key, differing))}"
    yield f"seeds = {toml([one.spec.seed for one in jobs])}"
    if job.spec.init is not None:
        if trial.parent is None and not job.spec.init.startswith(INIT_JOB):
            yield f"init = {toml(job.spec.init)}"
        else:
            yield comment(
                f"It started from the policy of {job.spec.init}, and will now start from nothing."
            )


def _settings(job: Job) -> dict[str, Any]:
    """The keys of the job file, with their values as they are after validation."""
    spec = job.spec
    resources = job.resources
    parts = job_parts.in_training(spec.parts)
    tables = {name: job_parts.job_parts()[name].table(one) for name, one in parts.items()}
    every = spec.checkpoint_every
    return {
        **{name: _plain(getattr(spec, name)) for name in _SAME_IN_JOB_FILE},
        **{name: _plain(table) for name, table in tables.items()},
        spec.algo_table: _plain(spec.hyperparameters),
        "checkpoint_every": f"{spec.checkpoint_every_s:f}s" if every is None else every,
        "resources": {
            "ranks": resources.ranks,
            "cores": resources.cores,
            "threads": None if resources.threads == resources.cores else resources.threads,
            "memory": resources.memory_mib,
            "gpus": resources.gpus,
            "timeout": resources.timeout_s,
            "stall_timeout": resources.stall_timeout_s,
            "log": resources.log_mib,
            "nice": resources.nice,
            "min_free_disk": resources.min_free_disk_mib,
            "move": resources.move,
            "start": resources.start,
        },
        "distributed": {
            "backend": spec.backend,
            "mode": spec.mode,
            "timeout": spec.collective_timeout_s,
        },
        "retry": {"max_retries": job.max_retries},
    }


def _plain(value: Any) -> Any:
    """``value`` without what TOML cannot write, which is as good as unset."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items() if part is not None}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _with_units(key: str, value: Any) -> Any:
    """``value`` as a user writes it: sizes have a unit."""
    if key != "resources":
        return value
    sizes = ("memory", "log", "min_free_disk")
    return {name: f"{part} MiB" if name in sizes and part else part for name, part in value.items()}
