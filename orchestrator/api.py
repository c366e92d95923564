"""The command as functions, for scripts, notebooks and searches over bodies.

Both run the supervisor in the calling thread and return when it is done. Training happens in
processes of its own as always: no ``if __name__ == "__main__"`` is needed, a running event loop
is not touched, and nothing is left behind.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.core.errors import SpecError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_plan, session
from orchestrator.jobfile import Experiment, from_mapping, load
from orchestrator.supervisor.events import SilentReporter
from orchestrator.terminal.live_table import LineReporter

StrPath = str | os.PathLike[str]

_XML_PROBLEM = re.compile(r"jobs\[(\d+)\]\.xml\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one training."""

    ok: bool
    error: str | None
    """Why there is no trained policy; None when there is one."""
    job_id: str | None
    """None for a robot whose file could not even be found."""
    xml: str | None
    seed: int
    state: str
    ep_rew_mean: float | None
    """Mean return of the last episodes of training (Stable-Baselines3's ``rollout/ep_rew_mean``)."""
    eval_mean: float | None
    """Mean deterministic return over ``eval_episodes`` episodes after training."""
    env_steps: int
    wall_s: float | None
    model: Path | None
    """``model.zip``, for ``stable_baselines3.PPO.load``."""
    vecnormalize: Path | None
    """Where normalisation was on: for ``VecNormalize.load``."""
    job_dir: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """What became of an experiment. Iterates over its results, in the order of the job file."""

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
    executor: str = "local",
    ray_address: str = "local",
    storage: str = "auto",
    show: bool = False,
) -> ExperimentResult:
    """``python -m orchestrator run JOBS``: runs the job file, or goes on with it.

    :param jobs: the job file.
    :param overrides: defaults to set, as ``--set``: ``{"ppo.n_steps": 512}``.
    :param executor: what launches the jobs, as ``--executor``: ``"local"`` or ``"ray"``.
    :param ray_address: of the cluster, as ``--ray-address``: ``"local"``, ``"auto"`` or ``"HOST:PORT"``.
    :param storage: how files travel to other machines, as ``--storage``.
    :param show: print a line an event.
    :raises UsageError: as the command would end with 2; a SpecError holds every problem found.
    :raises DiskFullError: no space left; everything has stopped, and the same call resumes.
    :raises ClusterLostError: the head of the cluster is gone, and its jobs with it; the same call resumes.
    :raises KeyboardInterrupt: after Ctrl-C, once every worker has left; the same call resumes.
    """
    path = Path(jobs)
    experiment = load(path, overrides=overrides or {})
    options = run_plan.RunOptions(
        run_dir=Path(run_dir or Path("runs") / experiment.directory_name).absolute(),
        max_parallel=max_parallel,
        fresh=fresh,
        on_change=on_change,
        executor=executor,
        ray_address=ray_address,
        storage=storage,
    )
    finished = _finish(experiment, options, show=show, given=path.read_bytes())
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
    """Train a policy for every robot, a process each, as many at once as there are cores.

    Results come in the order of ``xmls`` (for each, in the order of ``seeds``). A robot that cannot be
    trained has ``ok`` False and ``error`` says why; the others are trained all the same.

    :param xmls: MJCF files.
    :param task: as in a job file; ``"auto"``, what suits each robot's structure, unless ``env`` or ``entry_point`` is
        among ``defaults``.
    :param run_dir: where everything goes; a new folder below ``runs/`` when not given.
    :param executor: as for :func:`run`, like ``ray_address`` and ``storage``.
    :param defaults: any further key of ``[defaults]`` in a job file: ``n_envs=16``, ``ppo={"n_steps": 512}``.
    :raises UsageError: when what all robots share is wrong: an unknown key, an impossible value.
    :raises DiskFullError: no space left; everything has stopped. Likewise ClusterLostError: the head of the cluster is
        gone.
    :raises KeyboardInterrupt: after Ctrl-C, once every worker has left.
    """
    if isinstance(xmls, str | os.PathLike):
        raise UsageError("train: xmls is one path; expected a sequence of them, such as [path]")
    if "matrix" in defaults:
        raise UsageError("train: matrix belongs in a job file; call train once for each of its points")
    files = [Path(xml).absolute() for xml in xmls]
    root = Path(run_dir or _new_run_dir()).absolute()
    if task is None and not {"env", "entry_point"} & defaults.keys():
        task = "auto"
    shared = {"total_timesteps": total_timesteps, "seeds": list(seeds), **defaults}
    if task is not None:
        shared["task"] = task
    unusable: dict[int, str] = {}
    experiment = _declare(root.name, shared, files, unusable)
    rows: dict[tuple[str, int], Result] = {}
    if experiment is not None:
        options = run_plan.RunOptions(
            run_dir=root,
            max_parallel=max_parallel,
            executor=executor,
            ray_address=ray_address,
            storage=storage,
            refuse_invalid=False,
        )
        finished = _finish(experiment, options, show=show, given=None)
        rows = {(row["name"], row["seed"]): _result(finished.paths, row) for row in finished.rows}
    results = []
    for index, file in enumerate(files):
        for seed in seeds:
            known = rows.get((_name(index, file), seed))
            results.append(known if known is not None else _unusable(file, seed, unusable[index]))
    return results


def _declare(
    name: str, shared: Mapping[str, Any], files: Sequence[Path], unusable: dict[int, str]
) -> Experiment | None:
    """The experiment over all usable files; fills ``unusable`` with the others. None when there is nothing left."""
    left = list(range(len(files)))
    while left:
        jobs = [{"name": _name(index, files[index]), "xml": _escaped(files[index])} for index in left]
        data = {"name": name, "defaults": dict(shared), "jobs": jobs}
        try:
            return from_mapping(data, source="orchestrator.train", base=Path.cwd())
        except SpecError as error:
            bad = {int(match[1]): problem for problem in error.problems if (match := _XML_PROBLEM.match(problem.where))}
            if len(bad) < len(error.problems):
                raise
            unusable.update({left[place]: problem.message for place, problem in bad.items()})
            left = [index for place, index in enumerate(left) if place not in bad]
    return None


def _name(index: int, file: Path) -> str:
    """Unique even where two robots' files are named alike."""
    return f"{index:03d}-{file.stem}"


def _escaped(file: Path) -> str:
    """As an ``xml`` entry that means this one file, whatever characters its name has."""
    return re.sub(r"([*?[])", r"[\1]", str(file))


def _finish(
    experiment: Experiment, options: run_plan.RunOptions, *, show: bool, given: bytes | None
) -> session.RunResult:
    reporter = LineReporter() if show else SilentReporter()
    finished = session.run(experiment, options, reporter, given=given)
    if finished.signalled and finished.interrupted:
        raise KeyboardInterrupt
    return finished


def _new_run_dir() -> Path:
    return Path("runs") / f"train-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"


def _result(paths: RunPaths, row: Mapping[str, Any]) -> Result:
    ok = row["state"] == "SUCCEEDED"
    job = paths.job(row["job_id"])
    return Result(
        ok=ok,
        error=None if ok else _why(row),
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


def _why(row: Mapping[str, Any]) -> str:
    if row["state"] in ("PENDING", "RUNNING"):
        return "stopped before it was finished; the same call on the same run_dir goes on with it"
    return str(row["message"] or row["state"].lower())


def _unusable(file: Path, seed: int, why: str) -> Result:
    return Result(
        ok=False,
        error=why,
        job_id=None,
        xml=str(file),
        seed=seed,
        state="FAILED",
        ep_rew_mean=None,
        eval_mean=None,
        env_steps=0,
        wall_s=None,
        model=None,
        vecnormalize=None,
        job_dir=None,
    )
