"""What is wrong with a job file: every problem, at its place, in one go."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobfile_helpers import EXAMPLE, HOPPER, SAFE, problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.jobfile import from_mapping, json_schema, load

BAD_JOBS: list[tuple[str, dict[str, Any], str, str]] = [
    # claim, job laid over hopper, place within the job, message
    (
        "misspelt key",
        {"ppo": {"n_step": 256}},
        ".ppo.n_step",
        'unknown key; did you mean "n_steps"?',
    ),
    (
        "misspelt key of the job",
        {"total_timestep": 1},
        ".total_timestep",
        'did you mean "total_timesteps"?',
    ),
    (
        "what others call the learning rate",
        {"ppo": {"lr": 1e-3}},
        ".ppo.lr",
        'did you mean "learning_rate"?',
    ),
    ("the same on the job", {"lr": 1e-3}, ".lr", 'did you mean "ppo.learning_rate"?'),
    (
        "what others call env_steps",
        {"timesteps": 5},
        ".timesteps",
        'did you mean "total_timesteps"?',
    ),
    (
        "unknown key",
        {"quux": 1},
        ".quux",
        "known keys: a2c, after, algo, algo_kwargs, allow_outside, asymmetric, checkpoint_every",
    ),
    (
        "key of a table on the job",
        {"n_steps": 1},
        ".n_steps",
        "belongs in the table ppo: ppo.n_steps",
    ),
    (
        "key of the job in a table",
        {"ppo": {"n_envs": 1}},
        ".ppo.n_envs",
        "belongs to the job itself",
    ),
    (
        "key of the file on the job",
        {"max_parallel": 1},
        ".max_parallel",
        "belongs at the top of the file",
    ),
    ("seed", {"seed": 1}, ".seed", "use seeds, a list: seeds = [0]"),
    ("several seeds", {"seed": [0, 1]}, ".seed", "did you mean seeds = [0, 1]?"),
    ("braces", {"xml": "../mjcf/{hopper,walker}.xml"}, ".xml", "braces are no pattern"),
    ("seed for PPO", {"ppo": {"seed": 1}}, ".ppo.seed", "seeds = [0]"),
    ("device for PPO", {"ppo": {"device": "cuda"}}, ".ppo.device", "resources.gpus = 1"),
    ("verbose", {"ppo": {"verbose": 1}}, ".ppo.verbose", "cannot be set"),
    ("tensorboard", {"ppo": {"tensorboard_log": "x"}}, ".ppo.tensorboard_log", "progress.csv"),
    (
        "policy for PPO",
        {"ppo": {"policy": "MlpPolicy"}},
        ".ppo.policy",
        "belongs to the job itself",
    ),
    ("env for PPO", {"ppo": {"env": "Ant-v5"}}, ".ppo.env", "belongs to the job itself"),
    (
        "optimiser",
        {"policy_kwargs": {"optimizer_kwargs": {}}},
        ".policy_kwargs.optimizer_kwargs",
        "Adam with eps = 1e-5",
    ),
    (
        "text for a number",
        {"n_envs": "8"},
        ".n_envs",
        'found the text "8"; write it without quotes',
    ),
    (
        "float for a count",
        {"total_timesteps": 1.5},
        ".total_timesteps",
        "expected a whole number from 1 to 1_000_000_000_000",
    ),
    (
        "bool for a count",
        {"n_envs": True},
        ".n_envs",
        "expected a whole number from 1 to 1_000_000_000_000, found true",
    ),
    (
        "bool for a number",
        {"ppo": {"gamma": True}},
        ".ppo.gamma",
        "expected a number from 0 to 1, found true",
    ),
    ("number for a bool", {"normalize": 1}, ".normalize", "expected true or false, found 1"),
    ("text for a bool", {"normalize": "true"}, ".normalize", "write it without quotes: true"),
    ("number for a table", {"ppo": 3}, ".ppo", "expected a table, found 3"),
    ("number for text", {"xml": 3}, ".xml", "expected the path of an MJCF"),
    ("zero", {"n_envs": 0}, ".n_envs", "to 1_000_000_000_000, found 0; for example n_envs = 8"),
    (
        "steps between checkpoints",
        {"checkpoint_every": 0},
        ".checkpoint_every",
        "number of env_steps from 1 to 1_000_000_000_000, or",
    ),
    (
        "time between checkpoints",
        {"checkpoint_every": "5 w"},
        ".checkpoint_every",
        'unknown unit "w"',
    ),
    ("checkpoints in quotes", {"checkpoint_every": "500"}, ".checkpoint_every", 'such as "10min"'),
    ("niceness", {"resources": {"nice": 20}}, ".resources.nice", "from 0 to 19, found 20"),
    ("negative niceness", {"resources": {"nice": -1}}, ".resources.nice", "from 0 to 19, found -1"),
    (
        "free disk space",
        {"resources": {"min_free_disk": 5}},
        ".resources.min_free_disk",
        "or 0 for no limit, found 5",
    ),
    (
        "unknown start",
        {"resources": {"start": "spawn"}},
        ".resources.start",
        'one of "auto", "exec", "fork", found',
    ),
    ("absurd count", {"n_envs": 10**5000}, ".n_envs", "more than 18 digits"),
    (
        "unknown algorithm",
        {"algo": "dqn"},
        ".algo",
        "expected one of ppo, sac, td3, a2c, or a class",
    ),
    ("unknown task", {"task": "foward"}, ".task", 'unknown task "foward"; did you mean "forward"?'),
    ("task that is no class", {"task": "my tasks:Jump"}, ".task", "my tasks:Jump"),
    ("task without a name", {"task": 3}, ".task", "found 3"),
    ("unknown policy", {"policy": "Mlp"}, ".policy", 'did you mean "MlpPolicy"?'),
    ("unknown learner", {"learner": "jax"}, ".learner", 'one of "auto", "sb3", "fast"'),
    (
        "fast with gSDE",
        {"learner": "fast", "ppo": {"use_sde": True}},
        ".learner",
        "ppo.use_sde is on, and the fast",
    ),
    (
        "fast on a GPU",
        {"learner": "fast", "resources": {"gpus": 1}},
        ".learner",
        'set learner = "auto"',
    ),
    (
        "fast with GELU",
        {"learner": "fast", "policy_kwargs": {"activation_fn": "gelu"}},
        ".learner",
        "tanh, relu, elu",
    ),
    (
        "fast with images",
        {"env": "Ant-v5", "learner": "fast", "policy": "CnnPolicy"},
        ".learner",
        "policy is CnnPolicy, and the fast learner supports only MlpPolicy",
    ),
    (
        "unknown activation",
        {"policy_kwargs": {"activation_fn": "rellu"}},
        ".policy_kwargs.activation_fn",
        'mean "relu"?',
    ),
    (
        "wrong layers",
        {"policy_kwargs": {"net_arch": [64, 0]}},
        ".policy_kwargs.net_arch",
        "{ pi = [64, 64]",
    ),
    (
        "half a network",
        {"policy_kwargs": {"net_arch": {"pi": [64]}}},
        ".policy_kwargs.net_arch",
        "a table with both",
    ),
    (
        "one seed",
        {"seeds": 3},
        ".seeds",
        'a list of whole numbers from 0 to 4294967295, such as [0, 1, 2], or a range such as "0-199", found 3',
    ),
    ("no seeds", {"seeds": []}, ".seeds", "found the list []"),
    ("negative seed", {"seeds": [-1]}, ".seeds", "from 0 to 4294967295"),
    ("seed beyond 32 bits", {"seeds": [2**32]}, ".seeds", "from 0 to 4294967295"),
    ("range of seeds downwards", {"seeds": "3-1"}, ".seeds", 'found the text "3-1"'),
    ("range of no seeds", {"seeds": "0..9"}, ".seeds", 'found the text "0..9"'),
    ("range beyond 32 bits", {"seeds": "0-4294967296"}, ".seeds", 'such as "0-199", found'),
    (
        "too many seeds",
        {"seeds": "0-4294967295"},
        ".seeds",
        "has 4_294_967_296 seeds; expected at most",
    ),
    ("seed twice", {"seeds": [1, 2, 1]}, ".seeds", "the seed 1 is listed twice"),
    (
        "size without unit",
        {"resources": {"memory": 2}},
        ".resources.memory",
        'with its unit, such as "2 GiB"',
    ),
    (
        "unknown unit of size",
        {"resources": {"memory": "2 G"}},
        ".resources.memory",
        'unknown unit "G"',
    ),
    ("no size", {"resources": {"memory": "0 GiB"}}, ".resources.memory", "above 0"),
    (
        "unknown unit of time",
        {"resources": {"timeout": "2w"}},
        ".resources.timeout",
        'unknown unit "w" (known: d, h',
    ),
    ("no time", {"resources": {"timeout": "0s"}}, ".resources.timeout", "above 0"),
    (
        "stall at once",
        {"resources": {"stall_timeout": "1s"}},
        ".resources.stall_timeout",
        "at least 3 s: a worker",
    ),
    ("negative time", {"resources": {"stall_timeout": -1}}, ".resources.stall_timeout", "above 0"),
    (
        "log without room",
        {"resources": {"log": "1 MiB"}},
        ".resources.log",
        "from 4 MiB to 1024 MiB, found",
    ),
    (
        "log without limit",
        {"resources": {"log": "2 TiB"}},
        ".resources.log",
        "from 4 MiB to 1024 MiB",
    ),
    ("no cores", {"resources": {"cores": 0}}, ".resources.cores", "from 1 to"),
    ("negative gpus", {"resources": {"gpus": -1}}, ".resources.gpus", "0 or more, found -1"),
    (
        "more than a share",
        {"resources": {"gpus": 1.5}},
        ".resources.gpus",
        "from 0.0001 to 0.9999, such as 0.5, or a",
    ),
    (
        "a share of nothing",
        {"resources": {"gpus": 0.00001}},
        ".resources.gpus",
        "or a whole number, 0 or more",
    ),
    ("negative retries", {"retry": {"max_retries": -1}}, ".retry.max_retries", "from 0 to"),
    ("empty name", {"name": " "}, ".name", "the name is empty"),
    ("name with a line break", {"name": "a\nb"}, ".name", "control character"),
    ("name with an escape sequence", {"name": "\x1b[31m"}, ".name", "control character"),
    (
        "entry point without colon",
        {"entry_point": "mine"},
        ".entry_point",
        'expected "package.module:callable"',
    ),
    (
        "entry point with shell words",
        {"entry_point": "a:b; reboot"},
        ".entry_point",
        'expected "package.module',
    ),
    ("environment id", {"env": "Ant v5"}, ".env", 'expected a gymnasium id such as "Ant-v5"'),
    (
        "date as option",
        {"task_options": {"x": tomllib.loads("x = 2020-01-01")["x"]}},
        ".task_options",
        "a date",
    ),
    # what Stable-Baselines3, torch or arithmetic would reject
    ("gamma above 1", {"ppo": {"gamma": 1.5}}, ".ppo.gamma", "a number from 0 to 1, found 1.5"),
    (
        "gae_lambda below 0",
        {"ppo": {"gae_lambda": -0.1}},
        ".ppo.gae_lambda",
        "a number from 0 to 1",
    ),
    ("gamma that is none", {"ppo": {"gamma": float("nan")}}, ".ppo.gamma", "found nan"),
    (
        "negative learning rate",
        {"ppo": {"learning_rate": -1e-4}},
        ".ppo.learning_rate",
        "a number above 0 and up to 1_000_000_000_000, or a schedule",
    ),
    (
        "unknown schedule",
        {"ppo": {"learning_rate": "lin(1, 0)"}},
        ".ppo.learning_rate",
        "linear(3e-4, 0)",
    ),
    (
        "schedule below 0",
        {"ppo": {"clip_range": "linear(0.2, -1)"}},
        ".ppo.clip_range",
        "not fall below 0",
    ),
    (
        "schedule of infinity",
        {"ppo": {"learning_rate": "linear(inf, 0)"}},
        ".ppo.learning_rate",
        "must start above 0",
    ),
    ("clip_range_vf of 0", {"ppo": {"clip_range_vf": 0}}, ".ppo.clip_range_vf", "a number above 0"),
    ("no epochs", {"ppo": {"n_epochs": 0}}, ".ppo.n_epochs", "from 1 to"),
    (
        "no gradient",
        {"ppo": {"max_grad_norm": 0}},
        ".ppo.max_grad_norm",
        "a finite number above 0, found 0",
    ),
    ("target_kl of 0", {"ppo": {"target_kl": 0}}, ".ppo.target_kl", "a finite number above 0"),
    ("sde frequency", {"ppo": {"sde_sample_freq": -2}}, ".ppo.sde_sample_freq", "from -1 to"),
    (
        "minibatch of 1",
        {"ppo": {"batch_size": 1}},
        ".ppo.batch_size",
        "because normalize_advantage is on",
    ),
    (
        "rollout of 1",
        {"n_envs": 1, "ppo": {"n_steps": 1}},
        ".ppo.n_steps",
        "must be greater than 1",
    ),
    (
        "indivisible batch",
        {"ppo": {"batch_size": 100, "n_steps": 256}},
        ".ppo.batch_size",
        "use batch_size = 64 or 128",
    ),
    (
        "indivisible default batch",
        {"n_envs": 3, "ppo": {"n_steps": 100}},
        ".ppo.n_steps",
        "= 64 (Stable-Baselines3's default)",
    ),
    ("batch beyond the rollout", {"ppo": {"n_steps": 4}}, ".ppo.n_steps", "use batch_size = 32"),
    (
        "prime rollout",
        {"n_envs": 1, "ppo": {"n_steps": 1009}},
        ".ppo.n_steps",
        "use n_steps = 1024",
    ),
    (
        "squashing without gSDE",
        {"policy_kwargs": {"squash_output": True}},
        ".policy_kwargs.squash_output",
        "use_sde = true",
    ),
    ("images from a task", {"policy": "CnnPolicy"}, ".policy", 'is a vector; use "MlpPolicy"'),
    # what makes the environment
    (
        "task and env",
        {"task": "forward", "env": "Ant-v5"},
        ".env",
        "env and task exclude each other",
    ),
    (
        "env and entry_point",
        {"env": "Ant-v5", "entry_point": "a:b"},
        ".entry_point",
        "exclude each other",
    ),
    ("env_kwargs for a task", {"env_kwargs": {"a": 1}}, ".env_kwargs", "belong in task_options"),
    (
        "task_options for an env",
        {"env": "Ant-v5", "task_options": {"a": 1}},
        ".task_options",
        "belong in env_kwargs",
    ),
    ("seed for the env", {"env": "Ant-v5", "env_kwargs": {"seed": 1}}, ".env_kwargs.seed", "seeds"),
    (
        "robot twice",
        {"env": "Ant-v5", "env_kwargs": {"xml_file": "a"}},
        ".env_kwargs.xml_file",
        "keep xml",
    ),
    # robots
    ("missing file", {"xml": "../mjcf/hoper.xml"}, ".xml", 'did you mean "hopper.xml"?'),
    ("missing folder", {"xml": "../nowhere/a.xml"}, ".xml", "does not exist"),
    ("folder", {"xml": "../mjcf/zoo"}, ".xml", '"zoo/*.xml"'),
    ("endless path", {"xml": "a" * 5000 + ".xml"}, ".xml", "cannot be read: file name too long"),
    ("empty path", {"xml": ""}, ".xml", "expected the path of an MJCF"),
    ("path with NUL", {"xml": "a\0.xml"}, ".xml", "expected the path of an MJCF"),
    ("glob without match", {"xml": "../mjcf/zoo/*.mjcf"}, ".xml", "which holds ant.xml, bug.xml"),
    ("glob in an empty folder", {"xml": "../mjcf/empty/*.xml"}, ".xml", "which holds nothing"),
    ("glob in no folder", {"xml": "../nowhere/*.xml"}, ".xml", "does not exist"),
    ("glob of directories", {"xml": "../mjcf/z*"}, ".xml", "only folders"),
    # matrix
    (
        "misspelt matrix key",
        {"matrix": {"ppo.lerning_rate": [1, 2]}},
        '.matrix."ppo.lerning_rate"',
        '"learning_rate"?',
    ),
    (
        "matrix key without table",
        {"matrix": {"gamma": [1]}},
        ".matrix.gamma",
        "table ppo: ppo.gamma",
    ),
    (
        "matrix key below a value",
        {"matrix": {"ppo.gamma.x": [1]}},
        '.matrix."ppo.gamma.x"',
        "no keys below ppo.gamma",
    ),
    ("matrix table", {"matrix": {"ppo": {"gamma": [1]}}}, ".matrix.ppo", '"ppo.gamma" = […]'),
    (
        "unquoted change in a matrix",
        {"matrix": {"model": {"geom": {"shin0": {"fromto": [1, 2]}}}}},
        ".matrix.model",
        '"model.geom.shin0.fromto" = […]',
    ),
    (
        "misspelt kind of element in a matrix",
        {"matrix": {"model.geoms.shin.size": ["*0.8", "*1", "*1.2"]}},
        '.matrix."model.geoms.shin.size"[0]',
        "unknown kind of element",
    ),
    (
        "matrix of seeds",
        {"matrix": {"seeds": [1]}},
        ".matrix.seeds",
        "set seeds = [0, 1, 2] on the job",
    ),
    ("matrix of robots", {"matrix": {"xml": ["a"]}}, ".matrix.xml", "or a glob"),
    (
        "matrix without list",
        {"matrix": {"ppo.gamma": 1}},
        '.matrix."ppo.gamma"',
        "expected a list of values",
    ),
    ("empty matrix list", {"matrix": {"ppo.gamma": []}}, '.matrix."ppo.gamma"', "at least one"),
    (
        "wrong matrix value",
        {"matrix": {"ppo.gamma": [0.5, 2]}},
        '.matrix."ppo.gamma"[1]',
        "from 0 to 1, found 2",
    ),
    (
        "matrix value twice",
        {"matrix": {"ppo.gamma": [1, 1.0]}},
        '.matrix."ppo.gamma"[1]',
        "earlier in the list",
    ),
    (
        "matrix of task and env",
        {"matrix": {"task": ["forward"], "env": ["Ant-v5"]}},
        ".matrix.env",
        "exclude each other",
    ),
    (
        "indivisible matrix point",
        {"matrix": {"n_envs": [8, 7], "ppo.n_steps": [80]}},
        '.matrix."ppo.n_steps"[0]',
        "80 × 7",
    ),
    (
        "endless matrix",
        {"matrix": {f"task_options.o{i}": list(range(10)) for i in range(20)}},
        "",
        "at most 100_000",
    ),
    ("matrix that is none", {"matrix": 3}, ".matrix", "expected a table of lists"),
]


@pytest.mark.parametrize(
    ("job", "where", "message"), [bad[1:] for bad in BAD_JOBS], ids=[bad[0] for bad in BAD_JOBS]
)
def test_a_wrong_job_is_refused_at_its_place(
    place: Path, job: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, HOPPER, HOPPER | {"name": "wrong"} | job)
    ((found_where, found_message),) = problems(error)
    assert found_where == f"jobs[1]{where}"
    assert message in found_message
    assert not re.search("pydantic|Input should|validation error", str(error.value))


def test_all_that_the_fast_learner_cannot_do_is_one_problem(place: Path) -> None:
    job = HOPPER | {
        "learner": "fast",
        "ppo": {"use_sde": True},
        "policy_kwargs": {"activation_fn": "silu"},
    }
    with pytest.raises(SpecError) as error:
        resolve(place, job)
    ((where, message),) = problems(error)
    assert where == "jobs[0].learner"
    assert message == (
        'learner = "fast" is not possible: ppo.use_sde is on, and the fast learner does not support gSDE; '
        "policy_kwargs.activation_fn is silu, and the fast learner supports tanh, relu, elu; "
        'set learner = "auto", which uses stock Stable-Baselines3 here'
    )


@pytest.mark.parametrize(
    ("defaults", "job", "overrides", "where"),
    [
        ({"learner": "fast"}, {"ppo": {"use_sde": True}}, {}, "jobs[1].ppo.use_sde"),
        ({"ppo": {"use_sde": True}}, {"learner": "fast"}, {}, "jobs[1].learner"),
        ({}, {"ppo": {"use_sde": True}}, {"learner": "fast"}, "--set learner"),
        ({"learner": "fast", "ppo": {"use_sde": True}}, {}, {}, "defaults.learner"),
        ({"ppo": {"use_sde": True}}, {}, {"learner": "fast"}, "--set learner"),
        (
            {"learner": "fast"},
            {"matrix": {"ppo.use_sde": [False, True]}},
            {},
            'jobs[1].matrix."ppo.use_sde"[1]',
        ),
        (
            {"ppo": {"use_sde": True}},
            {"matrix": {"learner": ["auto", "fast"]}},
            {},
            "jobs[1].matrix.learner[1]",
        ),
    ],
)
def test_a_learner_that_does_not_suit_is_reported_once_where_it_was_written_last(
    place: Path,
    defaults: dict[str, Any],
    job: dict[str, Any],
    overrides: dict[str, Any],
    where: str,
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, HOPPER, HOPPER | {"name": "odd"} | job, defaults=defaults, **overrides)
    ((found, message),) = problems(error)
    assert found == where
    assert "ppo.use_sde is on, and the fast learner does not support gSDE" in message


@pytest.mark.parametrize("learner", ["auto", "sb3"])
def test_only_a_demand_for_the_fast_learner_is_refused(place: Path, learner: str) -> None:
    (job,) = resolve(
        place, HOPPER | {"learner": learner, "ppo": {"use_sde": True}, "resources": {"gpus": 1}}
    ).jobs
    assert job.spec.learner == learner


def test_a_fast_learner_with_whatever_it_can_do_is_taken(place: Path) -> None:
    policy = {
        "net_arch": {"pi": [], "vf": [32]},
        "activation_fn": "elu",
        "ortho_init": False,
        "log_std_init": -1.0,
    }
    (job,) = resolve(
        place, HOPPER | {"learner": "fast", "policy_kwargs": policy, "ppo": {"clip_range_vf": 0.2}}
    ).jobs
    assert job.spec.learner == "fast"


def test_a_task_without_robot_is_refused(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, {"name": "ghost"})
    assert problems(error) == [
        ("jobs[0]", 'xml is missing: the task "auto" needs a robot; or set env or entry_point')
    ]


@pytest.mark.parametrize(
    ("data", "where", "message"),
    [
        ({"jobs": [HOPPER]}, "name", 'missing; add for example name = "robots"'),
        ({"name": "x"}, "jobs", "there are no jobs; add a [[jobs]] table"),
        ({"name": "x", "jobs": []}, "jobs", "there are no jobs"),
        ({"name": "x", "jobs": HOPPER}, "jobs", "write [[jobs]] with double brackets"),
        ({"name": "x", "jobs": "hopper"}, "jobs", "expected a list"),
        ({"name": "x", "jobs": [HOPPER, 3]}, "jobs[1]", "expected a table, found 3"),
        (
            {"name": "x", "jobs": [HOPPER], "defaults": [1]},
            "defaults",
            "expected a table, found the list [1]",
        ),
        ({"name": 3, "jobs": [HOPPER]}, "name", "expected text in quotes, found 3"),
        (
            {"name": "x", "jobs": [HOPPER], "max_parallel": 0},
            "max_parallel",
            'expected "auto", "idle" or a',
        ),
        ({"name": "x", "jobs": [HOPPER], "max_parallel": True}, "max_parallel", "found true"),
        (
            {"name": "x", "jobs": [HOPPER], "max_paralel": 2},
            "max_paralel",
            'did you mean "max_parallel"?',
        ),
        (
            {"name": "x", "jobs": [HOPPER], "order": "longest"},
            "order",
            'did you mean "longest-first"?',
        ),
        (
            {"name": "x", "jobs": [HOPPER], "n_envs": 3},
            "n_envs",
            "belongs in [defaults] or in a [[jobs]] table",
        ),
        ({"name": "x", "jobs": [HOPPER], "xml": "a"}, "xml", "belongs in a [[jobs]] table"),
        (
            {"name": "x", "jobs": [HOPPER], "defaults": {"xml": "a"}},
            "defaults.xml",
            "belongs in a [[jobs]] table",
        ),
    ],
)
def test_a_wrong_file_is_refused_at_its_place(
    place: Path, data: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        from_mapping(data, source="robots.toml", base=place)
    ((found_where, found_message),) = problems(error)
    assert found_where == where
    assert message in found_message


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ppo.n_step", 3, 'did you mean "n_steps"?'),
        ("total_timesteps", "many", "expected a whole number"),
        ("matrix", {}, "in the job file"),
        ("max_parallel", 3, "use --max-parallel"),
        ("xml", "a", "belongs in a [[jobs]] table"),
        ("", 1, "unknown key"),
        ("ppo..", 1, "unknown key"),
        (
            "n_envs.x",
            1,
            "expected a whole number from 1 to 1_000_000_000_000, found the table { x = 1 }",
        ),
    ],
)
def test_a_wrong_set_is_refused_by_its_own_words(
    place: Path, key: str, value: Any, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, HOPPER, **{key: value})
    ((where, found),) = problems(error)
    assert where == f"--set {key}"
    assert message in found


def test_problems_at_keys_with_digits_of_other_scripts_are_sorted(tmp_path: Path) -> None:
    env_kwargs = {"1٣": "linear(0, 1)", "10": "linear(0, 1)", "2": "linear(0, 1)"}
    data = {"name": "digits", "jobs": [{"env": "Ant-v5", "env_kwargs": env_kwargs}]}
    with pytest.raises(SpecError) as error:
        from_mapping(data, source="any.toml", base=tmp_path)
    assert [where for where, _ in problems(error)] == [
        "jobs[0].env_kwargs.1٣",
        "jobs[0].env_kwargs.2",
        "jobs[0].env_kwargs.10",
    ]


def test_all_errors_are_reported_at_once_and_in_order(write: Callable[..., Path]) -> None:
    jobs = "".join(
        f"[[jobs]]\nname = 'j{number}'\nxml = '../mjcf/hopper.xml'\n" for number in range(10)
    )
    path = write(
        f"""
        name = "many"
        max_parallel = 0
        [defaults.ppo]
        n_step = 3
        {jobs}
        [[jobs]]
        name = "far"
        xml = "../mjcf/hoper.xml"
        task = "dance"
        [[jobs]]
        xml = "../mjcf/*.urdf"
        n_envs = "8"
        matrix = {{ "ppo.gamma" = [2, 3] }}
        [[jobs]]
        env = "Ant-v5"
        entry_point = "a:b"
        """
    )
    with pytest.raises(SpecError) as error:
        load(path)
    assert [where for where, _ in problems(error)] == [
        "defaults.ppo.n_step",
        "jobs[10].task",
        "jobs[10].xml",
        'jobs[11].matrix."ppo.gamma"[0]',
        'jobs[11].matrix."ppo.gamma"[1]',
        "jobs[11].n_envs",
        "jobs[11].xml",
        "jobs[12].entry_point",
        "max_parallel",
    ]
    assert (
        str(error.value).splitlines()[0]
        == f'{path}: defaults.ppo.n_step: unknown key; did you mean "n_steps"?'
    )


def test_a_wrong_default_is_one_problem_not_one_a_job(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            place,
            *(HOPPER | {"name": f"j{number}"} for number in range(5)),
            defaults={"ppo": {"batch_size": 100}},
        )
    assert [where for where, _ in problems(error)] == ["defaults.ppo.batch_size"]


def test_a_combined_fault_is_reported_where_its_last_part_was_written(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            place, HOPPER, HOPPER | {"name": "odd", "n_envs": 7}, defaults={"ppo": {"n_steps": 80}}
        )
    assert [where for where, _ in problems(error)] == ["jobs[1].n_envs"]
    with pytest.raises(SpecError) as error:
        resolve(place, HOPPER, **{"ppo.batch_size": 100})
    assert [where for where, _ in problems(error)] == ["--set ppo.batch_size"]


def test_nothing_is_inferred_from_a_key_that_is_wrong_itself(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            place,
            {"xlm": "../mjcf/hopper.xml"},
            HOPPER | {"ppo": {"n_step": 512, "batch_size": 100}},
        )
    assert [where for where, _ in problems(error)] == ["jobs[0].xlm", "jobs[1].ppo.n_step"]


@pytest.mark.parametrize("first", [{"seeds": [0, 1]}, {"seeds": [1], "ppo": {"gamma": 0.9}}])
def test_duplicate_names_are_refused_naming_both_places(place: Path, first: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, HOPPER | first, {"env": "Ant-v5"}, HOPPER | {"seeds": [1, 2]})
    assert problems(error) == [
        (
            "jobs[2]",
            'the name "hopper" with seed 1 is taken by jobs[0]; give each job its own name or seeds',
        )
    ]


def test_a_name_may_come_twice_with_other_seeds(place: Path) -> None:
    experiment = resolve(place, HOPPER | {"seeds": [0]}, HOPPER | {"seeds": [1], "n_envs": 4})
    assert [job.job_id for job in experiment.jobs] == ["hopper-s0", "hopper-s1"]


def test_an_unreadable_robot_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, mode: mode != os.R_OK
    )  # root, as in containers, reads everything
    with pytest.raises(SpecError, match=r"hopper\.xml cannot be read: permission denied"):
        resolve(place, HOPPER)


def test_a_link_to_nothing_is_refused(place: Path) -> None:
    (place / "link.xml").symlink_to("nowhere.xml")
    for pattern in ("link.xml", "li*.xml"):
        with pytest.raises(SpecError, match="is a broken symbolic link"):
            resolve(place, {"xml": pattern})


def test_a_robot_whose_file_name_is_no_text_is_refused(place: Path) -> None:
    folder = place / "odd"
    folder.mkdir()
    (folder / os.fsdecode(b"r\xff.xml")).touch()
    (folder / "a\nb.xml").touch()
    with pytest.raises(SpecError) as error:
        resolve(place, {"xml": "odd/*.xml"})
    assert [message.count("rename the file") for _, message in problems(error)] == [1, 1]
    str(error.value).encode()


def declared_keys() -> st.SearchStrategy[str]:
    """Those of a job file and of a job."""
    schema = json_schema()
    return st.sampled_from([*schema["properties"], *schema["$defs"]["Entry"]["properties"]])


KEYS = st.deferred(declared_keys) | st.sampled_from(
    [
        "n_steps",
        "n_step",
        "batch_size",
        "gamma",
        "learning_rate",
        "net_arch",
        "cores",
        "memory",
        "ppo.n_steps",
        "task_options.a",
    ]
)
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(1, 300)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(
        [
            "forward",
            "2 GiB",
            "1h",
            "Ant-v5",
            "a:b",
            "../mjcf/*/*.xml",
            "../mjcf/hopper.xml",
            "MlpPolicy",
        ]
    )
    | st.datetimes()
)
ANYTHING = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
    ),
)
TABLE = st.dictionaries(KEYS, ANYTHING, max_size=5)


@settings(max_examples=20)
@given(
    defaults=TABLE | ANYTHING,
    jobs=st.lists(TABLE, min_size=1, max_size=3) | ANYTHING,
    top=TABLE,
    overrides=TABLE,
)
def test_any_data_whatever_gives_an_experiment_or_all_its_problems(
    place: Path, defaults: Any, jobs: Any, top: dict[str, Any], overrides: dict[str, Any]
) -> None:
    data = {"name": "any"} | top | {"defaults": defaults, "jobs": jobs}
    try:
        experiment = from_mapping(data, source="any", base=place, overrides=overrides)
    except SpecError as error:
        found = error.problems
        assert found
        assert all(problem.message for problem in found)
    else:
        assert all(SAFE.match(job.job_id) for job in experiment.jobs)
        assert all(json.loads(job.spec.to_json()) for job in experiment.jobs)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("name = robots", "line 1, column 8", "not valid TOML, invalid value: name = robots"),
        ('name = "a"\nname = "b"\n', "line 2, column 11", 'cannot overwrite a value: name = "b"'),
        ('name = "a', "", "is not valid TOML: Unterminated string (at end of document)"),
        (b"# ok\nname = '\xff'", "line 2", "save the file as UTF-8"),
        ("\0", "line 1, column 1", "not valid TOML"),
        ("x = " + "9" * 5000, "", "is not a job file"),
        ("x = " + "[" * 100_000, "", "is not a job file"),
        ("", "jobs", "there are no jobs"),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_its_line(
    write: Callable[..., Path], text: str | bytes, where: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        load(write(text))
    found = error.value.problems[0]
    assert found.where == where
    assert message in found.message


def test_a_job_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(SpecError, match=r"/dev/zero: is not a job file: it has more than 64 MiB"):
        load(Path("/dev/zero"))


def test_a_byte_order_mark_and_windows_lines_are_accepted(write: Callable[..., Path]) -> None:
    path = write(b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode())
    assert len(load(path).jobs) == 13


def test_a_missing_job_file_is_answered_with_its_neighbour(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(EXAMPLE)
    with pytest.raises(SpecError, match=r"robot.toml: no such file; did you mean .*robots.toml"):
        load(path.with_name("robot.toml"))
    with pytest.raises(SpecError, match="its folder does not exist"):
        load(tmp_path / "nowhere" / "robots.toml")
    with pytest.raises(SpecError, match="is a directory, not a job file"):
        load(path.parent)
