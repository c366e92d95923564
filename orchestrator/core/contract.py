"""What supervisor and worker share, and nothing else.

The supervisor writes a :class:`WorkerSpec` to ``jobs/<job_id>/spec.json`` and starts
``python -m orchestrator.worker JOB_DIR NUMBER``; the worker answers with :class:`Progress`
records on its channel, an :class:`ExitRecord` in ``exit.json`` and an :class:`ExitCode`.
Before that, ``python -m orchestrator.worker.robots.preflight_child`` answers an :class:`ExaminationRequest` by an
:class:`ExaminationAnswer`, line by line.
Only the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

CHANNEL_VARIABLE = "ORCHESTRATOR_CHANNEL"
"""Environment variable: number of the inherited socket. Its end-of-file means the supervisor is gone."""
TOKEN_VARIABLE = "ORCHESTRATOR_TOKEN"  # noqa: S105 - the name of a variable, no secret
"""Environment variable: ``<supervisor token>/<job_id>/<number>``, with several ranks ``/<rank>`` behind it; marks
every descendant of an attempt."""
SEARCH_PATH_VARIABLE = "ORCHESTRATOR_SEARCH_PATH"
"""Environment variable: folder that takes the place of :attr:`WorkerSpec.search_path`, on machines that do not have
that one as it was when the jobs began."""
RANK_VARIABLE, WORLD_SIZE_VARIABLE, LOCAL_RANK_VARIABLE = "RANK", "WORLD_SIZE", "LOCAL_RANK"
"""Environment variables of a rank, under the names that PyTorch's launchers use."""
RANKS_SECRET_VARIABLE = "ORCHESTRATOR_RANKS_SECRET"  # noqa: S105 - the name of a variable, no secret
"""Environment variable: by what the ranks of an attempt know that it is one of them who speaks. Made by whoever starts
them, the same for all; never on a command line, never in a file."""
DISTRIBUTED_VARIABLES = (
    *(RANK_VARIABLE, WORLD_SIZE_VARIABLE, LOCAL_RANK_VARIABLE, RANKS_SECRET_VARIABLE),
    *("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
"""What tells a process that it is one of several. A supervisor's own are not for its workers."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def worker_thread_settings(threads: int) -> dict[str, str]:
    """The environment variables that give a process ``threads`` threads, waiting without spinning."""
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


SINGLE_KINDS = ("option", "compiler")
"""Parts of a robot that ``model.*`` keys edit, of which it has one: ``model.option.timestep``."""
EDITABLE_KINDS = (
    *SINGLE_KINDS,
    *("actuator", "body", "camera", "equality", "geom", "hfield", "joint", "key", "light", "material", "mesh"),
    *("pair", "sensor", "site", "tendon"),
)
"""All of them; the others have names: ``model.geom.thigh.size``."""

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)

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


class ExitCode(enum.IntEnum):
    """How a worker leaves. A negative return code is, as everywhere, the signal that killed it."""

    SUCCEEDED = 0
    ERROR = 1
    """A Python error; it would happen again."""
    DIVERGED = 10
    """Non-finite physics, rewards or losses; it would happen again."""
    INTERRUPTED = 11
    """Left on request, at a whole checkpoint."""
    DISK_FULL = 12
    """No space left; the last whole checkpoint stands."""
    ORPHANED = 13
    """The supervisor went away first, or the job's next attempt has begun elsewhere."""
    RANK_LOST = 14
    """Another rank went away or did not answer: never the cause of an end, only its consequence."""


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
        return cls(**json.loads(text))


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


PHASES = ("starting", "training", "evaluating")


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
        """:raises ValueError: for whatever is not such a record; whoever inherits the socket can write to it."""
        progress = cls(**_checked(cls, line))
        if progress.phase not in PHASES:
            raise ValueError(f"unknown phase {progress.phase!r}")
        return progress


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
        """:raises ValueError: for whatever is not such a record."""
        return cls(**_checked(cls, text))


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
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationAnswer:
    """One line from the examining process, for one request."""

    problem: str | None = None
    """Why it cannot be trained, with the file; None: it can."""
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
        return cls(**json.loads(line))


_ACCEPTED: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "str": (str,),
    "str | None": (str, type(None)),
    "float | None": (int, float, type(None)),
}


def _checked(cls: type, text: str | bytes) -> dict[str, Any]:
    """The fields of ``cls`` in a JSON object, of the right types; a float that is not finite becomes None."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("not an object")  # noqa: TRY004 - what came in is wrong, not what our caller did
    kinds = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    for name, value in values.items():
        if name not in kinds or not isinstance(value, _ACCEPTED.get(kinds[name], (str,))):
            raise ValueError(f"{name}: unknown, or of the wrong type")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{name}: out of range")
        if isinstance(value, float) and not math.isfinite(value):
            values[name] = None
    missing = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in values]
    if missing:
        raise ValueError(f"without {', '.join(missing)}")
    return values


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    root: Path

    @property
    def worker_log(self) -> Path:
        return self.root / "worker.log"

    @property
    def exit(self) -> Path:
        return self.root / "exit.json"

    def log_of(self, rank: int) -> Path:
        """What rank ``rank`` prints; ``worker_log`` is that of rank 0."""
        return self.root / f"rank-{rank}.log" if rank else self.worker_log

    def exit_of(self, rank: int) -> Path:
        """The last word of rank ``rank``; ``exit`` is that of rank 0."""
        return self.root / f"rank-{rank}.exit.json" if rank else self.exit

    @property
    def rendezvous(self) -> Path:
        """Through this file the ranks of an attempt on one machine find each other."""
        return self.root / "rendezvous"


REPLAY = "replay"
"""Beginning of the names of folders with replay buffers; of rank 0 it is the whole name."""


@dataclass(frozen=True, slots=True)
class JobPaths:
    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def robot(self) -> Path:
        return self.root / "robot"

    @property
    def robot_hash(self) -> Path:
        """SHA-256 of the bundle in ``robot``, as text: what the ledger is rebuilt from."""
        return self.root / "robot.sha256"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.attempts / str(number))

    @property
    def progress_csv(self) -> Path:
        return self.root / "progress.csv"

    @property
    def timings_csv(self) -> Path:
        return self.root / "timings.csv"

    @property
    def begun(self) -> Path:
        """Of a training that no supervisor started (in a benchmark): who trains, and since when."""
        return self.root / "begun.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def replay(self, rank: int) -> Path:
        """The replay buffer of rank ``rank``, beside the checkpoints."""
        return self.checkpoints / (f"{REPLAY}-of-rank-{rank}" if rank else REPLAY)

    @property
    def model(self) -> Path:
        return self.root / "model.zip"

    @property
    def vecnormalize(self) -> Path:
        return self.root / "vecnormalize.pkl"

    @property
    def eval(self) -> Path:
        return self.root / "eval.json"

    @property
    def video(self) -> Path:
        return self.root / "video.mp4"

    @property
    def preview(self) -> Path:
        """A film strip: a few moments of one episode side by side."""
        return self.root / "preview.png"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The one owner of every path in a run directory."""

    root: Path

    @property
    def experiment(self) -> Path:
        return self.root / "experiment.toml"

    @property
    def provenance(self) -> Path:
        return self.root / "provenance.json"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite3"

    @property
    def lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def staging(self) -> Path:
        """Robots under examination; moved to their jobs when all are well."""
        return self.root / ".staging"

    @property
    def replaced(self) -> Path:
        """Job directories that ``--on-change=restart`` put out of the way."""
        return self.root / "replaced"

    @property
    def summary_json(self) -> Path:
        return self.root / "summary.json"

    @property
    def summary_csv(self) -> Path:
        return self.root / "summary.csv"

    @property
    def bench(self) -> Path:
        """What a benchmark measured."""
        return self.root / "bench"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    def job(self, job_id: str) -> JobPaths:
        return JobPaths(self.jobs / job_id)


def write_whole(path: Path, data: str | bytes | Callable[[BinaryIO], object], *, durable: bool = True) -> None:
    """Write so that ``path`` holds the old content or the new, never a part: beside, fsync, rename.

    :param data: the content, or what writes it to the open file it is given.
    :param durable: whether the content must survive a power cut; False for what can be made again.
    :raises OSError: as the disk answers (``ENOSPC`` when it is full); nothing is left beside then.
    """
    with writing_whole(path, durable=durable) as file:
        if callable(data):
            data(file)
        else:
            file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def writing_whole(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """As :func:`write_whole`, for a content that comes bit by bit: ``path`` holds it once the block has ended well."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
