"""The worker's specification: every value that decides the result of one training.

The supervisor writes a :class:`WorkerSpec` to ``jobs/<job_id>/spec.json`` before it starts
``python -m orchestrator.worker JOB_DIR NUMBER``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import decode

SINGLE_KINDS = ("option", "compiler")
"""Parts of a robot that ``model.*`` keys edit, of which it has one: ``model.option.timestep``."""


EDITABLE_KINDS = (
    *SINGLE_KINDS,
    *("actuator", "body", "camera", "equality", "geom", "hfield", "joint", "key", "light", "material", "mesh"),
    *("pair", "sensor", "site", "tendon"),
)
"""All of them; the others have names: ``model.geom.thigh.size``."""


Algorithm: TypeAlias = Literal["ppo", "sac", "td3", "a2c"]


OFF_POLICY = ("sac", "td3")
"""Algorithms that learn from a replay buffer."""


LEAST_ITERATION = 512
"""env_steps. An iteration of PPO is one rollout with its update. Those of the other algorithms are a few steps long: so
many of them are one iteration that it has at least this many."""


LearnerChoice: TypeAlias = Literal["auto", "sb3", "fast"]
"""``"sb3"``: stock Stable-Baselines3; ``"fast"``: the same PPO with less overhead, for what it suits; ``"auto"``: that
wherever it does, and stock Stable-Baselines3 elsewhere."""


Backend: TypeAlias = Literal["auto", "gloo", "nccl"]
"""What carries sums from rank to rank; ``"auto"``: nccl where every rank has a GPU, gloo elsewhere."""


Mode: TypeAlias = Literal["allreduce", "parameter-server"]
"""``"allreduce"``: every rank steps with the averaged gradient; ``"parameter-server"``: rank 0 alone does."""


Activation: TypeAlias = Literal["tanh", "relu", "elu", "gelu", "leaky_relu", "silu"]
"""torch's class of it has the same name but for case and underscores."""


FAST_ACTIVATIONS: tuple[Activation, ...] = ("tanh", "relu", "elu")
"""Of the fast learner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Everything that decides the result of a training, resolved; nothing that does not.

    The trained weights are a function of these values, the robot's bundle and the machine.
    """

    job_id: str
    name: str
    """The user's own name for the job, unchanged."""
    seed: int
    algo: Algorithm
    learner: LearnerChoice
    total_timesteps: int
    n_envs: int
    normalize: bool
    checkpoint_every: int
    """env_steps between checkpoints; they fall on the next iteration boundary."""
    eval_episodes: int
    xml: str | None = None
    """Path of the robot's MJCF relative to the job directory (``robot/hopper.xml``)."""
    model_edits: Mapping[str, Any] = field(default_factory=dict)
    """What the bundle in ``robot`` was changed by: ``"geom.thigh.size"`` → value. Nothing is left to apply."""
    task: str | None = None
    """Built-in task, when neither ``env`` nor ``entry_point`` is set."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    """Gymnasium id, perhaps with ``xml``."""
    entry_point: str | None = None
    """``package.module:make_env``, called with ``xml=`` (absolute path or None) and ``seed=``."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of ``env`` or ``entry_point``."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Of ``algo``, under Stable-Baselines3's own names; schedules as strings (see :func:`parse_schedule`)."""
    policy: str = "MlpPolicy"
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """As the user wrote them; ``activation_fn`` by name (``"relu"``)."""
    threads: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    ranks: int = 1
    """Processes that train this one policy together. ``n_envs``, ``batch_size`` and ``total_timesteps`` are over
    all of them, ``threads`` is each one's own."""
    backend: Backend = "auto"
    """Without effect on a single rank, like ``mode``."""
    mode: Mode = "allreduce"
    search_path: str | None = None
    """Folder put on ``sys.path`` for ``entry_point`` and ``env`` modules. Not part of the fingerprint."""
    video: bool = False
    """Whether video and film strip are made when all training is over. Not part of the fingerprint."""

    def fingerprint(self) -> str:
        """SHA-256 over the values that decide the result, as hexadecimal text."""
        values = dataclasses.asdict(self)
        for key in (*NOT_IN_FINGERPRINT, *(ABOUT_RANKS if self.ranks == 1 else ())):
            del values[key]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @property
    def steps_a_rollout(self) -> int | None:
        """env_steps from one update to the next; None where whole episodes are collected."""
        if self.algo in OFF_POLICY:
            frequency = self.hyperparameters.get("train_freq", 1)
            if not isinstance(frequency, int):
                count, unit = frequency
                return count * self.n_envs if unit == "step" else None
            return frequency * self.n_envs
        default = 2048 if self.algo == "ppo" else 5
        return int(self.hyperparameters.get("n_steps", default)) * self.n_envs

    @property
    def steps_an_iteration(self) -> int:
        """env_steps of a row of ``timings.csv`` and ``progress.csv``; checkpoints fall between iterations.

        The last one may have fewer; where whole episodes are collected all have these at least.
        """
        steps = self.steps_a_rollout or LEAST_ITERATION
        return steps if self.algo == "ppo" else steps * math.ceil(LEAST_ITERATION / steps)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        """:raises ValueError: naming the field that is unknown, missing or of another type."""
        return decode(cls, text)


NOT_IN_FINGERPRINT = ("search_path", "checkpoint_every", "eval_episodes", "name", "video")


ABOUT_RANKS = ("ranks", "backend", "mode")
"""In the fingerprint of a job of several ranks only."""


_SCHEDULE = re.compile(r"\s*(?P<kind>[a-z_]+)\s*\(\s*(?P<arguments>[^()]*)\)\s*\Z")


def parse_schedule(text: str) -> tuple[float, float, float]:
    """``"linear(3e-4, 0)"`` → ``(start, end, end_fraction)``.

    ``linear(start, end[, end_fraction])`` falls in a straight line from ``start`` to ``end``,
    reached after ``end_fraction`` (default 1) of ``total_timesteps``; ``linear(start)`` ends at 0.

    :raises ValueError: with the accepted forms, for any other text.
    """
    match = _SCHEDULE.match(text)
    expected = 'expected a number or a schedule such as "linear(3e-4, 0)" or "linear(3e-4, 1e-5, 0.8)"'
    if match is None or match["kind"] != "linear":
        raise ValueError(f"{text!r} is not a schedule: {expected}")
    try:
        numbers = [float(part) for part in match["arguments"].split(",")]
    except ValueError:
        raise ValueError(f"{text!r} holds something that is not a number: {expected}") from None
    if not 1 <= len(numbers) <= 3:
        raise ValueError(f"{text!r} takes one to three numbers: {expected}")
    start, end, fraction = (numbers + [0.0, 1.0][len(numbers) - 1 :])[:3]
    if not 0 < fraction <= 1:
        raise ValueError(
            f"{text!r}: the third number, the fraction of training when the end is reached, lies in (0, 1]"
        )
    return start, end, fraction


def unfit_for_fast(
    *, algo: str, policy: str, hyperparameters: Mapping[str, Any], policy_kwargs: Mapping[str, Any], on_gpu: bool
) -> dict[str, str]:
    """What the fast learner cannot do of that which a job file alone tells: its key → why, in words.

    What the environment's spaces have to say is for :mod:`orchestrator.worker.training.fast.qualify`.
    """
    if algo != "ppo":
        return {"algo": f"algo is {algo}, and the fast learner has ppo alone"}
    activation = policy_kwargs.get("activation_fn", "tanh")
    has = "and the fast learner has"
    reasons = (
        ("policy", policy != "MlpPolicy", f"is {policy}, {has} MlpPolicy alone"),
        ("ppo.use_sde", hyperparameters.get("use_sde", False), f"is on, {has} no gSDE"),
        (
            "policy_kwargs.activation_fn",
            activation not in FAST_ACTIVATIONS,
            f"is {activation}, {has} {', '.join(FAST_ACTIVATIONS)}",
        ),
        ("resources.gpus", on_gpu, "asks for a GPU, and the fast learner computes on the CPU"),
    )
    return {key: f"{key} {why}" for key, is_so, why in reasons if is_so}


def fast_refused(why: str) -> str:
    """The message for a job with ``learner = "fast"`` that cannot have it."""
    return f'learner = "fast" is not possible: {why}; set learner = "auto", which takes stock Stable-Baselines3 here'
