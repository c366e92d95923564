"""Messages between processes: progress, exit record, and the examination of robots.

A worker sends :class:`Progress` lines on its channel and writes an :class:`ExitRecord` to ``exit.json``. The examining
process answers every :class:`ExaminationRequest` with an :class:`ExaminationAnswer`; each is one line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from orchestrator.core.decoding import decode


class JsonLine:
    """A dataclass that is sent as one line of JSON."""

    __slots__ = ()

    def to_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode() + b"\n"  # type: ignore[call-overload]

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """:raises ValueError: for anything else; whoever inherits the worker's socket can write to it."""
        return decode(cls, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(JsonLine):
    """A line on the worker's channel, at most two a second."""

    phase: Literal["starting", "training", "evaluating"]
    env_steps: int = 0
    iteration: int = 0
    ep_rew_mean: float | None = None
    env_steps_per_s: float | None = None
    cpu_share: float | None = None
    """CPU seconds of all threads per second of wall time, since the message before."""
    run_delay_share: float | None = None
    """Seconds that threads were runnable but waited for a CPU, per second of wall time, since the message before."""
    learner: str | None = None


@dataclass(slots=True, kw_only=True)
class ExitRecord:
    """``exit.json``: how the worker itself says that it ended. There is none when it was killed."""

    code: int
    message: str
    """One line for ``status``; empty on success."""
    traceback: str = ""
    env_steps: int = 0
    resumed_from: int | None = None
    """env_steps of the checkpoint that this attempt resumed from."""
    ep_rew_mean: float | None = None
    """The last ``rollout/ep_rew_mean`` of training."""
    ep_rew_mean_first: float | None = None
    """The first ``rollout/ep_rew_mean`` of the job, in whichever attempt."""
    eval_mean: float | None = None
    """Mean return of the deterministic policy over ``eval_episodes`` episodes."""
    learner: str | None = None
    learner_reason: str | None = None
    import_s: float | None = None
    """Seconds from exec to the end of imports."""
    first_step_s: float | None = None
    """Seconds from exec to the end of the first environment step."""
    checkpoint_s: float | None = None
    eval_s: float | None = None
    wall_s: float | None = None
    """Seconds from exec to the writing of this record."""
    cpu_s: float | None = None
    weights_sha256: str | None = None
    """Over policy, optimiser and normalisation of a finished training (see ``worker/training/weights.py``)."""
    unsaveable: str | None = None
    """Why the last checkpoint lacks the state of the environments, so that resuming starts new episodes."""
    cpus: Sequence[int] | None = None
    """CPUs that the worker was allowed at its end; a job may have moved itself. None where the kernel does not say."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ExitRecord:
        """:raises ValueError: for anything else."""
        return decode(cls, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationRequest(JsonLine):
    """Can this robot, task or environment be trained?"""

    xml: str | None = None
    """Absolute path of the robot's MJCF."""
    model_edits: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False
    """Whether only the MJCF is examined, without a task."""
    task: str | None = None
    """Used when neither ``env`` nor ``entry_point`` is given; ``"auto"`` is answered with the task chosen."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    entry_point: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None
    """Stable-Baselines3's name of the policy, which must fit the environment as the next three must; None: any."""
    use_sde: bool = False
    algo: str = "ppo"
    fast: bool = False
    """Whether the job demands ``learner = "fast"``."""
    search_path: str | None = None
    stage_to: str | None = None
    """Folder to write the robot's bundle to; None: a temporary one."""
    simulate_s: float = 0.25
    """CPU seconds that the simulation stability test may take."""
    memory_mib: int | None = None
    """Memory that compiling and simulating may take; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationAnswer(JsonLine):
    """The answer to one :class:`ExaminationRequest`."""

    problem: str | None = None
    """Why it cannot be trained, naming the file; None: it can."""
    errno: int | None = None
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    fragment: str | None = None
    """Why the file is not a robot: it is a part of one, or no MJCF."""
    includes: Sequence[str] = ()
    """Real paths of the files that it includes directly, when ``alone`` was asked."""
    xml: str | None = None
    """Path of the main MJCF, relative to ``stage_to``."""
    hash: str | None = None
    """SHA-256 over the contents of the bundle; a copy under another name has the same."""
    task: str | None = None
    task_reason: str | None = None
    """Why it was chosen; None when it was asked for."""
    process_exits: bool = False
    """Whether the process ends after this answer, because what this robot did might affect the next one."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Key figures of the compiled model (see ``worker/robots/model_summary.py``); empty without a model."""


def read_exit_record(path: Path) -> ExitRecord | None:
    """The ``exit.json`` of an attempt; None when there is none that can be read."""
    try:
        return ExitRecord.from_json(path.read_text())
    except (OSError, ValueError):
        return None
