"""The job file's format, key by key. Defaults, limits, descriptions and examples are written here and nowhere else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from orchestrator.core.worker_spec import Algorithm, Backend, LearnerChoice, Mode
from orchestrator.jobfile.hyperparameters import A2c, PolicyKwargs, Ppo, Sac, Td3
from orchestrator.jobfile.model_edit_keys import nested
from orchestrator.jobfile.toml_table import Table, key
from orchestrator.jobfile.value_types import (
    MOST,
    Count,
    CountFromZero,
    Duration,
    EntryPoint,
    EnvId,
    Matrix,
    MaxParallel,
    MjcfPath,
    Name,
    Options,
    Seeds,
    Size,
    StallTimeout,
    Task,
)

ModelEdits = Annotated[dict[str, Any], PlainValidator(nested), WithJsonSchema({"type": "object"})]


class ResourcesTable(Table):
    """What one job may use; with several ranks, each of them."""

    ranks: Count = key(1, "Processes that train the one policy together; n_envs and batch_size are over all.", 4)
    cores: Count = key(1, "CPU cores the job is pinned to.", 1)
    threads: Annotated[int | None, Field(ge=1, le=MOST)] = key(
        None, "Threads of torch, OpenMP and BLAS; as many as cores unless set.", 1
    )
    memory: Size = key(2048, "Memory the job needs and may not exceed.", "2 GiB", shown="2 GiB")
    gpus: CountFromZero = key(0, "GPUs; with any, PyTorch uses CUDA.", 1)
    timeout: Duration = key(7200.0, "Wall-clock limit of one attempt.", "2h", shown="2h")
    stall_timeout: StallTimeout = key(
        600.0, "An attempt without progress for this long is ended and retried.", "10min", shown="10min"
    )


class Distributed(Table):
    """How the ranks of a job work together; without effect on a job of one."""

    backend: Backend = key(
        "auto",
        "What carries sums between ranks: gloo (network), nccl (a GPU for each rank), or auto: nccl with GPUs, else "
        "memory that ranks of one machine share, else gloo.",
        "gloo",
    )
    mode: Mode = key(
        "allreduce",
        "Every rank steps with the averaged gradient (allreduce), or rank 0 alone for all (parameter-server).",
        "parameter-server",
    )


class Retry(Table):
    """What happens after an attempt was killed, ran out of memory or hung."""

    max_retries: CountFromZero = key(2, "Attempts after the first one.", 2)


class Settings(Table):
    """Whatever [defaults] may hold; every job may override any key, tables key by key."""

    algo: Algorithm = key("ppo", "The learning algorithm.", "ppo")
    task: Task = key(
        "auto",
        "What the robot must do: a built-in task, gymnasium's own, or a class of yours; auto goes by its structure.",
        "forward",
    )
    env: EnvId = key(None, "Gymnasium id instead of a task; may be combined with xml.", "Ant-v5")
    entry_point: EntryPoint = key(
        None,
        "Callable that makes the environment instead of a task: called with xml=… and seed=….",
        "my_robots.envs:make_env",
    )
    env_kwargs: Options = key({}, "Further keyword arguments of env or entry_point.", {"frame_skip": 5})
    task_options: Options = key({}, "Options of the built-in task.", {})
    model: ModelEdits = key(
        {},
        'Changes to the robot before training: kind, name or pattern, attribute; "*1.2" multiplies.',
        {"geom.thigh.size": "*1.2"},
    )
    total_timesteps: Count = key(200_000, "env_steps to train for.", 200_000)
    n_envs: Count = key(8, "Environments stepped together within the job.", 8)
    seeds: Seeds = key([0], "One job per seed.", [0, 1, 2])
    normalize: bool = key(True, "Normalise observations and rewards (VecNormalize).", True)
    checkpoint_every: Count = key(50_000, "env_steps between checkpoints.", 50_000)
    eval_episodes: CountFromZero = key(
        10, "Episodes of each final evaluation, deterministic and stochastic; 0 for none.", 10
    )
    video: bool = key(False, "Make video.mp4 and preview.png of every trained policy when all training is over.", True)
    learner: LearnerChoice = key(
        "auto",
        "What does PPO's arithmetic: fast (same PPO, less overhead; CPU, MlpPolicy, vectors in and out), sb3 (stock), "
        "or auto: fast wherever it applies.",
        "auto",
    )
    policy: Literal["MlpPolicy", "CnnPolicy", "MultiInputPolicy"] = key(
        "MlpPolicy", "Stable-Baselines3's name of the policy.", "MlpPolicy"
    )
    ppo: Ppo = key(Ppo(), "Hyperparameters of PPO.", shown={})
    sac: Sac = key(Sac(), "Hyperparameters of SAC.", shown={})
    td3: Td3 = key(Td3(), "Hyperparameters of TD3.", shown={})
    a2c: A2c = key(A2c(), "Hyperparameters of A2C.", shown={})
    policy_kwargs: PolicyKwargs = key(PolicyKwargs(), "The policy's network.", shown={})
    resources: ResourcesTable = key(ResourcesTable(), "Cores, threads, memory, GPUs and time limits.", shown={})
    distributed: Distributed = key(Distributed(), "How several ranks work together.", shown={})
    retry: Retry = key(Retry(), "Retries.", shown={})
    matrix: Matrix = key(
        {},
        "Lists of values for dotted keys in quotes; one job for every combination.",
        {"ppo.learning_rate": [1e-4, 3e-4]},
    )


class Entry(Settings):
    """One [[jobs]] table: a training, or several by glob, seeds and matrix."""

    name: Name = key(None, "The job's name; the file's stem unless set, and always with a glob.", "hopper")
    xml: MjcfPath = key(
        None, "The robot's MJCF, relative to the job file; a glob makes one job per file.", "../mjcf/hopper.xml"
    )


class Document(Table):
    """An experiment: many policies trained at once, one process each."""

    name: Name = Field(description="The experiment's name; the run directory is runs/<name>.", examples=["robots"])
    max_parallel: MaxParallel = key(
        None, 'Jobs at once: "auto" (as many as there are cores) or a number.', "auto", shown="auto"
    )
    order: Literal["longest-first", "as-listed"] = key(
        "longest-first", "The order in which jobs are launched.", "longest-first"
    )
    defaults: Settings = key(Settings(), "Defaults of every job.", shown={})
    jobs: Annotated[list[Entry], Field(min_length=1)] = Field(description="The jobs, each a [[jobs]] table.")
