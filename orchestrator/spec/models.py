"""The job file's format, key by key. Defaults, limits, descriptions and examples are written here and nowhere else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from orchestrator.contract import LearnerChoice
from orchestrator.spec.edits import nested
from orchestrator.spec.values import (
    MOST,
    Count,
    CountFromZero,
    Duration,
    EntryPoint,
    EnvId,
    Fraction,
    Matrix,
    MaxParallel,
    MjcfPath,
    Name,
    NetArch,
    OptionalSchedule,
    Options,
    Schedule,
    Seeds,
    Size,
    StallTimeout,
    Task,
)

ModelEdits = Annotated[dict[str, Any], PlainValidator(nested), WithJsonSchema({"type": "object"})]


def key(default: Any, description: str, example: Any = None, *, shown: Any = None) -> Any:
    """One key of the format. ``shown`` is the default as a user would write it, where that differs."""
    return Field(
        default=default,
        description=description,
        examples=None if example is None else [example],
        json_schema_extra=None if shown is None else {"default": shown},
    )


class Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        field_title_generator=lambda name, _: name,
    )


class Ppo(Table):
    """Keyword arguments of stable_baselines3.PPO, under its own names and with its own defaults."""

    learning_rate: Schedule = key(
        3e-4, 'Adam\'s step size: a number, or a schedule "linear(start, end[, fraction])".', 3e-4
    )
    n_steps: Count = key(2048, "Steps of each environment per update; n_steps × n_envs is the rollout.", 256)
    batch_size: Count = key(64, "Minibatch size; divides n_steps × n_envs.", 64)
    n_epochs: Count = key(10, "Passes over the rollout per update.", 10)
    gamma: Fraction = key(0.99, "Discount factor, 0 to 1.", 0.99)
    gae_lambda: Fraction = key(0.95, "Bias against variance in generalised advantage estimation, 0 to 1.", 0.95)
    clip_range: Schedule = key(0.2, "Clipping of the probability ratio: a number or a schedule.", 0.2)
    clip_range_vf: OptionalSchedule = key(
        None, "Clipping of the value function: a number or a schedule; off unless set.", 0.2
    )
    normalize_advantage: bool = key(True, "Normalise the advantages of every minibatch.", True)
    ent_coef: float = key(0.0, "Weight of the entropy in the loss.", 0.01)
    vf_coef: float = key(0.5, "Weight of the value function in the loss.", 0.5)
    max_grad_norm: Annotated[float, Field(gt=0)] = key(
        0.5, "Largest norm of the gradient; a huge number switches clipping off.", 0.5
    )
    use_sde: bool = key(False, "State-dependent exploration (gSDE) instead of independent noise.", True)
    sde_sample_freq: Annotated[int, Field(ge=-1, le=MOST)] = key(
        -1, "Steps between new gSDE noise; -1: only at the start of a rollout.", 4
    )
    target_kl: Annotated[float | None, Field(gt=0)] = key(
        None, "Ends an update early beyond 1.5 × this KL divergence; off unless set.", 0.02
    )
    stats_window_size: Count = key(100, "Episodes over which returns and lengths are averaged in the logs.", 100)


class PolicyKwargs(Table):
    """Keyword arguments of Stable-Baselines3's actor-critic policies, under its own names."""

    net_arch: NetArch = key([64, 64], "Widths of the hidden layers, or a table { pi = […], vf = […] }.", [64, 64])
    activation_fn: Literal["tanh", "relu", "elu", "gelu", "leaky_relu", "silu"] = key(
        "tanh", "Activation between layers.", "tanh"
    )
    ortho_init: bool = key(True, "Orthogonal initialisation.", True)
    log_std_init: float = key(0.0, "Initial logarithm of the standard deviation of actions.", -1.0)
    full_std: bool = key(True, "gSDE: parameters for features × actions, not features alone.", True)
    use_expln: bool = key(False, "gSDE: expln() instead of exp() for the standard deviation.", False)
    squash_output: bool = key(False, "Squash actions by tanh; needs ppo.use_sde = true.", False)
    share_features_extractor: bool = key(True, "One feature extractor for policy and value function.", True)
    normalize_images: bool = key(True, "Divide images by 255.", True)


class ResourcesTable(Table):
    """What one job may use."""

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


class Retry(Table):
    """What happens after an attempt was killed, ran out of memory or hung."""

    max_retries: CountFromZero = key(2, "Attempts after the first one.", 2)


class Settings(Table):
    """Whatever [defaults] may hold; every job may override any key, tables key by key."""

    algo: Literal["ppo"] = key("ppo", "The learning algorithm.", "ppo")
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
    policy_kwargs: PolicyKwargs = key(PolicyKwargs(), "The policy's network.", shown={})
    resources: ResourcesTable = key(ResourcesTable(), "Cores, threads, memory, GPUs and time limits.", shown={})
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
    """An experiment: many PPO policies trained at once, one process each."""

    name: Name = Field(description="The experiment's name; the run directory is runs/<name>.", examples=["robots"])
    max_parallel: MaxParallel = key(
        None, 'Jobs at once: "auto" (as many as there are cores) or a number.', "auto", shown="auto"
    )
    order: Literal["longest-first", "as-listed"] = key(
        "longest-first", "The order in which jobs are launched.", "longest-first"
    )
    defaults: Settings = key(Settings(), "Defaults of every job.", shown={})
    jobs: Annotated[list[Entry], Field(min_length=1)] = Field(description="The jobs, each a [[jobs]] table.")
