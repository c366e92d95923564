"""The worker's specification: every value that decides the result of a training.

The supervisor writes it to ``jobs/<job_id>/spec.json`` before it starts the worker.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import FilePath, Natural, Positive, Table, decode, field_values
from orchestrator.core.job_parts import PartSettings
from orchestrator.core.text import finite_number, storable

SINGLE_KINDS = ("option", "compiler")
"""Parts that a robot has once, edited by keys such as ``model.option.timestep``."""

EDITABLE_KINDS = (
    *SINGLE_KINDS,
    "actuator",
    "body",
    "camera",
    "equality",
    "geom",
    "hfield",
    "joint",
    "key",
    "light",
    "material",
    "mesh",
    "pair",
    "sensor",
    "site",
    "tendon",
)
"""All parts that ``model.*`` keys edit; the others have a name: ``model.geom.thigh.size``."""

Algorithm: TypeAlias = Literal["ppo", "sac", "td3", "a2c"]
"""Those with a name; any other is a class, ``"package.module:Class"``."""

OFF_POLICY = ("sac", "td3")

ROLLOUT_STEPS: Mapping[str, int] = {"ppo": 2048, "a2c": 5}
"""Defaults of ``n_steps`` of the algorithms that learn from one rollout at a time."""

LEAST_ITERATION = 512
"""env_steps. An iteration of PPO is one rollout and its update. Rollouts of the other algorithms
are a few steps long: as many of them make one iteration as have at least this many env_steps."""

LearnerChoice: TypeAlias = Literal["auto", "sb3", "fast"]
"""``"sb3"``: stock Stable-Baselines3; ``"fast"``: the same PPO with less overhead, which does not
fit every job; ``"auto"``: fast where it fits, otherwise sb3."""

Backend: TypeAlias = Literal["auto", "gloo", "nccl"]
"""Communication between ranks; ``"auto"``: nccl when every rank has a GPU, otherwise gloo."""

OnDivergence: TypeAlias = Literal["fail", "end-episode"]
"""What diverged physics ends: the job, or only the episode of that environment, which counts as a
fall."""

Mode: TypeAlias = Literal["allreduce", "parameter-server"]
"""``"allreduce"``: every rank updates with the averaged gradient; ``"parameter-server"``: only rank
0 does."""

COLLECTIVE_TIMEOUT_S = 30.0
"""Longer than a checkpoint or the slowest reset of an environment may take."""

Activation: TypeAlias = Literal["tanh", "relu", "elu", "gelu", "leaky_relu", "silu"]
"""torch's classes have the same names but for case and underscores."""

FAST_ACTIVATIONS: tuple[Activation, ...] = ("tanh", "relu", "elu")

INIT_JOB = "job:"
"""Begins ``init`` where that names a job rather than a path."""

SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf")
"""Hyperparameters that may be functions of the remaining progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All values resolved: with the robot's bundle and the machine they determine the trained
    weights.
    """

    job_id: str
    name: str
    seed: int
    algo: str
    """An :data:`Algorithm`, or a class as ``"package.module:Class"``."""
    learner: LearnerChoice
    total_timesteps: Positive
    n_envs: Positive
    normalize: bool
    checkpoint_every: int | None
    """env_steps between checkpoints, each made at the end of an iteration; None:
    :attr:`checkpoint_every_s` counts."""
    eval_episodes: int
    xml: str | None = None
    """Path of the robot's MJCF relative to the job directory (``robot/hopper.xml``)."""
    model_edits: Table = field(default_factory=dict)
    """Edits that the bundle in ``robot`` already contains: ``"geom.thigh.size"`` → value."""
    randomize: Table = field(default_factory=dict)
    """What every episode draws anew: ``"body.trunk.mass"`` → distribution
    (:mod:`orchestrator.core.numbers.distributions`), or a list of distributions and numbers for an
    attribute of several numbers."""
    asymmetric: bool = False
    """Whether the critic sees what episodes draw, and the actor does not."""
    evaluate: Table = field(default_factory=dict)
    """The grid of the final evaluation: ``"body.trunk.mass"`` → values
    (:mod:`orchestrator.core.numbers.evaluation_grid`). Not part of the fingerprint."""
    task: str | None = None
    """Name of the task when neither ``env`` nor ``entry_point`` is set."""
    task_options: Table = field(default_factory=dict)
    env: str | None = None
    """Gymnasium id, with or without ``xml``."""
    entry_point: str | None = None
    """``package.module:make_env``, called with ``xml=`` (an absolute path or None) and
    ``seed=``."""
    env_kwargs: Table = field(default_factory=dict)
    hyperparameters: Table = field(default_factory=dict)
    """Hyperparameters under Stable-Baselines3's names; schedules are strings (see
    :func:`parse_schedule`). Of an algorithm that is a class: its keyword arguments as they are."""
    policy: str = "MlpPolicy"
    policy_kwargs: Table = field(default_factory=dict)
    """Keyword arguments of the policy as the user wrote them, ``activation_fn`` by its name
    (``"relu"``)."""
    threads: int = 1
    cores: Positive = 1
    """Of each rank. The simulation of a built-in task uses all of them, with the same bits as one.
    Not part of the fingerprint."""
    device: Literal["cpu", "cuda"] = "cpu"
    ranks: Positive = 1
    """Processes that train the policy together. ``n_envs``, ``batch_size`` and ``total_timesteps``
    are totals over all ranks; ``threads`` is per rank."""
    backend: Backend = "auto"
    """How ranks communicate. It has no effect with one rank, nor has ``mode``."""
    mode: Mode = "allreduce"
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S
    """How long a rank waits for the others in an exchange."""
    search_path: FilePath | None = None
    """Folder added to ``sys.path`` for the user's modules. Not part of the fingerprint."""
    video: bool = False
    """Whether a video of its policy is wanted."""
    preview: bool = False
    """Whether the evaluation keeps a pose, for a still."""
    checkpoint_every_s: float | None = None
    """Wall-clock seconds between checkpoints; None where :attr:`checkpoint_every` counts."""
    on_divergence: OnDivergence = "fail"
    keep_replay_buffer: bool = False
    """Whether a replay buffer stays when the policy is saved, for training further."""
    extended_from: tuple[Positive, ...] = ()
    """Earlier values of ``total_timesteps`` of a job that ``--on-change=extend`` trains further.
    Its checkpoints may be those of a training with any of them. Not part of the fingerprint."""
    robot_maker: str | None = None
    """The function that has made the bundle in ``robot``, ``package.module:function``; None: it was
    a file."""
    params: Table = field(default_factory=dict)
    """Its arguments."""
    init: FilePath | None = None
    """Where the policy came from that it starts with, absolute; or ``job:JOB_ID``, the policy of a
    job of the same experiment. Only the latter is part of the fingerprint."""
    init_sha256: str | None = None
    """SHA-256 of that policy, a copy of which is in the job directory; None: it starts with random
    weights, or the job that it starts from has not succeeded yet. Not part of the fingerprint where
    ``init`` is."""
    init_env_steps: Natural | None = None
    """env_steps that this policy had been trained for, in the job that it came from, in the one that
    this started from, and so on; None: not known, or random weights. Not part of the
    fingerprint."""
    pause_at: Positive | None = None
    """The training pauses at the end of the first iteration that brings it to so many env_steps,
    where that is not yet ``total_timesteps``. None: it trains to its end. Not part of the
    fingerprint."""
    after: tuple[str, ...] = ()
    """Jobs of the same experiment that have to succeed before its launch. Not part of the
    fingerprint."""
    measure_training: bool = False
    """Whether episodes of training are measured, too: for ``progress.csv``, and for rungs at which
    trainings are compared by measures. It changes no bit of the training. Not part of the
    fingerprint."""
    parts: PartSettings = field(default_factory=dict)
    """What features do in this training, by name (:mod:`orchestrator.core.job_parts`); those that do
    nothing are missing."""

    def fingerprint(self, total_timesteps: int | None = None) -> str:
        """SHA-256 of the values that decide the result, in hexadecimal.

        :param total_timesteps: in place of its own.
        """
        values = self.values()
        if total_timesteps is not None:
            values["total_timesteps"] = total_timesteps
        for key in (*NOT_IN_FINGERPRINT, *(ABOUT_RANKS if self.ranks == 1 else ())):
            del values[key]
        if self.init_job is not None:
            del values["init_sha256"]
            values["init"] = self.init
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @property
    def init_job(self) -> str | None:
        """The job of the same experiment whose policy it starts with."""
        if self.init is None or not self.init.startswith(INIT_JOB):
            return None
        return self.init.removeprefix(INIT_JOB)

    @property
    def attempt_end(self) -> int:
        """env_steps at which an attempt ends by itself: those of its rung, or of the whole
        training.
        """
        if self.pause_at is None:
            return self.total_timesteps
        return min(self.pause_at, self.total_timesteps)

    @property
    def algo_table(self) -> str:
        """The table of the job file that has the hyperparameters."""
        return "algo_kwargs" if is_algorithm_class(self.algo) else self.algo

    @property
    def schedules(self) -> dict[str, str]:
        """The hyperparameters that change over the training."""
        if is_algorithm_class(self.algo):
            return {}
        values = ((name, self.hyperparameters.get(name)) for name in SCHEDULES)
        return {name: value for name, value in values if isinstance(value, str)}

    @property
    def steps_a_rollout(self) -> int | None:
        """env_steps between two updates; None when whole episodes are collected, or where the
        algorithm is a class.
        """
        if is_algorithm_class(self.algo):
            return None
        if self.algo not in OFF_POLICY:
            n_steps = self.hyperparameters.get("n_steps", ROLLOUT_STEPS[self.algo])
            return int(n_steps) * self.n_envs
        frequency = self.hyperparameters.get("train_freq", 1)
        if isinstance(frequency, int):
            return frequency * self.n_envs
        count, unit = frequency
        return count * self.n_envs if unit == "step" else None

    @property
    def steps_an_iteration(self) -> int:
        """env_steps of a row of ``timings.csv`` and ``progress.csv``.

        The last iteration may have fewer; without :attr:`steps_a_rollout`, the others have at least
        these.
        """
        steps = self.steps_a_rollout or LEAST_ITERATION
        return steps if self.algo == "ppo" else steps * math.ceil(LEAST_ITERATION / steps)

    def values(self) -> dict[str, Any]:
        """All values in JSON types."""
        parts = {name: field_values(settings) for name, settings in self.parts.items()}
        return {**field_values(self), "parts": parts}

    def to_json(self) -> str:
        text = json.dumps(self.values(), indent=2, sort_keys=True, ensure_ascii=False)
        return storable(f"{text}\n")

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerSpec:
        """:raises ValueError: naming the field that is missing or of another type."""
        return decode(cls, text)

    def why_not_fast(self) -> dict[str, str]:
        """:func:`unfit_for_fast` of this training."""
        return unfit_for_fast(
            algo=self.algo,
            policy=self.policy,
            hyperparameters=self.hyperparameters,
            policy_kwargs=self.policy_kwargs,
            on_gpu=self.device != "cpu",
        )


def is_algorithm_class(algo: str) -> bool:
    """Return whether ``algo`` is a class, ``"package.module:Class"``, and no :data:`Algorithm`."""
    return ":" in algo


FROM_NOTHING: Table = {
    "init": None,
    "init_sha256": None,
    "init_env_steps": None,
}
"""Fields of the spec of a training that starts with random weights."""
NOT_IN_FINGERPRINT = (
    "search_path",
    "checkpoint_every",
    "checkpoint_every_s",
    "eval_episodes",
    "evaluate",
    "name",
    "video",
    "cores",
    "preview",
    "collective_timeout_s",
    "keep_replay_buffer",
    "extended_from",
    "init",
    "init_env_steps",
    "pause_at",
    "after",
    "measure_training",
)
ABOUT_RANKS = ("ranks", "backend", "mode")
"""Fields that are part of the fingerprint only where a job has several ranks."""

_SCHEDULE = re.compile(r"\s*linear\s*\(\s*(?P<arguments>[^()]*)\)\s*\Z")


def parse_schedule(text: str) -> tuple[float, float, float]:
    """``"linear(3e-4, 0)"`` → ``(start, end, end_fraction)``.

    The value changes linearly from ``start`` to ``end`` (default 0), which it reaches after the
    fraction ``end_fraction`` (default 1) of ``total_timesteps``.

    :raises ValueError: for any other text, with the accepted forms.
    """
    match = _SCHEDULE.match(text)
    if match is None:
        forms = '"linear(3e-4, 0)" or "linear(3e-4, 1e-5, 0.8)"'
        raise ValueError(f"{text!r}: expected a number or a schedule such as {forms}")
    numbers = [finite_number(part) for part in match["arguments"].split(",")]
    if len(numbers) > 3:
        raise ValueError(f"{text!r}: expected one to three numbers")
    start = numbers[0]
    end = numbers[1] if len(numbers) > 1 else 0.0
    fraction = numbers[2] if len(numbers) > 2 else 1.0
    if not 0 < fraction <= 1:
        raise ValueError(f"{text!r}: expected a third number, the fraction, above 0 and at most 1")
    return start, end, fraction


def unfit_for_fast(
    *,
    algo: str,
    policy: str,
    hyperparameters: Table,
    policy_kwargs: Table,
    on_gpu: bool,
) -> dict[str, str]:
    """Keys of a job that the fast learner does not support → the reason. (Spaces:
    ``worker/training/fast/qualify``.)
    """
    if algo != "ppo":
        return {"algo": f"algo is {algo}, and the fast learner supports only ppo"}
    reasons: dict[str, str] = {}
    if policy != "MlpPolicy":
        reasons["policy"] = f"policy is {policy}, and the fast learner supports only MlpPolicy"
    if hyperparameters.get("use_sde"):
        reasons["ppo.use_sde"] = "ppo.use_sde is on, and the fast learner does not support gSDE"
    activation = policy_kwargs.get("activation_fn", "tanh")
    if activation not in FAST_ACTIVATIONS:
        reasons["policy_kwargs.activation_fn"] = (
            f"policy_kwargs.activation_fn is {activation}, and the fast learner supports "
            f"{', '.join(FAST_ACTIVATIONS)}"
        )
    if on_gpu:
        reasons["resources.gpus"] = (
            "resources.gpus asks for a GPU, and the fast learner runs on the CPU"
        )
    return reasons


def fast_refused(why: str) -> str:
    """The message for a job with ``learner = "fast"`` that the fast learner does not support."""
    return f'learner = "fast" is not possible: {why}; set learner = "auto", which uses stock Stable-Baselines3 here'
