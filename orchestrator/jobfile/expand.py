"""Expands validated layers into jobs: one for every robot file, matrix point and seed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.job import Job, Resources
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import Algorithm, WorkerSpec
from orchestrator.jobfile.hyperparameters import ALGORITHMS
from orchestrator.jobfile.job_names import JobNames, canonical, matrix_suffix
from orchestrator.jobfile.joint_rules import (
    FAMILY,
    check_family,
    check_tables,
    check_together,
    few_iterations,
    takes_part,
    why_kept,
    why_unused,
)
from orchestrator.jobfile.model_edit_keys import flat
from orchestrator.jobfile.presets import KEYS, PresetName, preset_values
from orchestrator.jobfile.robot_globs import Robot, Robots
from orchestrator.jobfile.toml_models import Settings
from orchestrator.jobfile.validation import Checked, Layer, check_one
from orchestrator.jobfile.validation_errors import FREE_TABLES, TABLES, Problems, place, quoted
from orchestrator.jobfile.value_types import is_users_task, parse_duration

MOST_JOBS = 100_000
"""Largest number of jobs of an experiment: a matrix that makes more is considered a mistake."""

_NOT_IN_MATRIX = {
    "name": "cannot vary: job ids are made of the job's name and the matrix; leave it out",
    "xml": "cannot vary; write several [[jobs]] tables, or a glob as xml",
    "seeds": "seeds make several jobs without a matrix; set seeds = [0, 1, 2] on the job",
    "matrix": "a matrix cannot hold a matrix",
}

_NOT_ON_COMMAND_LINE = {
    "matrix": "cannot be set on the command line; write the matrix in the job file",
    "max_parallel": "is not a default of jobs; use --max-parallel",
}
_SAME_IN_SPEC = (
    *("algo", "learner", "total_timesteps", "n_envs", "normalize", "eval_episodes", "video"),
    *("policy", "policy_kwargs", "on_divergence", "keep_replay_buffer"),
)
"""Settings that are fields of :class:`WorkerSpec` with the same name and value."""

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of one key of a matrix."""

    key: str
    value: Any
    """The validated value, in JSON types."""
    tree: Tree
    """The key and its value as nested tables."""
    where: str


def expand(
    checked: Checked, *, base: Path, overrides: Mapping[str, Any], skip_invalid: bool, problems: Problems
) -> tuple[list[Job], list[str]]:
    """All jobs, in the order of the file, and warnings about settings; problems are added to ``problems``."""
    # The worker passes on to Stable-Baselines3 only the hyperparameters that the user has set.
    unset: Tree = {name: {} for name in (*ALGORITHMS, "policy_kwargs")}
    built_in = Settings().model_dump(exclude={"env", "entry_point", *unset}) | unset
    shared_choices = _choices(checked.defaults.pop("matrix", {}), "defaults", problems)
    trees = _override_trees(overrides, checked, problems)
    common = [Layer(built_in, lambda key: key), Layer(checked.defaults, lambda key: f"defaults.{key}")]
    given = Layer(functools.reduce(_merge, trees.values(), {}), "--set {}".format)
    for layer in (*common, given):
        check_family(layer, problems)

    @functools.cache
    def below(preset: PresetName | None, algo: Algorithm) -> Tree:
        return overlay(built_in, preset_values(preset, algo))

    broken = checked.broken.get("defaults", set()) | checked.broken.get("--set", set())
    unused, kept = dict(trees), list[tuple[str, str, str]]()

    robots = Robots(base, skip_invalid=skip_invalid)
    names = JobNames()
    jobs: list[Job] = []
    for number, values in enumerate(checked.entries):
        bad = broken | checked.broken.get(number, set())
        if "preset" in bad:
            bad |= KEYS  # the values that it would have set are not known
        if "*" in bad:
            continue
        where = f"jobs[{number}]"
        matrix = values.pop("matrix", None)  # an empty one undoes that of [defaults]
        choices = {} if matrix == {} else {**shared_choices, **_choices(matrix or {}, where, problems)}
        entry = Layer(values, functools.partial("{}.{}".format, where))
        check_family(entry, problems)
        taken = {key: value for key, value in given.values.items() if not why_kept(key, values, ())}
        settled = overlay(overlay(checked.defaults, values), taken)
        algo, seeds = (settled.get(key, built_in[key]) for key in ("algo", "seeds"))
        kept += [(key, reason, where) for key in trees if (reason := why_kept(key, values, choices))]
        files = robots.find(values.get("xml"), values.get("name"), number, problems)
        count = math.prod(map(len, choices.values())) * len(seeds) * max(1, len(files))
        if len(jobs) + count > MOST_JOBS:
            message = f"files, matrix and seeds make {count:_} jobs here; an experiment can have at most {MOST_JOBS:_}"
            problems.add(where, message)
            continue
        if "algo" not in bad:
            check_tables(entry, {choice.value for choice in choices.get("algo", ())} or {algo}, problems)
        variants = []
        for point in itertools.product(*choices.values()):
            chosen = _point_layer(point)
            own = overlay(settled, chosen.values)
            merged = overlay(below(own.get("preset"), own.get("algo", algo)), own)
            check_together(merged, [*common, entry, given, chosen], where, bad, problems)
            variants.append((merged, point))
            unused = {key: tree for key, tree in unused.items() if not takes_part(tree, merged)}
        if bad & {"name", "xml", "seeds", "matrix", *FAMILY}:
            continue  # names made of invalid values might only seem to collide
        for robot in files:
            for merged, point in variants:
                jobs += _jobs(merged, point, robot, where=where, base=base, names=names, problems=problems)
    return jobs, [*_without_effect(unused, kept), *few_iterations(jobs)]


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """``below`` overridden by ``above``: tables key by key, other values as a whole."""
    if any(key in above for key in FAMILY):
        below = {key: value for key, value in below.items() if key not in FAMILY}
    return _merge(below, above)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        result[key] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def _override_trees(overrides: Mapping[str, Any], checked: Checked, problems: Problems) -> dict[str, Tree]:
    """The valid overrides: dotted key → the key and its value as nested tables."""
    trees: dict[str, Tree] = {}
    for key, value in overrides.items():
        where, top, tree = f"--set {key}", key.partition(".")[0], None
        if top in _NOT_ON_COMMAND_LINE:
            problems.add(where, _NOT_ON_COMMAND_LINE[top])
        else:
            tree = None if _names_a_job(key, checked, where, problems) else check_one(key, value, where, problems)
        if tree is None:
            checked.broken.setdefault("--set", set()).add(top)
        else:
            trees[key] = tree
    return trees


def _names_a_job(key: str, checked: Checked, where: str, problems: Problems) -> bool:
    """Whether ``key`` begins with the name of a job; then its problem is in ``problems``."""
    top, _, of_job = key.partition(".")
    number = next((index for index, entry in enumerate(checked.entries) if _name(entry) == top), None)
    if number is None or not of_job or top in Settings.model_fields:
        return False
    advice = f"set {of_job} in the [[jobs]] table of that job, jobs[{number}]"
    problems.add(where, f"{quoted(top)} is a job, and --set is for all jobs (--set {of_job}=…); {advice}")
    return True


def _name(entry: Tree) -> str:
    return str(entry.get("name") or Path(str(entry.get("xml", ""))).stem)


def _without_effect(unused: Mapping[str, Tree], kept: Sequence[tuple[str, str, str]]) -> list[str]:
    """Warnings about overrides.

    :param unused: those that no job takes.
    :param kept: the key, the reason and the place where jobs keep their own value.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for key, reason, where in kept:
        places.setdefault((key, reason), []).append(where)
    partly = {key for key, _ in places}
    return [f"--set {key} has no effect: {why_unused(key)}" for key in unused if key not in partly] + [
        f"--set {key} has no effect on {listed(of_jobs, 5)}: {reason}" for (key, reason), of_jobs in places.items()
    ]


def _choices(matrix: Mapping[str, Any], where: str, problems: Problems) -> dict[str, list[Choice]]:
    """The valid values of every key of a matrix; an invalid key is left out."""
    others = check_family(Layer(matrix, f"{where}.matrix.{{}}".format), problems)
    return {
        key: choices
        for key, values in matrix.items()
        if key not in others and (choices := _choices_of(key, values, where, problems))
    }


def _choices_of(key: str, values: Any, where: str, problems: Problems) -> list[Choice]:
    there = f"{where}.matrix.{place(key)}"
    fault = _matrix_fault(key, values)
    if fault:
        problems.add(there, fault)
        return []
    if not _is_key(key):
        check_one(key, values[0], there, problems)
        return []
    choices: list[Choice] = []
    seen: set[str] = set()
    faults: dict[str, str] = {}  # message → its first place: a fault of the key is the same for all values
    for number, value in enumerate(values):
        own = Problems()
        tree = check_one(key, value, f"{there}[{number}]", own)
        if tree is None:
            for problem in own.in_order():
                faults.setdefault(problem.message, problem.where)
            continue
        plain = functools.reduce(lambda inner, part: inner[part], key.split("."), tree)
        if canonical(plain) in seen:
            problems.add(f"{there}[{number}]", "the same value is earlier in the list; each value makes its own jobs")
            continue
        seen.add(canonical(plain))
        choices.append(Choice(key, plain, tree, f"{there}[{number}]"))
    for message, first in faults.items():
        problems.add(first, message)
    return choices


def _is_key(dotted: str) -> bool:
    top, *rest = dotted.split(".")
    if top in FREE_TABLES:
        return bool(rest)
    if top in TABLES:
        return len(rest) == 1 and rest[0] in TABLES[top].model_fields
    return not rest and top in Settings.model_fields


def _matrix_fault(key: str, values: Any) -> str:
    """Why a matrix cannot hold this key; empty when it can, or when the key is unknown."""
    top, *rest = key.split(".")
    if key in _NOT_IN_MATRIX:
        return _NOT_IN_MATRIX[key]
    if key in (*TABLES, *FREE_TABLES):
        return f'a matrix takes single keys of a table, dotted and in quotes: "{_key_in(key, values)}" = […]'
    if top in Settings.model_fields and top not in FREE_TABLES and len(rest) > (top in TABLES):
        return f"there are no keys below {'.'.join([top, *rest[: top in TABLES]])}"
    if not isinstance(values, list) or not values:
        return "expected a list of values with at least one, for example [1e-4, 3e-4]"
    return ""


def _key_in(table: str, values: Any) -> str:
    """The dotted key that was probably meant where a matrix has a whole table."""
    if not isinstance(values, dict) or not values:
        return f"{table}.{next(iter(TABLES[table].model_fields if table in TABLES else ()), 'key')}"
    name, inner = next(iter(values.items()))
    dotted = f"{table}.{name}"
    while table == "model" and isinstance(inner, dict) and inner:
        name, inner = next(iter(inner.items()))
        dotted += f".{name}"
    return dotted


def _point_layer(point: Sequence[Choice]) -> Layer:
    values: Tree = {}
    for choice in point:
        values = _merge(values, choice.tree)
    places = {choice.key: choice.where for choice in point}
    return Layer(values, lambda key: places.get(key, key))


def _jobs(
    merged: Tree, point: Sequence[Choice], robot: Robot, *, where: str, base: Path, names: JobNames, problems: Problems
) -> list[Job]:
    """The jobs of one robot and matrix point, one per seed."""
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
        log_mib=table["log"],
        nice=table["nice"],
        min_free_disk_mib=table["min_free_disk"],
    )
    every = merged["checkpoint_every"]
    jobs = []
    for seed in merged["seeds"]:
        job_id, other = names.job_id(name, suffix, point_text, seed, where)
        if not job_id:
            whose = "this entry" if other == where else other
            message = (
                f"the name {quoted(name)} with seed {seed} is taken by {whose}; give each job its own name or seeds"
            )
            problems.add(where, message)
            break
        spec = WorkerSpec(
            job_id=job_id,
            name=name,
            seed=seed,
            xml=f"robot/{robot.xml.name}" if robot.xml else None,
            model_edits=flat(merged["model"]),
            task=task,
            task_options=merged["task_options"] if "task" in merged else {},
            env=env,
            entry_point=entry_point,
            env_kwargs={} if "task" in merged else merged["env_kwargs"],
            hyperparameters=merged[merged["algo"]],
            checkpoint_every=every if isinstance(every, int) else None,
            checkpoint_every_s=None if isinstance(every, int) else parse_duration(every),
            threads=resources.threads,
            cores=resources.cores,
            device="cuda" if resources.gpus else "cpu",
            ranks=resources.ranks,
            backend=merged["distributed"]["backend"],
            mode=merged["distributed"]["mode"],
            collective_timeout_s=merged["distributed"]["timeout"],
            init=None if merged["init"] == "none" else str(base / merged["init"]),
            search_path=str(base) if task is None or is_users_task(task) else None,
            **{name: merged[name] for name in _SAME_IN_SPEC},
        )
        jobs.append(
            Job(
                job_id=job_id,
                where=where,
                spec=spec,
                resources=resources,
                max_retries=merged["retry"]["max_retries"],
                xml_source=robot.xml,
                allow_outside=merged["allow_outside"],
                point=chosen,
            )
        )
    return jobs
