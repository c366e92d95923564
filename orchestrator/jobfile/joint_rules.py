"""Checks that involve several keys of a job."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from orchestrator.core.job import Job
from orchestrator.core.numbers.changing_numbers import changing_numbers
from orchestrator.core.numbers.distributions import PRIVILEGED, disturbance
from orchestrator.core.numbers.evaluation_grid import MOST_POINTS, number_of_points
from orchestrator.core.numbers.terrain import TERRAIN
from orchestrator.core.robot_sources import MJCF, RobotFormat
from orchestrator.core.task_names import GYMNASIUM_TASKS
from orchestrator.core.text import count, listed
from orchestrator.core.worker_spec import (
    OFF_POLICY,
    fast_refused,
    is_algorithm_class,
    unfit_for_fast,
)
from orchestrator.jobfile.hyperparameters import ALGORITHMS, DEFAULTS, POLICY_KEYS
from orchestrator.jobfile.job_table_rules import (
    check_format_tables,
    check_tables_of_features,
    format_tables,
    table_rules,
)
from orchestrator.jobfile.merged_job import MergedJob
from orchestrator.jobfile.model_edit_keys import flat
from orchestrator.jobfile.rank_rules import check_ranks, near
from orchestrator.jobfile.validation import Layer
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import is_maker

FAMILY = ("task", "env", "entry_point")
"""A job has one of these keys: the last layer that sets any decides."""
OF_TASKS = ("task_options", "randomize", "evaluate", "asymmetric")
"""Settings that only a job with a task uses; tables of features may be such, too."""
FEWEST_ITERATIONS = 5
"""A training of PPO with fewer updates hardly learns, and has as few points in its learning
curve."""


def check_family(layer: Layer, problems: Problems) -> list[str]:
    """Check that a layer sets at most one of task, env and entry_point; returns the keys that are
    too many.
    """
    found = [key for key in FAMILY if key in layer.values]
    for key in found[1:]:
        problems.add(
            layer.where(key),
            f"{key} and {found[0]} exclude each other; keep the one that makes the environment",
        )
    return found[1:]


def takes_part(
    settings: Mapping[str, Any], job: Mapping[str, Any], formats: Collection[RobotFormat | None]
) -> bool:
    """Whether a job uses any of ``settings``: it has a use for their table, and no layer above has
    other values.

    :param formats: those of the robots that its entry has.
    """
    return any(
        _suits(table, job, formats) and _has(value, job.get(table))
        for table, value in settings.items()
    )


def _of_tasks() -> tuple[str, ...]:
    return *OF_TASKS, *(name for name, rules in table_rules().items() if rules.is_for_tasks)


def _suits(table: str, job: Mapping[str, Any], formats: Collection[RobotFormat | None]) -> bool:
    """Whether a job has a use for this table, or key without a table."""
    if table in ALGORITHMS:
        return bool(job["algo"] == table)
    if table in _of_tasks():
        return "task" in job
    if table == "env_kwargs":
        return "task" not in job
    if table == "algo_kwargs":
        return is_algorithm_class(job["algo"])
    if table in format_tables():
        return format_tables()[table] in formats
    return table != "distributed" or job["resources"]["ranks"] > 1


def _has(value: Any, found: Any) -> bool:
    """Whether ``found`` has anything of ``value``."""
    if isinstance(value, Mapping) and isinstance(found, Mapping):
        return any(_has(part, found.get(key)) for key, part in value.items())
    return bool(value == found)


def why_kept(key: str, entry: Mapping[str, Any], varied: Collection[str]) -> str:
    """Why the jobs of an entry keep their own value of this key of ``--set``; empty where they take
    its value.

    :param varied: the keys of the entry's matrix.
    """
    for other in varied:
        if f"{other}.".startswith(f"{key}.") or f"{key}.".startswith(f"{other}."):
            return "its matrix varies it"
    if key not in FAMILY:
        return ""
    own = next((other for other in FAMILY if other in entry or other in varied), key)
    return "" if own == key else f"it has its own {own}"


def why_unused(key: str) -> str:
    """Why no job uses the setting with this dotted key."""
    top = key.partition(".")[0]
    users = {
        "env_kwargs": "env or entry_point",
        "algo_kwargs": 'algo = "module:Class"',
        **dict.fromkeys(_of_tasks(), "a task"),
        **{
            name: MJCF if robot is None else robot.with_article
            for name, robot in format_tables().items()
        },
        "distributed": "several ranks",
    }
    users |= {name: f'algo = "{name}"' for name in ALGORITHMS}
    return f"no job with {users[top]} takes it" if top in users else "no job takes it"


def check_tables(entry: Layer, algos: Set[str], problems: Problems) -> None:
    """Check that an entry has only tables of its own algorithms; [defaults] may hold any, for other
    jobs.

    :param algos: the algorithms that the entry's jobs are trained with.
    """
    for name in ALGORITHMS:
        if name in entry.values and name not in algos:
            problems.add(entry.where(name), _not_used(name, *sorted(algos)))


def check_together(job: MergedJob) -> None:
    """Check a job's merged settings, except those that depend on keys that are invalid already."""
    _check_environment(job)
    _check_grid(job)
    _check_asymmetric(job)
    if job.are_valid(*FAMILY, "algo", job.settings["algo"]):
        check_tables_of_features(job)
    _check_robot(job)
    check_format_tables(job)
    _check_algorithm(job)
    _check_fast_learner(job)
    check_ranks(job)
    _check_algorithm_class(job)


def _check_environment(job: MergedJob) -> None:
    if not job.are_valid(*FAMILY, "xml", "env_kwargs", "policy", *_of_tasks()):
        return
    if "task" in job.settings:
        _check_task(job)
    else:
        _check_own_environment(job)


def _check_task(job: MergedJob) -> None:
    task = job.settings["task"]
    policy = job.settings["policy"]
    if "xml" not in job.settings and task not in GYMNASIUM_TASKS:
        job.report(
            [], f'xml is missing: the task "{task}" needs a robot; or set env or entry_point'
        )
    if policy != "MlpPolicy":
        job.report(
            ["policy"],
            f'{policy} does not fit: a built-in task\'s observation is a vector; use "MlpPolicy"',
        )
    if job.sets("env_kwargs"):
        job.report(
            ["env_kwargs"],
            "is for env or entry_point; options of a built-in task belong in task_options",
        )


def _check_own_environment(job: MergedJob) -> None:
    env_kwargs = job.settings["env_kwargs"]
    if "env" in job.settings:
        for dotted, text in changing_numbers(env_kwargs):
            job.report(
                [f"env_kwargs.{dotted}"],
                f'"{text}" is text to an environment, which gets its arguments once; '
                "numbers change over the training in the task_options of a task",
            )
    if job.sets("task_options"):
        job.report(
            ["task_options"],
            "is for built-in tasks; arguments of env or entry_point belong in env_kwargs",
        )
    if job.sets("randomize"):
        job.report(
            ["randomize"],
            "is for tasks, built-in or your own; an environment of its own draws its robots itself",
        )
    if job.sets("asymmetric") and job.settings["asymmetric"]:
        job.report(
            ["asymmetric"],
            "is for tasks, built-in or your own, whose episodes draw values by randomize",
        )
    if job.sets("evaluate"):
        job.report(
            ["evaluate"],
            "is for tasks, built-in or your own; measure an environment of its own by a program",
        )
    for argument, instead in (("seed", "seeds"), ("xml", "xml")):
        if argument in env_kwargs:
            job.report(
                [f"env_kwargs.{argument}"], f"is set by the job; use its key {instead} instead"
            )
    if "xml_file" in env_kwargs and "xml" in job.settings and "env" in job.settings:
        job.report(
            ["env_kwargs.xml_file"],
            "the robot is given twice, as env_kwargs.xml_file and as xml; keep xml",
        )


def _check_robot(job: MergedJob) -> None:
    """Check that a job has the robot that its settings change, or the function that makes it."""
    settings = job.settings
    if settings["model"] and "xml" not in settings and job.are_valid("xml", "model"):
        job.report(
            ["model"],
            "changes a robot, but this job names none; "
            "set xml, also where a gymnasium task brings a robot",
        )
    has_function = is_maker(settings.get("xml", ""))
    if job.sets("params") and not has_function and job.are_valid("xml", "params"):
        job.report(
            [f"params.{name}" for name in settings["params"]],
            'is for a function that makes the robot, xml = "module:function"; this job has none',
        )


def _check_grid(job: MergedJob) -> None:
    evaluate = job.settings["evaluate"]
    if not evaluate or "task" not in job.settings:
        return
    if not job.are_valid("evaluate", "eval_episodes"):
        return
    points = number_of_points(flat(evaluate))
    if points > MOST_POINTS:
        job.report(
            ["evaluate"],
            f"its values make {points:_} combinations, and each is evaluated; "
            f"expected at most {MOST_POINTS:_}",
        )
    if job.settings["eval_episodes"] == 0:
        job.report(
            ["evaluate", "eval_episodes"],
            "is part of the final evaluation, and eval_episodes is 0; "
            "set it to the episodes at each point",
        )


def _check_asymmetric(job: MergedJob) -> None:
    if not job.settings["asymmetric"] or "task" not in job.settings:
        return
    if not job.are_valid("asymmetric", "randomize", "policy_kwargs", "task_options"):
        return
    randomized = flat(job.settings["randomize"])
    policy_kwargs = job.settings["policy_kwargs"]
    sees_all = job.settings["task_options"].get("observe", "full") == "full"
    if sees_all and not any(map(_is_shown_to_critic, randomized)):
        job.report(
            ["asymmetric", "randomize"],
            "shows the critic what an episode draws of the robot, its delays, and what task_options.observe leaves "
            "out; randomize has no such key, and nothing is left out",
        )
    arch = policy_kwargs.get("net_arch")
    if arch == [] or (isinstance(arch, dict) and arch.get("pi") == []):
        job.report(
            ["asymmetric", "policy_kwargs.net_arch"],
            "needs an actor with at least one hidden layer",
        )


def _is_shown_to_critic(key: str) -> bool:
    """Whether ``asymmetric`` shows the critic what an episode draws by this key of ``randomize``."""
    if key == TERRAIN:
        return False
    disturbed = disturbance(key)
    return disturbed is None or disturbed in PRIVILEGED


def _check_algorithm(job: MergedJob) -> None:
    """Report hyperparameters that the job's algorithm would refuse or ignore."""
    algo = job.settings["algo"]
    of_off_policy = ("policy", "total_timesteps") if algo in OFF_POLICY else ()
    if not job.are_valid("algo", algo, "n_envs", "policy_kwargs", *of_off_policy):
        return
    _check_point(algo, job)
    if is_algorithm_class(algo):
        return
    values = DEFAULTS[algo] | job.settings[algo]
    _check_policy(algo, values, job)
    if algo in OFF_POLICY:
        _check_off_policy(algo, values, job)
    elif values["normalize_advantage"] and values["n_steps"] * job.settings["n_envs"] == 1:
        job.report(
            [f"{algo}.n_steps", "n_envs"],
            "n_steps × n_envs = 1 × 1: the advantage of one step cannot be normalised; "
            "it must be greater than 1",
        )
    elif "batch_size" in values:
        _check_minibatches(algo, values, job)


def _check_algorithm_class(job: MergedJob) -> None:
    """Report settings that an algorithm named as a class cannot have, or only such a one."""
    settings = job.settings
    algo = settings["algo"]
    if not job.are_valid("algo", "algo_kwargs"):
        return
    if not is_algorithm_class(algo):
        if job.sets("algo_kwargs"):
            job.report(
                ["algo_kwargs"],
                f'is for algo = "module:Class"; hyperparameters of {algo} belong in the table {algo}',
            )
        return
    for argument, instead in (("env", "env"), ("seed", "seeds"), ("device", "resources.gpus")):
        if argument in settings["algo_kwargs"]:
            job.report(
                [f"algo_kwargs.{argument}"], f"is set by the job; use its key {instead} instead"
            )
    named = ", ".join(ALGORITHMS)
    for key, unused in (("init", "none"), ("asymmetric", False)):
        if settings[key] != unused and job.are_valid(key):
            job.report([key, "algo"], f"is for the algorithms {named}, and algo is {algo}")


def _check_point(algo: str, job: MergedJob) -> None:
    """Report hyperparameters of another algorithm in the matrix: they would make equal jobs."""
    for name in ALGORITHMS:
        if name in job.point.values and name != algo:
            keys = [f"{name}.{key}" for key in job.point.values[name]]
            job.report(keys, _not_used(name, algo))


def _check_fast_learner(job: MergedJob) -> None:
    settings = job.settings
    if settings["learner"] != "fast":
        return
    if not job.are_valid("learner", "algo", "policy", "ppo", "policy_kwargs", "resources"):
        return
    unfit = unfit_for_fast(
        algo=settings["algo"],
        policy=settings["policy"],
        hyperparameters=settings["ppo"],
        policy_kwargs=settings["policy_kwargs"],
        on_gpu=settings["resources"]["gpus"] > 0,
    )
    if unfit:
        job.report(["learner", *unfit], fast_refused("; ".join(unfit.values())))


def _not_used(name: str, *algos: str) -> str:
    """The message for a table, or a key of one, that has no effect."""
    return f'is for algo = "{name}", and algo is {" or ".join(algos)} here; leave it out, or set algo = "{name}"'


def _check_policy(algo: str, values: Mapping[str, Any], job: MergedJob) -> None:
    policy_kwargs = job.settings["policy_kwargs"]
    for key in policy_kwargs:
        if key not in POLICY_KEYS[algo]:
            known = ", ".join(sorted(POLICY_KEYS[algo]))
            job.report(
                [f"policy_kwargs.{key}"], f"the policies of {algo} have no {key}; they have {known}"
            )
    critic = "qf" if algo in OFF_POLICY else "vf"
    arch = policy_kwargs.get("net_arch")
    if isinstance(arch, dict) and critic not in arch:
        job.report(
            ["policy_kwargs.net_arch"],
            f"the networks of {algo} are pi and {critic}: {{ pi = […], {critic} = […] }}",
        )
    if policy_kwargs.get("squash_output") and algo not in OFF_POLICY and not values["use_sde"]:
        job.report(
            ["policy_kwargs.squash_output"],
            f"works only with gSDE; set {algo}.use_sde = true, or leave it out",
        )


def _check_off_policy(algo: str, values: Mapping[str, Any], job: MergedJob) -> None:
    n_envs = job.settings["n_envs"]
    total = job.settings["total_timesteps"]
    frequency = values["train_freq"]
    starts = values["learning_starts"]
    if isinstance(frequency, list) and frequency[1] == "episode" and n_envs > 1:
        job.report(
            [f"{algo}.train_freq"],
            f"whole episodes need n_envs = 1, and n_envs is {n_envs}; "
            "set n_envs = 1, or a number of steps",
        )
    if values["n_steps"] > 1 and job.settings["policy"] == "MultiInputPolicy":
        job.report(
            [f"{algo}.n_steps"],
            "must be 1: Stable-Baselines3 supports no n-step returns with Dict observations",
        )
    if starts >= total:
        job.report(
            [f"{algo}.learning_starts", "total_timesteps"],
            f"learning_starts = {starts:_} is not below total_timesteps = {total:_}, "
            "so the policy would not be trained",
        )


def _check_minibatches(algo: str, values: Mapping[str, Any], job: MergedJob) -> None:
    n_steps = values["n_steps"]
    n_envs = job.settings["n_envs"]
    ranks = job.settings["resources"]["ranks"]
    batch_size = values["batch_size"]
    rollout = n_steps * n_envs
    if values["normalize_advantage"] and batch_size == 1:
        job.report(
            [f"{algo}.batch_size"], "must be greater than 1, because normalize_advantage is on"
        )
    elif rollout % batch_size and batch_size % ranks == 0:
        is_default = "batch_size" not in job.settings[algo]
        default = " (Stable-Baselines3's default)" if is_default else ""
        unit = batch_size // math.gcd(batch_size, n_envs)
        instead = f"n_steps = {max(1, round(n_steps / unit)) * unit}"
        sizes = near(batch_size, ranks, rollout)
        alike = [str(size) for size in sizes if batch_size / 4 <= size <= batch_size * 4]
        if alike:
            instead = f"batch_size = {' or '.join(alike)}, or {instead}"
        job.report(
            [f"{algo}.batch_size", f"{algo}.n_steps", "n_envs"],
            f"n_steps × n_envs = {n_steps} × {n_envs} = {rollout} is not divisible by "
            f"batch_size = {batch_size}{default}: every epoch would end with a minibatch of "
            f"{rollout % batch_size}; use {instead}",
        )


def few_iterations(jobs: Sequence[Job]) -> list[str]:
    """Warnings about jobs of PPO that make fewer updates than :data:`FEWEST_ITERATIONS`, and what
    to set instead.
    """
    names: dict[_ShortTraining, dict[str, None]] = {}
    for job in jobs:
        spec = job.spec
        if spec.algo != "ppo":
            continue
        if spec.total_timesteps > (FEWEST_ITERATIONS - 1) * spec.steps_an_iteration:
            continue
        values = {**DEFAULTS["ppo"], **spec.hyperparameters}
        training = _ShortTraining(
            total_timesteps=spec.total_timesteps,
            n_envs=spec.n_envs,
            n_steps=values["n_steps"],
            batch_size=values["batch_size"],
        )
        names.setdefault(training, {})[spec.name] = None
    return [f"{listed(list(of_it), 3)}: {one.warning()}" for one, of_it in names.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShortTraining:
    """What decides how many updates a training of PPO makes, where these are too few."""

    total_timesteps: int
    n_envs: int
    n_steps: int
    batch_size: int

    def warning(self) -> str:
        total = self.total_timesteps
        rollout = self.n_steps * self.n_envs
        iterations = math.ceil(total / rollout)
        rounded = f", so {iterations * rollout:_} env_steps are trained" if total % rollout else ""
        instead = f"total_timesteps = {FEWEST_ITERATIONS * rollout:_}"
        n_steps = self._enough_n_steps()
        if n_steps:
            instead += f", or ppo.n_steps = {n_steps}"
        return (
            f"total_timesteps = {total:_} makes {count(iterations, 'iteration')} of n_envs × n_steps = "
            f"{self.n_envs} × {self.n_steps} = {rollout:_} env_steps{rounded}; "
            f"expected at least {FEWEST_ITERATIONS}: set {instead}"
        )

    def _enough_n_steps(self) -> int:
        """The largest power of 2 with which there are enough updates, or else the largest number,
        so that minibatches divide the rollout; 0 where there is none.
        """
        most = (self.total_timesteps - 1) // ((FEWEST_ITERATIONS - 1) * self.n_envs)
        if most == 0:
            return 0
        power = 1 << (most.bit_length() - 1)
        unit = self.batch_size // math.gcd(self.batch_size, self.n_envs)
        return most // unit * unit if power % unit else power
