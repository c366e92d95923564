"""The job file's format, key by key. Defaults, limits, descriptions and examples are written here and nowhere else."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from orchestrator.contract import parse_schedule
from orchestrator.spec.names import is_showable
from orchestrator.spec.units import parse_duration, parse_size

Task = Literal["forward", "balance"]
TASKS: tuple[str, ...] = get_args(Task)
"""Built-in tasks; each has its file in ``orchestrator/worker/tasks``."""
MOST = 10**12
"""Upper limit of every count: far above any use, far below what would overflow."""


class Expected(ValueError):
    """What a key takes; the message shown goes on with what was found."""


def _schedule(value: Any) -> float | str:
    if isinstance(value, str):
        start, end, _ = parse_schedule(value)
        if not (0 < start < math.inf and 0 <= end < math.inf):
            raise ValueError(f'"{value}" must start above 0 and not fall below it, for example "linear(3e-4, 0)"')
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise Expected('expected a number above 0 or a schedule such as "linear(3e-4, 0)"')


def _schedule_or_none(value: Any) -> float | str | None:
    return None if value is None else _schedule(value)


def _size(value: Any) -> int:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError as error:
            raise Expected(str(error)) from None
    raise Expected('expected a size with its unit, such as "2 GiB", "512 MiB" or "1.5 GB"')


def _duration(value: Any) -> float:
    try:
        if isinstance(value, str):
            return parse_duration(value)
    except ValueError as error:
        raise Expected(str(error)) from None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise Expected('expected a duration above 0 such as "2h", "10min", "90s" or "1h30min", or a number of seconds')


def _is_count(value: Any, least: int, most: int = MOST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _seeds(value: Any) -> list[int]:
    # numpy.random.seed, which Stable-Baselines3 calls, takes 32 bits.
    if not isinstance(value, list) or not value or not all(_is_count(seed, 0, 2**32 - 1) for seed in value):
        raise Expected("expected a list of whole numbers from 0 to 4294967295")
    if len(set(value)) < len(value):
        twice = next(seed for place, seed in enumerate(value) if seed in value[:place])
        raise ValueError(f"the seed {twice} is listed twice; each seed is one job")
    return value


def _layers(value: Any) -> bool:
    return isinstance(value, list) and all(_is_count(width, 1) for width in value)


def _net_arch(value: Any) -> list[int] | dict[str, list[int]]:
    if _layers(value) or (isinstance(value, dict) and {"pi", "vf"} == set(value) and all(map(_layers, value.values()))):
        return value  # type: ignore[no-any-return]
    raise Expected(
        "expected a list of layer widths, [64, 64], or a table with both, { pi = [64, 64], vf = [128, 128] }"
    )


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise Expected("expected text in quotes")
    if not value.strip():
        raise ValueError("the name is empty")
    if not is_showable(value):
        raise ValueError("the name holds a control character, such as a line break; leave it out")
    return value


def _path(value: Any) -> str:
    if isinstance(value, str) and value.strip() and is_showable(value):
        return value
    raise Expected("expected the path of an MJCF file, or a pattern such as zoo/*.xml, in quotes")


def _entry_point(value: Any) -> str:
    if isinstance(value, str):
        module, colon, attribute = value.partition(":")
        if colon and all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
            return value
    raise Expected('expected "package.module:callable"')


_ENV_ID = re.compile(r"(?:[\w.]+:)?(?:[\w:-]+/)?[\w:.-]+\Z")


def _env(value: Any) -> str:
    if isinstance(value, str) and _ENV_ID.match(value):
        return value
    raise Expected('expected a gymnasium id such as "Ant-v5"')


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Expected("expected a table")
    stranger = _not_plain(value)
    if stranger is not None:
        raise ValueError(f"holds {stranger!r}; only text, numbers, true or false, lists and tables are passed on")
    return value


def _not_plain(value: Any) -> object | None:
    """The first thing within ``value`` that JSON cannot say (a date, for one)."""
    if isinstance(value, dict):
        parts: list[Any] = list(value.values())
        parts += [key for key in value if not isinstance(key, str)]
    elif isinstance(value, list):
        parts = value
    else:
        return None if value is None or isinstance(value, (str, int, float)) else value
    return next((found for found in map(_not_plain, parts) if found is not None), None)


def _matrix(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise Expected("expected a table of lists, each under a dotted key in quotes")


def _max_parallel(value: Any) -> int | None:
    if value == "auto":
        return None
    if _is_count(value, 1):
        return value  # type: ignore[no-any-return]
    raise Expected('expected "auto" or a whole number of at least 1')


_NUMBER_OR_SCHEDULE = {
    "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^\s*linear\s*\([^()]*\)\s*$"}]
}
_WIDTHS = {"type": "array", "items": {"type": "integer", "minimum": 1}}
_DURATION = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*(d|h|min|s)\s*)+$"},
    ]
}

Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrNone = Annotated[int, Field(ge=0, le=MOST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Schedule = Annotated[float | str, PlainValidator(_schedule), WithJsonSchema(_NUMBER_OR_SCHEDULE)]
OptionalSchedule = Annotated[float | str | None, PlainValidator(_schedule_or_none), WithJsonSchema(_NUMBER_OR_SCHEDULE)]
Size = Annotated[
    int,
    PlainValidator(_size),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([KkMmGgTt][Ii]?[Bb])\s*$"}),
]
Duration = Annotated[float, PlainValidator(_duration), WithJsonSchema(_DURATION)]
Seeds = Annotated[
    list[int],
    PlainValidator(_seeds),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
            "minItems": 1,
            "uniqueItems": True,
        }
    ),
]
NetArch = Annotated[
    list[int] | dict[str, list[int]],
    PlainValidator(_net_arch),
    WithJsonSchema(
        {
            "anyOf": [
                _WIDTHS,
                {
                    "type": "object",
                    "properties": {"pi": _WIDTHS, "vf": _WIDTHS},
                    "required": ["pi", "vf"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Name = Annotated[str, PlainValidator(_name), WithJsonSchema({"type": "string", "minLength": 1})]
MjcfPath = Annotated[str, PlainValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]
EntryPoint = Annotated[
    str, PlainValidator(_entry_point), WithJsonSchema({"type": "string", "pattern": r"^[^\s:]+:[^\s:]+$"})
]
EnvId = Annotated[str, PlainValidator(_env), WithJsonSchema({"type": "string", "minLength": 1})]
Matrix = Annotated[dict[str, Any], PlainValidator(_matrix), WithJsonSchema({"type": "object"})]
Options = Annotated[dict[str, Any], PlainValidator(_options), WithJsonSchema({"type": "object"})]
MaxParallel = Annotated[
    int | None,
    PlainValidator(_max_parallel),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
]


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
    gpus: CountOrNone = key(0, "GPUs; with any, PyTorch uses CUDA.", 1)
    timeout: Duration = key(7200.0, "Wall-clock limit of one attempt.", "2h", shown="2h")
    stall_timeout: Duration = key(
        600.0, "An attempt without progress for this long is ended and retried.", "10min", shown="10min"
    )


class Retry(Table):
    """What happens after an attempt was killed, ran out of memory or hung."""

    max_retries: CountOrNone = key(2, "Attempts after the first one.", 2)


class Settings(Table):
    """Whatever [defaults] may hold; every job may override any key, tables key by key."""

    algo: Literal["ppo"] = key("ppo", "The learning algorithm.", "ppo")
    task: Task = key("forward", "Built-in task over any MJCF; needs xml.", "forward")
    env: EnvId = key(None, "Gymnasium id instead of a task; may be combined with xml.", "Ant-v5")
    entry_point: EntryPoint = key(
        None,
        "Callable that makes the environment instead of a task: called with xml=… and seed=….",
        "my_robots.envs:make_env",
    )
    env_kwargs: Options = key({}, "Further keyword arguments of env or entry_point.", {"frame_skip": 5})
    task_options: Options = key({}, "Options of the built-in task.", {})
    total_timesteps: Count = key(200_000, "env_steps to train for.", 200_000)
    n_envs: Count = key(8, "Environments stepped together within the job.", 8)
    seeds: Seeds = key([0], "One job per seed.", [0, 1, 2])
    normalize: bool = key(True, "Normalise observations and rewards (VecNormalize).", True)
    checkpoint_every: Count = key(50_000, "env_steps between checkpoints.", 50_000)
    eval_episodes: CountOrNone = key(10, "Episodes of the final deterministic evaluation; 0 for none.", 10)
    learner: Literal["auto", "sb3"] = key("auto", "What does PPO's arithmetic.", "auto")
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
