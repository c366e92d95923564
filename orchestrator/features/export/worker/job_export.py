"""``python -m orchestrator.features.export.worker.job_export JOB_DIR --to FILE``: write a job's policy for
other programs.

Everything is read from the job's directory. The file written, and what it cannot hold, are lines on
standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.core.decoding import field_values
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.paths import JobPaths
from orchestrator.core.text import count, joined
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.export.worker import policy_files
from orchestrator.features.export.worker.exported_policy import (
    Controls,
    ExportedPolicy,
    ExportError,
    Limits,
    Metadata,
    Normalization,
)
from orchestrator.worker.runtime import child_command, import_speed
from orchestrator.worker.training import trained_policy

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from orchestrator.features.export.worker.joint_drives import JointDrives
    from orchestrator.worker.envs.simulation import Simulation
    from orchestrator.worker.tasks import Task


class _Interface(NamedTuple):
    """What the environment says of observations and actions; as in :class:`Metadata`."""

    control_period_s: float | None
    observation_names: list[str]
    observation_units: list[str]
    action_names: list[str]
    ctrl_units: list[str]
    controls: Controls | None
    limits: Limits | None = None
    unknown_limits: str | None = None
    command_names: Sequence[str] = ()
    input_names: Sequence[str] = ()
    input_sizes: Sequence[int] = ()
    drives: JointDrives | None = None
    mjlab_terms: Mapping[str, Sequence[Any]] | None = None


def export(options: argparse.Namespace) -> None:
    """:raises UsageError: there is no such policy, or it cannot be exported."""
    policy_files.check_name(options.to)
    paths = JobPaths(options.job_dir)
    spec = WorkerSpec.from_json(paths.spec.read_text(encoding="utf-8"))
    spec = dataclasses.replace(spec, device="cpu", n_envs=1)
    trained = trained_policy.read_checkpoint(paths, options.checkpoint)
    with import_speed.fast_imports():
        # Before the user's folder is on the path: it may contain a random.py.
        import stable_baselines3  # noqa: F401

    if spec.search_path is not None:
        sys.path.insert(0, spec.search_path)
    try:
        policy = policy_of(spec, paths, trained)
    except ExportError as error:
        raise ExportError(f"{spec.job_id} cannot be exported: {error}") from None
    content = policy_files.content(policy, options.to)
    options.to.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.to, content)
    print(f"wrote {options.to}: {_summary(policy)}")
    if policy.unknown_limits is not None:
        print(f"{options.to} does not clip what is observed: {policy.unknown_limits}")
    if options.check:
        from orchestrator.features.export.worker import exported_check

        found = exported_check.check(options.to, spec, paths, trained, policy.outputs)
        print(f"checked {options.to} beside the policy: {found}")


def _summary(policy: ExportedPolicy) -> str:
    facts = policy.metadata
    inputs = f" in the inputs {joined(facts.input_names)}" if facts.input_names else ""
    parts = [
        f"{count(len(facts.observation_names), 'observation')}{inputs}",
        count(len(facts.action_names), "action"),
    ]
    if facts.control_period_s is not None:
        parts.append(f"an action every {facts.control_period_s:g} s")
    without = "" if policy.controls else "; without ctrl (see docs/export.md)"
    return ", ".join(parts) + without


def policy_of(
    spec: WorkerSpec, paths: JobPaths, trained: trained_policy.Checkpoint | None
) -> ExportedPolicy:
    """:raises UsageError: as :func:`export`."""
    from stable_baselines3.common.vec_env import VecNormalize

    from orchestrator.features.export.worker.network_layers import network_of
    from orchestrator.worker.envs import env_factory

    venv = env_factory.make(spec, paths.root, n_envs=1, seed=0)
    model = trained_policy.load_model(spec, paths, venv, trained)
    network = network_of(model)
    normalized = trained_policy.normalized_env(spec, paths, venv, trained)
    simulation: Simulation | None = getattr(venv, "simulation", None)
    hidden = len(simulation.privileged_names) if simulation is not None else 0
    seen = slice(None, -hidden if hidden else None)
    scaling = (
        _normalization(normalized, seen)
        if isinstance(normalized, VecNormalize) and normalized.norm_obs
        else None
    )
    first, *others = network.layers
    first = dataclasses.replace(first, weight=first.weight[:, seen])
    interface = _of_environment(venv) if simulation is None else _of_task(simulation)
    described: dict[str, Any] = interface._asdict()
    controls = described.pop("controls")
    limits = described.pop("limits")
    unknown_limits = described.pop("unknown_limits")
    drives = described.pop("drives")
    mjlab_terms = described.pop("mjlab_terms")
    if drives is not None:
        described |= field_values(drives)
    action_space: Any = venv.action_space
    return ExportedPolicy(
        metadata=Metadata(
            job=spec.job_id,
            algo=spec.algo,
            task=str(spec.entry_point or spec.env or spec.task),
            env_steps=model.num_timesteps,
            robot_sha256=paths.robot_hash.read_text().strip() if paths.robot_hash.exists() else "",
            **described,
        ),
        limits=limits,
        unknown_limits=unknown_limits,
        normalization=scaling,
        layers=(first, *others),
        mean_limit=network.mean_limit,
        squash=network.squash,
        low=action_space.low.astype(np.float32),
        high=action_space.high.astype(np.float32),
        controls=controls,
        mjlab_terms=mjlab_terms,
    )


def _normalization(statistics: Any, seen: slice) -> Normalization:
    """:param seen: the observations that the actor sees."""
    from orchestrator.features.export.worker.input_spaces import entries_of

    rms = statistics.obs_rms
    parts = [rms[name] for name in entries_of(statistics.observation_space)] or [rms]
    mean = np.concatenate([part.mean for part in parts])
    var = np.concatenate([part.var for part in parts])
    deviations = np.sqrt(var[seen] + statistics.epsilon)
    return Normalization(mean=mean[seen], std=deviations, clip=float(statistics.clip_obs))


def _of_task(simulation: Simulation) -> _Interface:
    from orchestrator.features.export.worker.joint_drives import control_units, joint_drives
    from orchestrator.features.export.worker.mjlab_terms import mjlab_terms
    from orchestrator.worker.tasks import input_names
    from orchestrator.worker.training.start_policy import names_of

    model = simulation.model
    names = names_of(simulation)
    size = simulation.observation_size - len(simulation.privileged_names)
    observations = (
        _numbered_names("observation", size) if names is None else names["observations"][:size]
    )
    terms = simulation.task.policy_terms
    steps = simulation.task.observed_steps
    units = [input_names.UNKNOWN] * size if terms is None else terms.units * steps
    controls = _controls(simulation)
    drives = joint_drives(model, simulation.task)
    if controls is None:  # the user's own actions need not be those of the actuators
        actions = len(simulation.task.actions.low)
        action_names = _numbered_names("action", actions)
        ctrl_units = [input_names.UNKNOWN] * actions
    else:
        action_names = list(input_names.controls(model))
        ctrl_units = control_units(model)
    return _Interface(
        control_period_s=simulation.control_period_s,
        observation_names=observations,
        observation_units=units,
        action_names=action_names,
        ctrl_units=ctrl_units,
        controls=controls,
        limits=_limits(simulation.task),
        unknown_limits=_unknown_limits(simulation.task),
        command_names=list(simulation.task.goal_labels().names),
        drives=drives,
        mjlab_terms=mjlab_terms(simulation.task, drives),
    )


def _limits(task: Task) -> Limits | None:
    """Return the bounds of the observations, which may be those of several steps."""
    terms = task.policy_terms
    if terms is None or np.isinf(terms.limits).all():
        return None
    low, high = np.tile(terms.limits.astype(np.float64), task.observed_steps)
    return Limits(low=low, high=high)


def _unknown_limits(task: Task) -> str | None:
    """Return why nobody knows how observations are clipped, and what to do, or None if it is
    known.
    """
    if task.policy_terms is not None:
        return None
    name = f"{type(task).__module__}:{type(task).__qualname__}"
    return (
        f"{name} has an observe() of its own; if that clips, write make_observation_terms() in its place, "
        "or clip what the file gets"
    )


def _controls(simulation: Simulation) -> Controls | None:
    """None for a mapping of the user's own."""
    from orchestrator.worker.tasks.actions import Direct, Scaled, control_limits

    actions = simulation.task.actions
    if type(actions) is Scaled:  # a subclass may do anything
        return Controls(
            middle=actions.middle, half=actions.half, low=actions.ctrl_low, high=actions.ctrl_high
        )
    if type(actions) is Direct:
        low, high = control_limits(simulation.model)
        return Controls(middle=np.zeros(len(low)), half=np.ones(len(low)), low=low, high=high)
    return None


def _of_environment(venv: VecEnv) -> _Interface:
    """An environment of gymnasium or of the user tells its sizes and, if it has MuJoCo's ``dt``,
    its period.
    """
    from orchestrator.features.export.worker.input_spaces import entries_of

    envs = venv.envs  # type: ignore[attr-defined]
    [period] = venv.get_attr("dt") if all(hasattr(env.unwrapped, "dt") for env in envs) else [None]
    entries = entries_of(venv.observation_space)
    sizes = entries or {"observation": int(np.prod(venv.observation_space.shape))}  # type: ignore[arg-type]
    names = [one for name, size in sizes.items() for one in _numbered_names(name, size)]
    actions = int(np.prod(venv.action_space.shape))  # type: ignore[arg-type]
    return _Interface(
        control_period_s=None if period is None else float(period),
        observation_names=names,
        observation_units=[""] * len(names),
        action_names=_numbered_names("action", actions),
        ctrl_units=[""] * actions,
        controls=None,
        input_names=list(entries),
        input_sizes=list(entries.values()),
    )


def _numbered_names(name: str, size: int) -> list[str]:
    return [f"{name} {number}" for number in range(size)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.features.export.worker.job_export", allow_abbrev=False
    )
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--checkpoint")
    parser.add_argument("--check", action="store_true")
    return parser


if __name__ == "__main__":
    child_command.run(lambda: export(_parser().parse_args()))
