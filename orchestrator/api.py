"""The ``run`` command as functions, for scripts, notebooks and searches over robots.

Both functions run the supervisor in the calling thread and return when it has ended. Every training has its own
process, as with the command: no ``if __name__ == "__main__"`` is needed, a running event loop is not disturbed, and
no process or open file remains.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths, absolute, current_directory
from orchestrator.core.text import plain
from orchestrator.experiment import end_time, run_plan, session
from orchestrator.jobfile import Experiment, from_mapping, load
from orchestrator.jobfile.job_names import is_showable
from orchestrator.jobfile.robot_globs import file_fault
from orchestrator.ledger import SummaryRow
from orchestrator.supervisor.events import DetachableReporter, SilentReporter
from orchestrator.terminal.background_output import in_background
from orchestrator.terminal.live_table import LineReporter

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one training."""

    ok: bool
    error: str | None
    """Why there is no trained policy; None if there is one."""
    job_id: str | None = None
    """None for a robot whose file name cannot be printed."""
    xml: str | None
    seed: int
    state: str
    ep_rew_mean: float | None = None
    """Mean return of the last episodes of training (Stable-Baselines3's ``rollout/ep_rew_mean``)."""
    eval_mean: float | None = None
    """Mean deterministic return over ``eval_episodes`` episodes after training."""
    env_steps: int = 0
    wall_s: float | None = None
    model: Path | None = None
    """``model.zip``, for ``stable_baselines3.PPO.load``."""
    vecnormalize: Path | None = None
    """Normalisation statistics, for ``VecNormalize.load``; None if normalisation was off."""
    job_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """Result of an experiment; ``results`` are in the order of the job file."""

    run_dir: Path
    results: tuple[Result, ...]
    exit_code: int

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def run(
    jobs: StrPath,
    *,
    run_dir: StrPath | None = None,
    max_parallel: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    on_change: Literal["refuse", "restart", "keep"] = "refuse",
    skip_invalid: bool = False,
    executor: str = "local",
    ray_address: str = "local",
    storage: str = "auto",
    until: str | None = None,
    show: bool = False,
) -> ExperimentResult:
    """Run a job file, or resume it, as ``python -m orchestrator run JOBS`` does.

    :param jobs: path of the job file.
    :param overrides: defaults to set, as with ``--set``: ``{"ppo.n_steps": 512}``.
    :param skip_invalid: train the valid robots if others are invalid, as with ``--skip-invalid``.
    :param executor: what launches the jobs, as with ``--executor``: ``"local"`` or ``"ray"``.
    :param ray_address: Ray cluster to use, as with ``--ray-address``: ``"local"``, ``"auto"`` or ``"HOST:PORT"``.
    :param storage: how other machines access the run directory, as with ``--storage``.
    :param until: time of day or duration by which everything has ended, as with ``--until``: ``"18:00"`` or ``"2h"``.
    :param show: print one line per event.
    :raises UsageError: where the command would exit with 2; a SpecError has every problem found.
    :raises DiskFullError: no space is left; every job has stopped, and the same call resumes them.
    :raises SupervisorError: unexpected error of the supervisor; every job has stopped, and the same call resumes them.
    :raises ClusterLostError: the head node of the cluster is lost, and its jobs with it; the same call resumes them.
    :raises KeyboardInterrupt: after Ctrl-C, when every worker has exited; the same call resumes.
    """
    path = Path(jobs)
    experiment = load(path, overrides=overrides or {}, skip_invalid=skip_invalid)
    options = run_plan.RunOptions(
        run_dir=absolute(Path(run_dir or Path("runs") / experiment.directory_name)),
        is_listed=True,
        max_parallel=max_parallel,
        fresh=fresh,
        on_change=on_change,
        executor=executor,
        ray_address=ray_address,
        storage=storage,
        until=None if until is None else end_time.parse(until, run_plan.GRACE_S),
    )
    finished = _finish(experiment, options, show=show, job_file=path.read_bytes())
    order = {job.job_id: index for index, job in enumerate(experiment.jobs)}
    rows = sorted(finished.rows, key=lambda row: order[row["job_id"]])
    return ExperimentResult(
        run_dir=finished.paths.root,
        results=tuple(_result(finished.paths, row) for row in rows),
        exit_code=finished.exit_code,
    )


def train(
    xmls: Sequence[StrPath],
    *,
    task: str | None = None,
    total_timesteps: int = 200_000,
    seeds: Sequence[int] = (0,),
    max_parallel: int | None = None,
    run_dir: StrPath | None = None,
    executor: str = "local",
    ray_address: str = "local",
    storage: str = "auto",
    show: bool = False,
    **defaults: Any,
) -> list[Result]:
    """Train a policy for every robot, each in its own process, as many at once as there are cores.

    Results are in the order of ``xmls``, and for each robot in the order of ``seeds``. The result of a robot that
    cannot be trained has ``ok`` False and the reason in ``error``; the other robots are trained.

    :param xmls: MJCF files.
    :param task: as in a job file; the default is ``"auto"`` (chosen from each robot's structure), or no task if
        ``defaults`` has ``env`` or ``entry_point``.
    :param run_dir: directory for all results; the default is a new directory in ``runs/``.
    :param executor: as for :func:`run`, and so are ``ray_address``, ``storage`` and ``show``.
    :param defaults: any further key of ``[defaults]`` in a job file: ``n_envs=16``, ``ppo={"n_steps": 512}``.
    :raises UsageError: when settings that all robots share are invalid, such as an unknown key.
    :raises DiskFullError: no space is left; every job has stopped.
    :raises SupervisorError: an unexpected error of the supervisor; every job has stopped.
    :raises ClusterLostError: the head node of the cluster is lost, and its jobs with it.
    :raises KeyboardInterrupt: after Ctrl-C, when every worker has exited.
    """
    if isinstance(xmls, str | os.PathLike):
        raise UsageError("train: xmls is one path; expected a sequence of them, such as [path]")
    if "matrix" in defaults:
        raise UsageError("train: matrix belongs in a job file; call train once for each of its points")
    files = [absolute(Path(xml)) for xml in xmls]
    new = Path("runs") / f"train-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
    root = absolute(Path(run_dir or new))
    if task is None and not {"env", "entry_point"} & defaults.keys():
        task = "auto"
    shared = {"total_timesteps": total_timesteps, "seeds": list(seeds), **defaults}
    if task is not None:
        shared["task"] = task
    # A path that cannot be printed cannot stand in a job file at all.
    unusable = {index: file_fault(file) for index, file in enumerate(files) if not is_showable(str(file))}
    declared = [
        {"name": _name(index, file), "xml": str(file) if file.exists() else glob.escape(str(file))}
        for index, file in enumerate(files)
        if index not in unusable
    ]
    rows: dict[tuple[str, int], Result] = {}
    if declared:
        data = {"name": plain(root.name), "on_invalid": "skip", "defaults": shared, "jobs": declared}
        experiment = from_mapping(data, source="orchestrator.train", base=current_directory() or root)
        options = run_plan.RunOptions(
            run_dir=root, max_parallel=max_parallel, executor=executor, ray_address=ray_address, storage=storage
        )
        finished = _finish(experiment, options, show=show, job_file=None)
        rows = {(row["name"], row["seed"]): _result(finished.paths, row) for row in finished.rows}
    return [
        rows.get((_name(index, file), seed))
        or Result(ok=False, error=unusable[index], xml=str(file), seed=seed, state="FAILED")
        for index, file in enumerate(files)
        for seed in seeds
    ]


def _name(index: int, file: Path) -> str:
    """A name that is unique even where two files have the same name."""
    return f"{index:03d}-{file.stem}"


class WarningReporter(SilentReporter):
    """Shows as a Python warning what keeps a call waiting that prints nothing."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        if kind == "waiting":
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def _finish(
    experiment: Experiment, options: run_plan.RunOptions, *, show: bool, job_file: bytes | None
) -> session.RunResult:
    with contextlib.ExitStack() as stack:
        shown = LineReporter(stack.enter_context(in_background(sys.stdout))) if show else WarningReporter()
        finished = session.run(experiment, options, DetachableReporter(shown), job_file=job_file)
    if finished.signalled and finished.interrupted:
        raise KeyboardInterrupt
    return finished


def _result(paths: RunPaths, row: SummaryRow) -> Result:
    ok = row["state"] == "SUCCEEDED"
    job = paths.job(row["job_id"])
    error = None if ok else str(row["message"] or row["state"].lower())
    if row["state"] in ("PENDING", "RUNNING"):
        error = "stopped before it was finished; the same call with the same run_dir resumes it"
    if row["state"] == "PAUSED":
        error = f"paused; `resume {paths.root} {row['job_id']}` queues it, and the same call then continues it"
    return Result(
        ok=ok,
        error=error,
        job_id=row["job_id"],
        xml=row["xml"],
        seed=row["seed"],
        state=row["state"],
        ep_rew_mean=row["ep_rew_mean"],
        eval_mean=row["eval_mean"],
        env_steps=row["env_steps"],
        wall_s=row["wall_s"],
        model=job.model if ok else None,
        vecnormalize=job.vecnormalize if job.vecnormalize.exists() else None,
        job_dir=job.root,
    )
