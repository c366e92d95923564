"""Messages between processes: progress of a worker, orders to the template process, and examination
of robots.

Each is one line. A worker sends :class:`Progress` on its channel. The template process forks a
worker for every :class:`ForkOrder`. The examining process answers every :class:`ExaminationRequest`
with an :class:`ExaminationAnswer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from orchestrator.core.decoding import FilePath, Message, Natural, Table, decode, field_values
from orchestrator.core.job_parts import PartFacts

HIGH_RUN_DELAY_SHARE = 0.15
"""Share of its wall time that a job waits for a CPU, above which something else uses its cores;
alone on a core it is below 0.01."""

INIT_SUFFIX = ".init"
"""Ends the name of a staged policy to start from; before it is that of the robot's folder."""


class JsonLine:
    """A dataclass that is sent as one line of JSON."""

    __slots__ = ()

    def to_line(self) -> bytes:
        return json.dumps(self, default=field_values, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """:raises ValueError: for anything else; whoever inherits the worker's socket can write to
        it.
        """
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
    """Seconds that the main thread was runnable but waited for a CPU, per second of wall time, since
    the message before."""
    learner: Message | None = None
    warning: Message | None = None
    """For the user, once for each attempt; repeated in every message, since not every one
    arrives."""
    parts: PartFacts = field(default_factory=dict, hash=False)
    """What it tells of features in its training, by name (:mod:`orchestrator.core.job_parts`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrder(JsonLine):
    """Sent to the template process for each worker, with the descriptors of its log and of its
    channel.
    """

    arguments: Sequence[FilePath]
    """Of the command line."""
    environment: Mapping[str, FilePath | None]
    """Changes to the environment of the template; None removes a variable."""
    directory: FilePath
    """The working directory."""
    parent: int
    """Pid of the supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkAnswer(JsonLine):
    """Sent by the template once it can fork or cannot, and on the channel of every worker that was
    ordered.
    """

    pid: int | None = None
    """Of the forked worker."""
    is_ready: bool = False
    """Whether that worker is set up, and waits until it is told to go on."""
    problem: Message | None = None
    """Why nothing can be forked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSetting:
    """One of the settings that make MJCF of a robot's file, chosen where the user says nothing."""

    key: str
    value: Any
    reason: Message
    is_folders: bool = False
    """Whether ``value`` is a list of absolute folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationRequest(JsonLine):
    """Can this robot, task or environment be trained?"""

    xml: FilePath | None = None
    """Absolute path of the robot's file: an MJCF, or one of a :class:`.RobotFormat`."""
    robot_settings: Table = field(default_factory=dict)
    """What makes MJCF of it, where it is none; empty: the defaults."""
    robot_maker: str | None = None
    """In place of ``xml``: the function that makes it."""
    params: Table = field(default_factory=dict)
    """Its arguments."""
    model_edits: Table = field(default_factory=dict)
    randomize: Table = field(default_factory=dict)
    asymmetric: bool = False
    evaluate: Table = field(default_factory=dict)
    allow_outside: bool = False
    """Whether files of the robot may lie anywhere, and not only below the folder of ``xml`` and
    ``job_folder``; if not and ``alone``, those elsewhere are a warning."""
    job_folder: FilePath | None = None
    """Folder of the job file."""
    alone: bool = False
    """Whether only the robot is examined, without a task. What ``robot_settings`` leaves out is then
    chosen by the robot, see :attr:`ExaminationAnswer.chosen_settings`."""
    user_folders: Sequence[FilePath] = ()
    """Absolute folders of the user's, in which files of the robot may lie, if ``alone``."""
    task: str | None = None
    """Used when neither ``env`` nor ``entry_point`` is given; ``"auto"`` is answered with the task
    chosen."""
    task_options: Table = field(default_factory=dict)
    env: str | None = None
    entry_point: str | None = None
    env_kwargs: Table = field(default_factory=dict)
    policy: str | None = None
    """Stable-Baselines3's name of the policy, which must fit the environment as the next four
    must; None: any."""
    normalize_images: bool = True
    """Whether the policy takes only images with values from 0 to 255, which it divides by 255."""
    use_sde: bool = False
    algo: str = "ppo"
    fast: bool = False
    """Whether the job demands ``learner = "fast"``."""
    init: Table = field(default_factory=dict)
    """What decides whether the policy in the file or job directory ``path`` can be the start:
    ``algo``, ``policy``, ``policy_kwargs``, ``normalize`` and ``use_sde`` of the job; empty where it
    starts with random weights. In the place of ``path`` there is ``source`` for a job that is still
    to be trained: the same five of it."""
    search_path: FilePath | None = None
    stage_to: FilePath | None = None
    """Folder to write the robot's bundle to; None: a temporary one."""
    simulate_s: float = 0.25
    """CPU seconds that the simulation stability test may take."""
    memory_mib: int | None = None
    """Memory that compiling and simulating may take; None: no limit."""
    measured_by: str | None = None
    """Module whose ``measured_model(model)`` returns measures of the compiled model; nothing else
    is examined then."""

    @property
    def is_environment(self) -> bool:
        """Whether it is of an environment of gymnasium or the user, which may have a robot, and not
        of a task.
        """
        return self.env is not None or self.entry_point is not None

    @property
    def robot(self) -> str | None:
        """The robot's name in messages: its path, or ``module:function(legs=4)``; None without a
        robot.
        """
        if self.robot_maker is None:
            return self.xml
        parameters = (f"{name}={value!r:.60}" for name, value in sorted(self.params.items()))
        return f"{self.robot_maker}({', '.join(parameters)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationAnswer(JsonLine):
    """The answer to one :class:`ExaminationRequest`."""

    problem: Message | None = None
    """Why it cannot be trained, naming the file; None: it can."""
    is_late: bool = False
    """Whether there was no answer within the time limit."""
    diverges: bool = False
    """Whether physics diverged in the stability test, which may be a problem or a warning."""
    cause: Literal["robot", "code", "settings", "init", "process"] = "robot"
    """What ``problem`` lies in. ``settings``: it cannot be the robot, it is in what is named for it
    (a task, its options). ``code``: it may be the robot or the user's own code, which a second
    robot shows. ``init``: the policy to start from has another network, or no names in common with
    the job. ``process``: the examining process has ended or hangs."""
    key: str | None = None
    """The key of the job that ``problem`` lies in; None: no single one."""
    errno: int | None = None
    warnings: Sequence[Message] = ()
    notes: Sequence[Message] = ()
    fragment: Message | None = None
    """Why the file is not a robot: it is a part of one, or no MJCF."""
    outside: Message | None = None
    """Which file lies outside of the folders of the robot and of the job file, if ``alone`` was set;
    a job needs ``allow_outside`` for it."""
    chosen_settings: Sequence[RobotSetting] = ()
    """Settings that were chosen for the robot, if ``alone`` was set; a job needs them."""
    includes: Sequence[FilePath] = ()
    """Real paths of the files that it includes directly, if ``alone`` was set."""
    xml: FilePath | None = None
    """Path of the main MJCF, relative to ``stage_to``."""
    hash: str | None = None
    """SHA-256 over the contents of the bundle; a copy under another name has the same."""
    source_hash: str | None = None
    """The same before ``model_edits``."""
    task: str | None = None
    task_reason: str | None = None
    """Why the task was chosen, or without ``task`` why none was; None if the request names it."""
    init_sha256: str | None = None
    """Of the policy to start from, which is then beside ``stage_to``, with the suffix
    :data:`INIT_SUFFIX`."""
    init_env_steps: Natural | None = None
    """See :attr:`~orchestrator.core.worker_spec.WorkerSpec.init_env_steps`."""
    init: Message | None = None
    """What was found there, and what of it is copied."""
    process_exits: bool = False
    """Whether the process ends after this answer, because what this robot did might affect the next
    one."""
    figures: Table = field(default_factory=dict)
    """Key figures of the compiled model (see ``worker/robots/model_examination.py``); empty without a
    model."""
    measured: Table = field(default_factory=dict)
    """By the ``measurement``; empty without one."""
