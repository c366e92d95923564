"""Checks that involve several keys of a job."""

from __future__ import annotations

from orchestrator.core.decoding import Table
from orchestrator.core.numbers.evaluation_grid import MOST_POINTS, number_of_points
from orchestrator.core.task_names import GYMNASIUM_TASKS
from orchestrator.core.worker_spec import (
    OFF_POLICY,
    fast_refused,
    is_algorithm_class,
    unfit_for_fast,
)
from orchestrator.jobfile.hyperparameters import ALGORITHMS, DEFAULTS, POLICY_KEYS
from orchestrator.jobfile.job_table_rules import table_rules
from orchestrator.jobfile.merged_job import MergedJob
from orchestrator.jobfile.model_edit_keys import flat
from orchestrator.jobfile.rank_rules import check_ranks
from orchestrator.jobfile.validation import Layer
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import is_maker

FAMILY = ("task", "env", "entry_point")
"""A job has one of these keys: the last layer that sets any decides."""
OF_TASKS = ("task_options", "randomize", "evaluate", "asymmetric")
"""Settings that only a job with a task uses; tables of features may be such, too."""
SET_BY_JOB = {
    "env_kwargs.seed": "seeds",
    "env_kwargs.xml": "xml",
    "algo_kwargs.seed": "seeds",
    "algo_kwargs.env": "env",
    "algo_kwargs.device": "resources.gpus",
}
"""Arguments that the program gives → the key of the job that decides them."""


def check_family(layer: Layer, problems: Problems) -> list[str]:
    """Check that a layer sets at most one of task, env and entry_point; return the keys that are
    too many.
    """
    found = [key for key in FAMILY if key in layer.values]
    for key in found[1:]:
        problems.add(layer.where(key), f"{key} and {found[0]} exclude each other; keep one of them")
    return found[1:]


def check_together(job: MergedJob) -> None:
    """Check a job's merged settings."""
    if not job.layers.invalid.isdisjoint(("", "xml", "algo", "preset", *FAMILY)):
        return  # too little is known of the job
    _check_tables(job)
    _check_robot(job)
    for rules in table_rules().values():
        rules.check(job)
    if is_algorithm_class(job.settings["algo"]):
        _check_algorithm_class(job)
    else:
        _check_algorithm(job)
    check_ranks(job)
    _check_fast_learner(job)


def _check_tables(job: MergedJob) -> None:
    """Report tables that the job itself sets, and that are for jobs of another kind."""
    settings = job.settings
    algo = settings["algo"]
    for_others: dict[str, str] = {}
    if "task" in settings:
        for_others["env_kwargs"] = "env or entry_point; a task has task_options"
    else:
        of_features = [name for name, rules in table_rules().items() if rules.is_for_tasks]
        for_others |= dict.fromkeys((*OF_TASKS, *of_features), "a job with a task")
    if not is_algorithm_class(algo):
        for_others["algo_kwargs"] = 'algo = "module:Class"'
    if not is_maker(settings.get("xml", "")):
        for_others["params"] = 'a function that makes the robot, xml = "module:function"'
    for name in ALGORITHMS:
        # Where algo varies, each of the entry's tables is for some of its jobs.
        if name != algo and (job.point.has(name) or not job.point.has("algo")):
            for_others[name] = f'algo = "{name}", and algo is "{algo}"'
    for name, users in for_others.items():
        if job.sets(name):
            job.report([name], f"is for {users}; leave it out")


def _check_robot(job: MergedJob) -> None:
    """Check that a job has the robot, the policy and the evaluation that its other settings need."""
    settings = job.settings
    has_robot = "xml" in settings
    if "task" in settings:
        if not has_robot and settings["task"] not in GYMNASIUM_TASKS:
            job.report([], f'xml is missing: the task "{settings["task"]}" needs a robot')
        if settings["policy"] != "MlpPolicy":
            job.report(["policy"], 'a task\'s observation is a vector; expected "MlpPolicy"')
        points = number_of_points(flat(settings["evaluate"]))
        if points > MOST_POINTS:
            message = f"its values make {points:_} combinations; expected at most {MOST_POINTS:_}"
            job.report(["evaluate"], message)
        if points and settings["eval_episodes"] == 0:
            message = "is part of the final evaluation, and eval_episodes is 0; set it above 0"
            job.report(["evaluate", "eval_episodes"], message)
    for dotted, key in SET_BY_JOB.items():
        table, argument = dotted.split(".")
        if argument in settings[table]:
            job.report([dotted], f"is set by the job; use its key {key}")
    if settings["model"] and not has_robot:
        job.report(["model"], "changes a robot, and this job names none; set xml")


def _check_algorithm_class(job: MergedJob) -> None:
    """Report settings that an algorithm named as a class cannot have."""
    unused = {"init": "none", "asymmetric": False}
    for key in [key for key, value in unused.items() if job.settings[key] != value]:
        named = ", ".join(ALGORITHMS)
        job.report([key, "algo"], f"{key} is for {named}, and algo is {job.settings['algo']}")


def _check_algorithm(job: MergedJob) -> None:
    """Report hyperparameters that the job's algorithm would refuse."""
    algo = job.settings["algo"]
    policy_kwargs = job.settings["policy_kwargs"]
    for key in policy_kwargs.keys() - POLICY_KEYS[algo]:
        known = ", ".join(sorted(POLICY_KEYS[algo]))
        job.report([f"policy_kwargs.{key}"], f"policies of {algo} have no {key}; they have {known}")
    critic = "qf" if algo in OFF_POLICY else "vf"
    arch = policy_kwargs.get("net_arch")
    if isinstance(arch, dict) and arch.keys() != {"pi", critic}:
        message = f"expected the networks of {algo}, {{ pi = […], {critic} = […] }}"
        job.report(["policy_kwargs.net_arch"], message)
    values = DEFAULTS[algo] | job.settings[algo]
    n_envs = job.settings["n_envs"]
    if algo in OFF_POLICY:
        _check_off_policy(job, values)
        return
    rollout = values["n_steps"] * n_envs
    batch_size = values.get("batch_size", rollout)  # a2c has no minibatches
    keys = [f"{algo}.batch_size", f"{algo}.n_steps", "n_envs"]
    ranks = job.settings["resources"]["ranks"]
    if values["normalize_advantage"] and batch_size == ranks:
        message = (
            "each rank needs more than one sample per update, because normalize_advantage is on"
        )
        job.report([*keys, "resources.ranks"], message)
    elif rollout % batch_size:
        message = (
            f"n_steps × n_envs = {values['n_steps']} × {n_envs} = {rollout} is not divisible by "
            f"batch_size = {batch_size}: every epoch would end with a smaller minibatch"
        )
        job.report(keys, message)


def _check_off_policy(job: MergedJob, values: Table) -> None:
    """Report whole episodes of several environments, and a training without an update.

    :param values: the hyperparameters with their defaults.
    """
    algo = job.settings["algo"]
    n_envs = job.settings["n_envs"]
    total = job.settings["total_timesteps"]
    starts = values["learning_starts"]
    if isinstance(values["train_freq"], list) and "episode" in values["train_freq"] and n_envs > 1:
        message = f"whole episodes need n_envs = 1, and n_envs is {n_envs}; set a number of steps"
        job.report([f"{algo}.train_freq", "n_envs"], message)
    if starts >= total:
        message = f"learning_starts = {starts:_} is not below total_timesteps = {total:_}: nothing would be learnt"
        job.report([f"{algo}.learning_starts", "total_timesteps"], message)


def _check_fast_learner(job: MergedJob) -> None:
    settings = job.settings
    if settings["learner"] != "fast":
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
