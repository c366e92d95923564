"""What processes tell each other: progress, exit record, and examination of a robot.

A worker sends :class:`Progress` lines on its channel and leaves an :class:`ExitRecord` in ``exit.json``. The child
process of preflight answers each :class:`ExaminationRequest` with an :class:`ExaminationAnswer`, line by line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.core.decoding import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One line on the worker's channel, at most two a second."""

    phase: Literal["starting", "training", "evaluating"]
    env_steps: int = 0
    iteration: int = 0
    ep_rew_mean: float | None = None
    env_steps_per_s: float | None = None
    """Over the last iteration."""
    cpu_share: float | None = None
    """CPU seconds per second of wall time since the last record, all threads."""
    run_delay_share: float | None = None
    """Seconds spent runnable but waiting for a CPU, per second of wall time, all threads."""
    learner: str | None = None

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Progress:
        """:raises ValueError: for anything else; whoever inherits the socket can write to it."""
        return decode(cls, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """``exit.json``: the worker's own last word. Absent when it was killed."""

    code: int
    message: str
    """One line for ``status``; empty on success."""
    traceback: str = ""
    env_steps: int = 0
    resumed_from: int | None = None
    """env_steps of the checkpoint this attempt started from."""
    ep_rew_mean: float | None = None
    """Mean return of the last episodes of training (``rollout/ep_rew_mean``)."""
    ep_rew_mean_first: float | None = None
    """The first ``rollout/ep_rew_mean`` of the job, over all attempts."""
    eval_mean: float | None = None
    """Mean deterministic return over ``eval_episodes``."""
    learner: str | None = None
    learner_reason: str | None = None
    import_s: float | None = None
    """From exec to the end of imports."""
    first_step_s: float | None = None
    """From exec to the end of the first environment step."""
    checkpoint_s: float | None = None
    eval_s: float | None = None
    wall_s: float | None = None
    """From exec to the writing of this record."""
    cpu_s: float | None = None
    weights_sha256: str | None = None
    """Of all that a finished training has made: policy, optimiser, normalisation (``worker/training/weights.py``)."""
    unsaveable: str | None = None
    """Why the last checkpoint is without the environments' state: on resume new episodes begin."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ExitRecord:
        """:raises ValueError: for anything else."""
        return decode(cls, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationRequest:
    """One line to the examining process: is this robot, task or environment fit to be trained?"""

    xml: str | None = None
    """Absolute path of the robot's MJCF."""
    model_edits: Mapping[str, Any] = field(default_factory=dict)
    """``"geom.thigh.size"`` → value, as in :attr:`WorkerSpec.model_edits`."""
    alone: bool = False
    """Whether the MJCF is examined for its own sake, with no task given."""
    task: str | None = None
    """When neither ``env`` nor ``entry_point`` is given; ``"auto"`` is answered with the task chosen."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    entry_point: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None
    """Stable-Baselines3's name of it, to see whether it fits the environment; None: not asked."""
    use_sde: bool = False
    """Likewise."""
    algo: str = "ppo"
    """Which has to suit the environment's spaces."""
    fast: bool = False
    """Whether ``learner = "fast"`` is demanded, so that the environment's spaces must suit it."""
    search_path: str | None = None
    stage_to: str | None = None
    """Folder the robot's bundle is written to; None: examined in a temporary one."""
    simulate_s: float = 0.25
    """CPU seconds that trying out the robot's physics may take."""
    memory_mib: int | None = None
    """What compiling and simulating may take; None: no limit."""

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> ExaminationRequest:
        return decode(cls, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationAnswer:
    """One line from the examining process, for one request."""

    problem: str | None = None
    """Why it cannot be trained, with the file; None: it can."""
    errno: int | None = None
    """Of the operating system's error that is the problem, if it is one."""
    warnings: Sequence[str] = ()
    """What speaks against training it as it is."""
    notes: Sequence[str] = ()
    """What is worth knowing."""
    fragment: str | None = None
    """Why the file is no robot of its own, for what is part of others or no MJCF at all."""
    includes: Sequence[str] = ()
    """Real paths of the files that it includes itself; told when ``alone``."""
    xml: str | None = None
    """Path of the main MJCF, relative to ``stage_to``."""
    hash: str | None = None
    """Of the bundle: SHA-256 over all contents; copies under another name have the same."""
    task: str | None = None
    """The task asked for, or chosen."""
    task_reason: str | None = None
    """Why it was chosen; None where it was given."""
    spoilt: bool = False
    """Whether the process ends with this answer, because another robot might suffer there from what this one did."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Of the compiled model, by the names in ``orchestrator/worker/robots/model_summary.py``; empty without one."""

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> ExaminationAnswer:
        return decode(cls, line)


def read_exit_record(path: Path) -> ExitRecord | None:
    """The ``exit.json`` of an attempt; None when there is none that can be read."""
    try:
        return ExitRecord.from_json(path.read_text())
    except (OSError, ValueError):
        return None
