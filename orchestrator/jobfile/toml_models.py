"""The format of the job file, key by key: types, defaults, limits, descriptions and examples."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from annotated_types import Predicate
from pydantic import AfterValidator, Field, WithJsonSchema, create_model

from orchestrator.core.feature import added
from orchestrator.core.job import Start
from orchestrator.core.numbers.changing_numbers import changing_numbers, parse_number
from orchestrator.core.robot_sources import robot_collections, robot_formats
from orchestrator.core.text import alternatives
from orchestrator.core.worker_spec import (
    COLLECTIVE_TIMEOUT_S,
    Backend,
    LearnerChoice,
    Mode,
    OnDivergence,
)
from orchestrator.jobfile.hyperparameters import ALGORITHMS, PolicyKwargs
from orchestrator.jobfile.model_edit_keys import (
    check_axis,
    check_change,
    check_distribution,
    nested,
)
from orchestrator.jobfile.presets import PresetName
from orchestrator.keys import value_types
from orchestrator.keys.feature_tables import FeatureTable, JobTable
from orchestrator.keys.names import is_showable
from orchestrator.keys.value_types import (
    MOST,
    Count,
    CountFromZero,
    Name,
    TomlTable,
    Whole,
    key,
)

ROBOT_FILES = alternatives(["MJCF", *(one.title for one in robot_formats())])
"""What files of robots are, as in "the path of an MJCF file"."""
_NAMED_ROBOTS = "".join(f", or {one.title} as {one.prefix}NAME" for one in robot_collections())
RobotName = Annotated[
    str,
    Predicate(str.strip),
    Predicate(is_showable),
    value_types.Expected(
        f'in quotes the path of an {ROBOT_FILES} file, a pattern such as "zoo/*.xml", a function as '
        f'"module:function"{_NAMED_ROBOTS}'
    ),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
ModelEdits = Annotated[value_types.Options, AfterValidator(functools.partial(nested, check_change))]
Randomized = Annotated[
    value_types.Options, AfterValidator(functools.partial(nested, check_distribution))
]
Evaluated = Annotated[value_types.Options, AfterValidator(functools.partial(nested, check_axis))]


def _with_changing_numbers(options: dict[str, Any]) -> dict[str, Any]:
    for dotted, text in changing_numbers(options):
        try:
            parse_number(text)
        except ValueError as error:
            raise ValueError(f"{dotted}: {error}") from None
    return options


TaskOptions = Annotated[value_types.Options, AfterValidator(_with_changing_numbers)]


class ResourcesTable(TomlTable):
    """Resources of a job; of each rank, where a job has several."""

    ranks: Count = key(
        1, "Processes that train one policy together and share n_envs and batch_size.", 4
    )
    cores: Count = key(
        1,
        "Number of CPU cores to which the job is pinned, and on which a built-in task is simulated.",
    )
    threads: Annotated[int | None, Field(ge=1, le=MOST), Whole] = key(
        None,
        "Threads of PyTorch, OpenMP and BLAS; unset: as many as cores. Another number gives other bits.",
        1,
    )
    memory: value_types.Size = key(
        2048,
        "Limit on resident memory; the job is launched when as much is available, on a cluster on one node.",
        shown="2 GiB",
    )
    gpus: value_types.Gpus = key(
        0,
        "Number of GPUs, assigned by CUDA_VISIBLE_DEVICES; below 1: the share of the memory of one GPU. With any, "
        "PyTorch uses CUDA.",
        1,
    )
    timeout: value_types.Duration = key(
        7200.0,
        'Wall-clock time limit of an attempt: such as "90s", "10min" or "10m", "1h30min", or seconds.',
        shown="2h",
    )
    stall_timeout: value_types.StallTimeout = key(
        600.0,
        "Time without progress, at least 3 s, after which an attempt is ended and retried.",
        shown="10min",
    )
    log: value_types.LogSize = key(
        64,
        "Limit on the log of an attempt, 4 MiB to 1 GiB, enforced every 2 s: of a longer one the first MiB and at "
        "least the last half of the limit stay, with a line that counts what was dropped.",
        shown="64 MiB",
    )
    nice: value_types.Nice = key(
        0,
        "Niceness of the job's processes: the higher, the more they give way to other programs. It is only ever "
        "raised; 0: as the program that launches them.",
        10,
    )
    min_free_disk: value_types.FreeDisk = key(
        1024,
        "Free space on the file system of the run directory below which the job is not launched; 0: no limit.",
        shown="1 GiB",
    )
    move: bool = key(
        True,
        "Whether a worker that waits for its CPU, because others use it, is moved to an idle one. Weights stay equal.",
        False,
    )
    start: Start = key(
        "auto",
        "How a worker starts: exec (a new Python process), fork (from a process that has imported its packages "
        "already), which saves short jobs most of their start, or auto: fork where jobs are made "
        "as the run goes on, and where three or more jobs are due that can be forked.",
        "exec",
    )


class Distributed(TomlTable):
    """How the ranks of a job exchange gradients; no effect on a job with one rank."""

    backend: Backend = key(
        "auto",
        "Communication between ranks: gloo (network), nccl (needs resources.gpus), or auto: nccl with GPUs, otherwise "
        "shared memory for the ranks of one machine, otherwise gloo.",
        "gloo",
    )
    mode: Mode = key(
        "allreduce",
        "allreduce: every rank applies the averaged gradient; parameter-server: rank 0 applies it and sends the "
        "parameters to the others.",
        "parameter-server",
    )
    timeout: value_types.Duration = key(
        COLLECTIVE_TIMEOUT_S,
        "Time that a rank waits for the others in an exchange before the attempt ends as rank-lost: longer than "
        "anything that one rank does between two exchanges, and shorter than resources.stall_timeout.",
        "2min",
        shown="30s",
    )


class Retry(TomlTable):
    """Retries of attempts that failed by no fault of the job's definition."""

    max_retries: CountFromZero = key(
        2,
        "Largest number of further attempts after a kill, a hang, out of memory, ranks that lost each other or a "
        "failed launch. Up to ten losses of a cluster node are not counted.",
    )


class CommonSettings(TomlTable):
    """The keys of [defaults], but for the tables of the algorithms."""

    preset: PresetName | None = key(
        None,
        "Values for keys that are set nowhere, such as total_timesteps and PPO's hyperparameters: quick (a short "
        "training), standard or thorough.",
        "standard",
    )
    algo: value_types.Algo = key(
        "ppo",
        "Learning algorithm: ppo, sac, td3 or a2c of Stable-Baselines3, or a class with its interface as "
        "module:Class, whose module is also looked for in the folder of the job file.",
        "sac",
    )
    algo_kwargs: value_types.Options = key(
        {},
        "Keyword arguments of the class that algo names, passed on as they are.",
        {"top_quantiles_to_drop_per_net": 3},
    )
    task: value_types.Task = key(
        "auto",
        "A built-in task (some are gymnasium's), or a class of yours, as module:Class; auto: chosen from the robot's "
        "structure.",
        "forward",
    )
    env: value_types.EnvId = key(
        None,
        "Gymnasium environment id, instead of a task; xml, if set, is passed to it as xml_file.",
        "Ant-v5",
    )
    entry_point: value_types.EntryPoint = key(
        None,
        "Callable that makes the environment, instead of a task; it is called with xml=… and seed=…. Its module is "
        "also looked for in the folder of the job file.",
        "my_robots.envs:make_env",
    )
    env_kwargs: value_types.Options = key(
        {}, "Additional keyword arguments of env or entry_point.", {"frame_skip": 5}
    )
    task_options: TaskOptions = key(
        {},
        "Options of the task; a number may change over the training: linear(start, end[, fraction]), or stages(a, b, "
        "…) with curriculum.advance.",
        {"push_speed": "linear(0, 1)"},
    )
    model: ModelEdits = key(
        {},
        'Changes to the robot before training: kind, name or pattern, attribute; "*1.2" multiplies.',
        {"geom.thigh.size": "*1.2"},
    )
    randomize: Randomized = key(
        {},
        "Properties of the robot that every episode draws anew, under the keys of model: uniform(low, high), "
        "loguniform(low, high), normal(mean, standard deviation), choice(a, b, …), or scale(low, high) for a factor. "
        "An attribute of several numbers takes a list of them and of numbers.",
        {"body.trunk.mass": "scale(0.8, 1.2)"},
    )
    asymmetric: bool = key(
        False,
        "Whether the critic, and not the actor, also observes what episodes draw by randomize, and what "
        "task_options.observe leaves out.",
        True,
    )
    allow_outside: bool = key(
        False,
        "Whether files that the robot names may lie anywhere, and not only below its folder or that of the job file. "
        "They are copied into the run directory.",
        True,
    )
    params: value_types.Options = key(
        {},
        "Arguments of the function that makes the robot, where xml names one.",
        {"legs": 4, "thigh_m": 0.2},
    )
    init: value_types.Init = key(
        "none",
        "Trained policy to start from: job:NAME (a job of this file, which is trained first), a job's directory or a "
        "model.zip; none: random weights.",
        "job:stand",
    )
    total_timesteps: Count = key(
        200_000, "Number of env_steps to train for, summed over all environments of the job."
    )
    n_envs: Count = key(8, "Number of environments that are stepped together by the job's process.")
    seeds: value_types.Seeds = key(
        [0], 'Random seeds, or a range of them such as "0-199"; each makes one job.', [0, 1, 2]
    )
    normalize: bool = key(
        True,
        "Normalise rewards and numeric observations (VecNormalize), but no images or discrete observations.",
    )
    checkpoint_every: value_types.CheckpointEvery = key(
        50_000,
        "Interval between checkpoints, of which the last two are kept: a number of env_steps, or wall-clock time "
        'such as "30s", "10min" or "1h". They are written at the end of an iteration, and weights do not depend on '
        "them.",
    )
    eval_episodes: CountFromZero = key(
        10,
        "Number of episodes of the final evaluation; 0: no evaluation.",
    )
    measure_training: bool = key(
        False,
        "Measure the episodes of training, too: their means are columns measures/NAME of progress.csv, and so of "
        "TensorBoard and others. It changes no weights.",
        True,
    )
    evaluate: Evaluated = key(
        {},
        "A grid of changed robots and disturbances at which the final evaluation runs as well, under the keys of "
        'randomize: lists of values, or of factors such as "*0.7".',
        {"body.trunk.mass": ["*0.7", "*1", "*1.3"]},
    )
    keep_replay_buffer: bool = key(
        False,
        "Keep the replay buffer of an off-policy algorithm after training, so that the job can be extended. "
        "Without it, an extended job of SAC or TD3 is refused, and one of an off-policy class fails.",
        True,
    )
    preview: bool = key(
        True,
        "Draw preview.png after all training: the robot during its final evaluation.",
        False,
    )
    video: bool = key(False, "Make video.mp4 of every trained policy after all training.", True)
    on_divergence: OnDivergence = key(
        "fail",
        "When physics diverges: fail (the job), or end-episode: that environment starts anew, as after a fall; the job "
        "fails when more than 1 % of the episodes of 100 iterations diverged.",
        "end-episode",
    )
    learner: LearnerChoice = key(
        "auto",
        "Implementation of PPO: fast (the same PPO with less overhead; CPU, MlpPolicy, vectors as observations and "
        "actions), sb3 (Stable-Baselines3), or auto: fast where it can be used.",
    )
    policy: Literal["MlpPolicy", "CnnPolicy", "MultiInputPolicy"] = key(
        "MlpPolicy",
        "Policy of Stable-Baselines3: MlpPolicy for built-in tasks, CnnPolicy for images, MultiInputPolicy for Dict "
        "observations.",
    )
    policy_kwargs: PolicyKwargs = key(PolicyKwargs(), "Network of the policy.", shown={})
    resources: ResourcesTable = key(
        ResourcesTable(), "Cores, threads, memory, GPUs and time limits.", shown={}
    )
    distributed: Distributed = key(Distributed(), "How several ranks exchange gradients.", shown={})
    retry: Retry = key(Retry(), "Retries.", shown={})
    matrix: value_types.Matrix = key(
        {},
        "Lists of values for dotted keys in quotes; every combination makes one job. A job's keys are added to those "
        "of [defaults.matrix]; {} undoes these.",
        {"ppo.learning_rate": [1e-4, 3e-4]},
    )


JOB_TABLES: Mapping[str, JobTable] = added("job_tables")

if TYPE_CHECKING:
    Settings = CommonSettings
else:  # a table for each algorithm
    Settings = create_model(
        "Settings",
        __base__=CommonSettings,
        __doc__="The keys of [defaults]; every job can override any of them, tables key by key.",
        __module__=__name__,
        **{
            name: (table, key(table(), f'Hyperparameters of algo = "{name}".', shown={}))
            for name, table in ALGORITHMS.items()
        },
        **{name: table.field for name, table in JOB_TABLES.items()},
    )


class Entry(Settings):
    """A [[jobs]] table: one training; several with a glob, seeds or a matrix."""

    name: Name = key(
        None, "Name of the job, any text; unset, or with a glob: the stem of the file.", "hopper"
    )
    xml: RobotName = key(
        None,
        f"{ROBOT_FILES} file of the robot, relative to the job file; a glob makes one job per file. Or a "
        f"function of yours that makes the robot, as module:function{_NAMED_ROBOTS}.",
        "../mjcf/hopper.xml",
    )
    after: value_types.JobNameList = key(
        [],
        "Names of jobs of this file that have to succeed before this one is launched.",
        ["stand"],
    )


class CommonKeys(TomlTable):
    """An experiment: many policies trained at once, each in its own process."""

    name: Name = Field(
        description="Name of the experiment; the run directory is runs/<name>.", examples=["robots"]
    )
    max_parallel: value_types.MaxParallel = key(
        "auto",
        'Largest number of jobs at once: a number; "auto": one per physical core within affinity and cgroup quota, on '
        'a cluster as many as its nodes have room for; or "idle": as many as there are cores that nobody else uses, '
        'but at least one, counted anew as jobs end (on a cluster the same as "auto").',
        "idle",
    )
    order: Literal["longest-first", "as-listed"] = key(
        "longest-first",
        "Order in which jobs are launched: by the time that preflight expects them to take, or as they are listed.",
    )
    on_invalid: Literal["refuse", "skip"] = key(
        "refuse",
        "If a robot or environment is invalid: refuse: nothing is launched; skip, or run --skip-invalid: its jobs are "
        "FAILED with the reason, the others are trained, and the exit code is 1. The next run examines them again.",
        "skip",
    )
    defaults: Settings = key(Settings(), "Default settings of all jobs.", shown={})
    jobs: Annotated[list[Entry], Field(min_length=1)] = Field(
        description="Jobs, each a [[jobs]] table."
    )


FEATURE_TABLES: Mapping[str, FeatureTable] = added("job_file")

if TYPE_CHECKING:
    JobFile = CommonKeys
else:  # with the tables of features
    JobFile = create_model(
        "JobFile",
        __base__=CommonKeys,
        __doc__=CommonKeys.__doc__,
        __module__=__name__,
        **{name: table.field for name, table in FEATURE_TABLES.items()},
    )


def _tables_in(table: type[TomlTable]) -> dict[str, type[TomlTable]]:
    """Return the tables that are values of keys of ``table``, by key."""
    found = {name: _table_in(info.annotation) for name, info in table.model_fields.items()}
    return {name: inner for name, inner in found.items() if inner is not None}


def _table_in(annotation: Any) -> type[TomlTable] | None:
    """Return the table that a value of this type is, or that it holds: in a list, or under any keys."""
    if parts := get_args(annotation):
        return next((table for part in parts if (table := _table_in(part)) is not None), None)
    is_table = isinstance(annotation, type) and issubclass(annotation, TomlTable)
    return annotation if is_table else None


def _tables_below(table: type[TomlTable]) -> dict[str, type[TomlTable]]:
    found = _tables_in(table)
    for inner in [*found.values()]:
        found |= _tables_below(inner)
    return found


TABLES = _tables_in(Settings)
"""Tables of a job with fixed keys."""
ALL_TABLES: Mapping[Any, type[TomlTable]] = _tables_below(JobFile)
"""Tables of the job file at any depth, by key."""
FREE_TABLES = tuple(
    name
    for name, info in Settings.model_fields.items()
    if get_origin(info.annotation) is dict and name != "matrix"
)
"""Tables of a job with any keys."""
