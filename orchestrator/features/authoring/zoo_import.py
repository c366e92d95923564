"""``import-zoo``: a job file from a hyperparameter file of RL Baselines3 Zoo (``ppo.yml``).

Every key is tried as the job file will read it. What it refuses becomes a comment with its reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.errors import SpecError, UsageError
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.task_names import GYMNASIUM_TASKS
from orchestrator.core.worker_spec import OFF_POLICY
from orchestrator.features.authoring import zoo_values
from orchestrator.jobfile import from_mapping
from orchestrator.jobfile.hyperparameters import ALGORITHMS, DEFAULTS
from orchestrator.jobfile.job_file_text import LeftOut, aligned_lines, comment, toml
from orchestrator.jobfile.rank_rules import near
from orchestrator.jobfile.validation import check_one
from orchestrator.keys.names import is_showable
from orchestrator.keys.problems import Problems, quoted, suggestion

LARGEST_BYTES = 1 << 20
MOST_SHOWN = 5
MUJOCO = ("HumanoidStandup", "Pusher", "Reacher")
"""MuJoCo environments of gymnasium that are no task, so they run as ``env``."""
CLASSIC = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
"""Environments that gymnasium has without further packages."""
DISCRETE = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0")
NUMBERS_A_TRANSITION = {
    "Ant": 2 * 105 + 8,
    "Humanoid": 2 * 348 + 17,
    "HumanoidStandup": 2 * 348 + 17,
}
"""Where a full replay buffer may need more than the usual memory: two observations and an
action."""
USUAL_GIB = 2
_VERSIONED = re.compile(r"([\w/]+)-v(\d+)\Z")
_WRAPPED = "a job file has no wrappers; write a function that makes the wrapped environment, and name it as entry_point"
_NO_KEY = {
    "env_wrapper": _WRAPPED,
    "vec_env_wrapper": _WRAPPED,
    "frame_stack": _WRAPPED,
    "callback": "a job file has no callbacks",
    "env_kwargs": "was not taken over; set it by hand, as task_options of a task or env_kwargs of an env",
}
_ALGOS = {"ppo_lstm": "recurrent-ppo"}
"""Algorithms that have another name in the Zoo."""
_PLAIN = {"n_timesteps": "total_timesteps", "n_envs": "n_envs", "policy": "policy"}
"""Keys of the Zoo that are keys of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooJobFile:
    """A job file to be written."""

    text: str
    algo: str
    jobs: int
    entries_left_out: Sequence[LeftOut]
    changes: Sequence[LeftOut]
    """Keys of jobs that are left out or have another value, except versions of environments."""
    newer: int
    """Jobs whose environment is a later version of the one in the file."""


@dataclass(slots=True)
class _ZooJob:
    """One environment's job while it is made."""

    name: str
    algo: str
    values: dict[str, Any] = field(default_factory=dict)
    """Dotted key of the job file → value."""
    remarks: dict[str, str] = field(default_factory=dict)
    """Dotted key → what differs from the Zoo."""
    refused: dict[str, str] = field(default_factory=dict)
    """Key → why it is left out."""


def draft(path: Path, *, algo: str | None, names: Sequence[str], target: Path) -> ZooJobFile:
    """The job file ``target`` with what the hyperparameter file declares.

    :param algo: None for the algorithm that the file's name says.
    :param names: environments to import; empty: all.
    :raises UsageError: the file cannot be read, or nothing in it can be imported.
    """
    algo = algo or _ALGOS.get(path.stem.lower(), path.stem.lower())
    if algo not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise UsageError(
            f"{path}: {algo!r} is no algorithm of this program; set --algo to one of {known}"
        )
    entries = _chosen_entries(_read(path), names, path)
    jobs = list[_ZooJob]()
    left_out = list[LeftOut]()
    for name, settings in entries.items():
        try:
            jobs.append(_job(name, settings, algo))
        except ValueError as error:
            left_out.append(LeftOut(what=name, reason=str(error)))
    if not jobs:
        shown = "\n".join(f"    {entry.what}: {entry.reason}" for entry in left_out[:MOST_SHOWN])
        raise UsageError(
            f"{path}: none of {len(left_out):,} entries can be imported; nothing was written\n{shown}"
        )
    return ZooJobFile(
        text=_text(path, target, algo, jobs, left_out),
        algo=algo,
        jobs=len(jobs),
        entries_left_out=left_out,
        changes=[
            LeftOut(what=f"{job.name}, {key}", reason=reason)
            for job in jobs
            for key, reason in (job.remarks | job.refused).items()
            if key not in ("task", "env")
        ],
        newer=sum(bool(job.remarks.keys() & {"task", "env"}) for job in jobs),
    )


def _text(
    path: Path, target: Path, algo: str, jobs: Sequence[_ZooJob], left_out: Sequence[LeftOut]
) -> str:
    """The job file ``target``, made of the file ``path`` of hyperparameters."""
    name = path.stem if target.name == "jobs.toml" else target.stem
    lines = [
        comment("Written by `orchestrator import-zoo`. docs/job-file.md lists all keys."),
        f"name = {toml(name if is_showable(name) else algo)}",
        "",
        "[defaults]",
        f"algo = {toml(algo)}",
        "",
        "[defaults.resources]",
        *aligned_lines([('timeout = "7d"', "of a job; some of these trainings take long")]),
    ]
    for job in jobs:
        lines += _table(job)
    if left_out:
        lines += [
            "",
            comment("Not imported:"),
            *(comment(f"{entry.what}: {entry.reason}") for entry in left_out),
        ]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, Any]:
    """The entries of a YAML file. :raises UsageError: it is none, or PyYAML is missing."""
    try:
        import yaml
    except ModuleNotFoundError:
        install = 'pip install -c constraints.txt ".[zoo]" in a clone of this project, or pip install pyyaml'
        raise UsageError(
            f"{path}: import-zoo needs PyYAML, which is not installed here: {install}"
        ) from None
    try:
        loader = yaml.SafeLoader(read_regular(path, LARGEST_BYTES).decode("utf-8-sig"))
        # Some of the Zoo's files have tuples; any other object of Python is an error.
        tuples = {"tag:yaml.org,2002:python/tuple": yaml.SafeLoader.construct_sequence}
        loader.yaml_constructors = {**loader.yaml_constructors, **tuples}
        content = loader.get_single_data()
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not isinstance(content, dict) or not content:
        raise UsageError(
            f"{path}: expected a table of environments with their hyperparameters, such as ppo.yml"
        )
    return {str(name): settings for name, settings in content.items()}


def _chosen_entries(entries: dict[str, Any], names: Sequence[str], path: Path) -> dict[str, Any]:
    for name in names:
        if name not in entries:
            near_by = suggestion(name, list(entries))
            hint = (
                f"did you mean {near_by}?"
                if near_by
                else f"it has {', '.join(list(entries)[:MOST_SHOWN])} …"
            )
            raise UsageError(f"--env {name}: {path} has no such entry; {hint}")
    return {name: settings for name, settings in entries.items() if not names or name in names}


def _job(name: str, settings: Any, algo: str) -> _ZooJob:
    """:raises ValueError: the entry cannot be a job."""
    job = _ZooJob(name, algo)
    key, value, remark = _environment(name, algo)
    job.values = {"name": name, key: value, "n_envs": 1, "normalize": False}
    if remark:
        job.remarks[key] = remark
    keys = zoo_values.table(settings)
    for zoo_key, content in keys.items():
        if not zoo_values.is_small(content):
            job.refused[zoo_key] = "is too large, or nested too deeply"
        elif zoo_key in ("noise_type", "noise_std"):
            continue
        else:
            _take(job, zoo_key, content)
    if keys.get("noise_type") is not None and not job.refused.keys() & {"noise_type", "noise_std"}:
        _take_noise(job, str(keys["noise_type"]), zoo_values.number(keys.get("noise_std")))
    _fit_minibatch(job)
    _fit_memory(job)
    _settle(job)
    return job


def _environment(name: str, algo: str) -> tuple[str, str, str]:
    """Key and value that name the environment in a job file, and what differs.

    :raises ValueError: a job file cannot name it.
    """
    match = _VERSIONED.match(name)
    if match is None:
        raise ValueError("is no environment, but a group of settings")
    if name in CLASSIC:
        if algo in OFF_POLICY and name in DISCRETE:
            raise ValueError(f"has discrete actions, and {algo} needs continuous ones")
        return "env", name, ""
    newest = f"{match[1]}-v5"
    is_task = f"gymnasium:{newest}" in GYMNASIUM_TASKS
    if not (is_task or match[1] in MUJOCO) or not 2 <= int(match[2]) <= 5:
        raise ValueError(
            "is none of gymnasium's MuJoCo and classic-control environments; if the package that has it is installed, "
            f"add a job with env = {quoted(name)} by hand"
        )
    remark = (
        ""
        if name == newest
        else f"{name} in the Zoo; {newest} is its successor, with small differences"
    )
    return ("task", f"gymnasium:{newest}", remark) if is_task else ("env", newest, remark)


def _take(job: _ZooJob, key: str, content: Any) -> None:
    """Add one of the Zoo's keys to the job, or the reason why it is left out."""
    if key == "policy" and isinstance(content, str):
        # In a job file, the policies of all algorithms have the same names.
        content = content.replace("LstmPolicy", "Policy")
    if key in _NO_KEY:
        if content not in (None, False, 0, "", [], {}):
            job.refused[key] = _NO_KEY[key]
    elif key == "normalize":
        _take_normalize(job, content)
    elif key == "policy_kwargs":
        try:
            parts = zoo_values.table(content) if content is not None else {}
        except ValueError as error:
            job.refused[key] = str(error)
            return
        for name, part in parts.items():
            _set(job, f"policy_kwargs.{name}", zoo_values.policy_value(name, part))
    else:
        _set(job, _PLAIN.get(key, f"{job.algo}.{key}"), zoo_values.number(content))


def _set(job: _ZooJob, key: str, value: Any) -> None:
    """Set a key of the job, if the job file accepts the value, whole numbers also where it is a
    float.
    """
    if value is None:  # Stable-Baselines3's default, which is that of an unset key
        return
    candidates = [value]
    if isinstance(value, float) and value.is_integer():
        candidates = [value, int(value)] if abs(value) <= 1 else [int(value), value]
    for candidate in candidates:
        problems = Problems()
        if check_one(key, candidate, key, problems) is not None:
            job.values[key] = candidate
            return
    job.refused[key] = problems.in_order()[0].message


def _take_normalize(job: _ZooJob, content: Any) -> None:
    value = zoo_values.boolean(content)
    if value is None:
        try:
            options = zoo_values.table(content)
        except ValueError as error:
            job.refused["normalize"] = str(error)
            return
        value = zoo_values.boolean(options.pop("norm_obs", True))
        rewards = zoo_values.boolean(options.pop("norm_reward", True))
        if value != rewards:
            only = "observations" if value else "rewards"
            both = "observations and rewards" if value else "nothing"
            job.remarks["normalize"] = (
                f"only {only} in the Zoo; a job normalises both or neither, here {both}"
            )
        elif options:
            job.remarks["normalize"] = (
                f"without {', '.join(options)}, which a job file does not have"
            )
    job.values["normalize"] = bool(value)


def _take_noise(job: _ZooJob, kind: str, std: Any) -> None:
    if std in (None, 0):
        return
    _set(job, f"{job.algo}.action_noise", std)
    if kind != "normal" and f"{job.algo}.action_noise" in job.values:
        job.remarks[f"{job.algo}.action_noise"] = (
            f"{kind} noise in the Zoo; here normal noise of the same size"
        )


def _fit_minibatch(job: _ZooJob) -> None:
    """Change PPO's batch_size to the nearest that divides a rollout: Stable-Baselines3 would only
    warn.
    """
    algo = job.algo
    if algo in OFF_POLICY or "batch_size" not in DEFAULTS[algo]:
        return
    n_steps = job.values.get(f"{algo}.n_steps", DEFAULTS[algo]["n_steps"])
    batch_size = job.values.get(f"{algo}.batch_size", DEFAULTS[algo]["batch_size"])
    rollout = n_steps * job.values["n_envs"]
    sizes = near(batch_size, 1, rollout) if rollout % batch_size else []
    if sizes:
        job.values[f"{algo}.batch_size"] = sizes[0]
        remark = f"{batch_size} in the Zoo, which does not divide n_steps × n_envs = {rollout}"
        job.remarks[f"{algo}.batch_size"] = remark


def _fit_memory(job: _ZooJob) -> None:
    """Set the memory of a job whose replay buffer needs more than usual."""
    if job.algo not in OFF_POLICY:
        return
    base = job.name.rpartition("-v")[0]
    size = job.values.get(f"{job.algo}.buffer_size", DEFAULTS[job.algo]["buffer_size"])
    bytes_a_transition = 8 * NUMBERS_A_TRANSITION.get(base, 0) + 12
    gib = math.ceil(size * bytes_a_transition / 2**30) + 1  # that of torch and the networks
    if gib > USUAL_GIB:
        job.values["resources.memory"] = f"{gib} GiB"


def _settle(job: _ZooJob) -> None:
    """Leave out keys until the job file accepts the job.

    :raises ValueError: it is refused for another reason than its keys.
    """
    while True:
        entry: dict[str, Any] = {}
        for key, value in job.values.items():
            *tables, last = key.split(".")
            inner = entry
            for table in tables:
                inner = inner.setdefault(table, {})
            inner[last] = value
        try:
            from_mapping(
                {"name": "zoo", "defaults": {"algo": job.algo}, "jobs": [entry]},
                source="",
                base=Path(),
            )
            return
        except SpecError as error:
            problem = error.problems[0]
        where = problem.where.removeprefix("jobs[0].")
        at_fault = [key for key in job.values if where == key or where.startswith(f"{key}.")]
        if not at_fault or at_fault[0] in ("name", "task", "env"):
            raise ValueError(problem.message)
        key = at_fault[0]
        job.refused[key] = problem.message
        job.remarks.pop(key, None)
        del job.values[key]


def _table(job: _ZooJob) -> list[str]:
    lines = [
        (f"{key} = {toml(value)}", job.remarks.get(key, "")) for key, value in job.values.items()
    ]
    return [
        "",
        "[[jobs]]",
        *aligned_lines(lines),
        *(comment(f"without {key}: {reason}") for key, reason in job.refused.items()),
    ]
