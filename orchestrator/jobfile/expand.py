"""From validated layers to jobs: globs, matrix points and seeds."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job, Resources
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.jobfile.algorithm_keys import check_tables
from orchestrator.jobfile.hyperparameters import ALGORITHMS
from orchestrator.jobfile.job_names import canonical, digest, matrix_suffix, safe_name
from orchestrator.jobfile.joint_rules import FAMILY, check_family, check_together
from orchestrator.jobfile.layers import Layer
from orchestrator.jobfile.model_edit_keys import flat
from orchestrator.jobfile.robot_globs import Robot, Robots
from orchestrator.jobfile.toml_models import Settings
from orchestrator.jobfile.validation import Checked, check_one
from orchestrator.jobfile.validation_errors import FREE_TABLES, TABLES, place, quoted
from orchestrator.jobfile.value_types import is_users_task

MOST_JOBS = 100_000
"""A matrix is a product and grows out of hand quickly; beyond this it is taken for a mistake."""

_NOT_IN_MATRIX = {
    "name": "names come from the job's name and the matrix; leave it out",
    "xml": "several robots are several [[jobs]] tables, or a glob",
    "seeds": "seeds multiply the jobs already; set seeds = [0, 1, 2] on the job",
    "matrix": "a matrix holds no matrix",
}

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of one key of a matrix."""

    key: str
    value: Any
    """As validated, in plain JSON types."""
    tree: Tree
    where: str


def expand(checked: Checked, *, base: Path, overrides: Mapping[str, Any], problems: dict[Problem, None]) -> list[Job]:
    """Every job of the file, in its order; problems found on the way are added to ``problems``."""
    # What the user did not set of these stays unset: the worker passes on nothing else.
    unset: Tree = {name: {} for name in (*ALGORITHMS, "policy_kwargs")}
    built_in = Settings().model_dump(exclude={"env", "entry_point", *unset}) | unset
    shared_choices = _choices(checked.defaults.pop("matrix", {}), "defaults", problems)
    common = [
        Layer(built_in, lambda key: key),
        Layer(checked.defaults, lambda key: f"defaults.{key}"),
        _override_layer(overrides, checked, problems),
    ]
    for layer in common:
        check_family(layer, problems)
    shared: Tree = functools.reduce(overlay, (layer.values for layer in common), {})
    broken = checked.broken.get("defaults", set()) | checked.broken.get("--set", set())

    robots = Robots(base)
    namer = Namer()
    jobs: list[Job] = []
    for number, values in enumerate(checked.entries):
        bad = broken | checked.broken.get(number, set())
        if "*" in bad:
            continue
        where = f"jobs[{number}]"
        choices = {**shared_choices, **_choices(values.pop("matrix", {}), where, problems)}
        entry = Layer(values, functools.partial("{}.{}".format, where))
        check_family(entry, problems)
        settled = overlay(shared, values)
        found = robots.find(values.get("xml"), values.get("name"), f"{where}.xml", problems)
        count = math.prod(map(len, choices.values())) * len(settled["seeds"]) * max(1, len(found))
        if len(jobs) + count > MOST_JOBS:
            message = f"files, matrix and seeds make {count:_} jobs here; an experiment holds at most {MOST_JOBS:_}"
            problems[Problem(where=where, message=message)] = None
            continue
        if "algo" not in bad:
            check_tables(entry, {choice.value for choice in choices.get("algo", ())} or {settled["algo"]}, problems)
        variants = []
        for point in itertools.product(*choices.values()):
            chosen = _point_layer(point)
            merged = overlay(settled, chosen.values)
            check_together(merged, [*common, entry, chosen], where, bad, problems)
            variants.append((merged, point))
        if bad & {"name", "xml", "seeds", "matrix", *FAMILY}:
            continue  # names made from what is wrong would only seem to collide
        for robot in found:
            for merged, point in variants:
                jobs += _jobs(merged, point, robot, where=where, base=base, namer=namer, problems=problems)
    return jobs


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Settings with ``above`` laid over ``below``: tables key by key, anything else whole."""
    if any(key in above for key in FAMILY):
        below = {key: value for key, value in below.items() if key not in FAMILY}
    return _merge(below, above)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        result[key] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def _override_layer(overrides: Mapping[str, Any], checked: Checked, problems: dict[Problem, None]) -> Layer:
    values: Tree = {}
    for key, value in overrides.items():
        where, top = f"--set {key}", key.partition(".")[0]
        if top == "matrix":
            tree, message = None, "a matrix cannot be set from outside the job file"
            problems[Problem(where=where, message=message)] = None
        elif key == "max_parallel":
            tree, message = None, "is not a default of the jobs; use --max-parallel"
            problems[Problem(where=where, message=message)] = None
        else:
            tree = check_one(key, value, where, problems)
        if tree is None:
            checked.broken.setdefault("--set", set()).add(top)
        else:
            values = _merge(values, tree)
    return Layer(values, "--set {}".format)


def _choices(matrix: Mapping[str, Any], where: str, problems: dict[Problem, None]) -> dict[str, list[Choice]]:
    """The values of every key of a matrix that are right; of a wrong key there are none."""
    first, *others = [key for key in matrix if key in FAMILY] or [""]
    for key in others:
        message = f"{key} and {first} exclude each other; keep the one that makes the environment"
        problems[Problem(where=f"{where}.matrix.{key}", message=message)] = None
    return {
        key: choices
        for key, values in matrix.items()
        if key not in others and (choices := _choices_of(key, values, where, problems))
    }


def _choices_of(key: str, values: Any, where: str, problems: dict[Problem, None]) -> list[Choice]:
    there = f"{where}.matrix.{place(key)}"
    wrong = _wrong_in_matrix(key, values)
    if wrong:
        problems[Problem(where=there, message=wrong)] = None
        return []
    if not _is_key(key):
        check_one(key, values[0], there, problems)
        return []
    choices: list[Choice] = []
    seen: set[str] = set()
    for number, value in enumerate(values):
        tree = check_one(key, value, f"{there}[{number}]", problems)
        if tree is None:
            continue
        plain = functools.reduce(lambda inner, part: inner[part], key.split("."), tree)
        if canonical(plain) in seen:
            message = "the same value stands earlier in the list; each value makes its own jobs"
            problems[Problem(where=f"{there}[{number}]", message=message)] = None
            continue
        seen.add(canonical(plain))
        choices.append(Choice(key, plain, tree, f"{there}[{number}]"))
    return choices


def _is_key(dotted: str) -> bool:
    top, *rest = dotted.split(".")
    if top in FREE_TABLES:
        return bool(rest)
    if top in TABLES:
        return len(rest) == 1 and rest[0] in TABLES[top].model_fields
    return not rest and top in Settings.model_fields


def _wrong_in_matrix(key: str, values: Any) -> str:
    """Why a matrix cannot hold this; empty when it can, or when the key is simply unknown."""
    top, *rest = key.split(".")
    if key in _NOT_IN_MATRIX:
        return _NOT_IN_MATRIX[key]
    if key in (*TABLES, *FREE_TABLES):
        inner = (
            next(iter(values), "key")
            if isinstance(values, dict)
            else next(iter(TABLES[key].model_fields if key in TABLES else ()), "key")
        )
        return f'a matrix takes the keys of a table one by one, dotted and in quotes: "{key}.{inner}" = […]'
    if top in Settings.model_fields and top not in FREE_TABLES and len(rest) > (top in TABLES):
        return f"there are no keys below {'.'.join([top, *rest[: top in TABLES]])}"
    if not isinstance(values, list) or not values:
        return "expected a list of values with at least one, for example [1e-4, 3e-4]"
    return ""


def _point_layer(point: Sequence[Choice]) -> Layer:
    values: Tree = {}
    for choice in point:
        values = _merge(values, choice.tree)
    places = {choice.key: choice.where for choice in point}
    return Layer(values, lambda key: places.get(key, key))


class Namer:
    """Gives every job a job_id that no other job has, not even on a file system that ignores case."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[str, str, str]] = {}
        """Of each job_id in lower case: name, matrix point and place of the job that has it."""

    def job_id(self, name: str, suffix: str, point: str, seed: int, where: str) -> tuple[str, str]:
        """``(job_id, "")``, or ``("", place of the other)`` when an equal job has been named before.

        Different jobs whose ids would differ in nothing, or in nothing but case, are told apart by a hash of
        what they are; the first in the file keeps the plain id.
        """
        stem = safe_name(name) + suffix
        other = ("", "", where)
        for candidate in (stem, f"{stem}-{digest(canonical([name, point]))}"):
            job_id = f"{candidate}-s{seed}"
            other = self._taken.setdefault(job_id.lower(), mine := (name, point, where))
            if other is mine:
                return job_id, ""
            if other[:2] == mine[:2]:
                break
        return "", other[2]


def _jobs(
    merged: Tree,
    point: Sequence[Choice],
    robot: Robot,
    *,
    where: str,
    base: Path,
    namer: Namer,
    problems: dict[Problem, None],
) -> list[Job]:
    """One job per seed."""
    env, entry_point = merged.get("env"), merged.get("entry_point")
    task = merged.get("task")
    name = robot.name or env or str(entry_point or task).rpartition(":")[2]
    chosen = {choice.key: choice.value for choice in point}
    suffix, point_text = matrix_suffix(chosen), canonical(chosen)
    table = merged["resources"]
    resources = Resources(
        cores=table["cores"],
        threads=table["threads"] or table["cores"],
        memory_mib=table["memory"],
        gpus=table["gpus"],
        timeout_s=table["timeout"],
        stall_timeout_s=table["stall_timeout"],
        ranks=table["ranks"],
    )
    jobs = []
    for seed in merged["seeds"]:
        job_id, other = namer.job_id(name, suffix, point_text, seed, where)
        if not job_id:
            whose = "this entry" if other == where else other
            message = (
                f"the name {quoted(name)} with seed {seed} is taken by {whose}; give each job its own name or seeds"
            )
            problems[Problem(where=where, message=message)] = None
            break
        spec = WorkerSpec(
            job_id=job_id,
            name=name,
            seed=seed,
            algo=merged["algo"],
            learner=merged["learner"],
            total_timesteps=merged["total_timesteps"],
            n_envs=merged["n_envs"],
            normalize=merged["normalize"],
            checkpoint_every=merged["checkpoint_every"],
            eval_episodes=merged["eval_episodes"],
            video=merged["video"],
            xml=f"robot/{robot.xml.name}" if robot.xml else None,
            model_edits=flat(merged["model"]),
            task=merged.get("task"),
            task_options=merged["task_options"] if "task" in merged else {},
            env=env,
            entry_point=entry_point,
            env_kwargs={} if "task" in merged else merged["env_kwargs"],
            hyperparameters=merged[merged["algo"]],
            policy=merged["policy"],
            policy_kwargs=merged["policy_kwargs"],
            threads=resources.threads,
            device="cuda" if resources.gpus else "cpu",
            ranks=resources.ranks,
            backend=merged["distributed"]["backend"],
            mode=merged["distributed"]["mode"],
            search_path=str(base) if task is None or is_users_task(task) else None,
        )
        jobs.append(
            Job(
                job_id=job_id,
                where=where,
                spec=spec,
                resources=resources,
                max_retries=merged["retry"]["max_retries"],
                xml_source=robot.xml,
                point=chosen,
            )
        )
    return jobs
