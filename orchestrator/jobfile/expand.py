"""Expands validated layers into jobs: one for every robot file, matrix point and seed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.core.front_end import option, override
from orchestrator.core.job import Job, Resources
from orchestrator.core.robot_sources import RobotFormat, robot_formats
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import INIT_JOB, WorkerSpec, is_algorithm_class
from orchestrator.jobfile.hyperparameters import ALGORITHMS
from orchestrator.jobfile.job_links import link_jobs
from orchestrator.jobfile.job_names import JobNames, NameTakenError, matrix_suffix
from orchestrator.jobfile.job_source import JobSource
from orchestrator.jobfile.job_table_rules import check_specs_of_features, parts_of, robot_settings
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
from orchestrator.jobfile.matrix import Choice, Tree, matrix_choices, merge, point_layer
from orchestrator.jobfile.merged_job import MergedJob
from orchestrator.jobfile.model_edit_keys import flat
from orchestrator.jobfile.presets import KEYS, PresetName, preset_values
from orchestrator.jobfile.robot_globs import Robot, Robots
from orchestrator.jobfile.toml_models import JOB_KEYS, Settings
from orchestrator.jobfile.validation import Checked, Layer, check_one
from orchestrator.keys.names import canonical
from orchestrator.keys.problems import Problems, quoted
from orchestrator.keys.value_types import is_users_task, parse_duration

MOST_JOBS = 100_000
"""Largest number of jobs of an experiment: a matrix that makes more is considered a mistake."""

SAME_IN_SPEC = (
    "algo",
    "learner",
    "total_timesteps",
    "n_envs",
    "normalize",
    "eval_episodes",
    "measure_training",
    "policy",
    "policy_kwargs",
    "on_divergence",
    "keep_replay_buffer",
    *JOB_KEYS,
)
"""Settings that are fields of :class:`WorkerSpec` with the same name and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySettings:
    """The settings of an entry, to which those of a point of its matrix, or of a job source, are
    added.
    """

    where: str
    builtin: Layer
    """The built-in defaults."""
    defaults: Layer
    """``[defaults]``."""
    entry: Layer
    given: Layer
    """What was given with ``--set``."""
    settled: Tree
    """The layers above the built-in defaults together."""
    with_preset: Callable[[PresetName | None, str], Tree]
    """The built-in defaults with the values of a preset."""
    bad: set[str]
    """Invalid keys."""
    formats: Collection[RobotFormat | None]
    """Those of its robots, None for MJCF; all where no robot was found."""

    def at(self, point: Sequence[Choice], problems: Problems) -> Tree:
        """The settings of the jobs of a point, which are checked together: what is wrong is added to
        ``problems``.
        """
        chosen = point_layer(point)
        own = overlay(self.settled, chosen.values)
        algo = own.get("algo", self.builtin.values["algo"])
        merged = overlay(self.with_preset(own.get("preset"), algo), own)
        job = MergedJob(
            settings=merged,
            where=self.where,
            defaults=self.defaults,
            entry=self.entry,
            given=self.given,
            point=chosen,
            invalid=self.bad,
            formats=self.formats,
            problems=problems,
        )
        check_together(job)
        return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTemplate:
    """The entry of which a job source makes jobs."""

    settings: EntrySettings
    robot: Robot
    base: Path

    def jobs(
        self,
        name: str,
        choices: Sequence[Choice],
        problems: Problems,
        *,
        point: Mapping[str, Any],
        seeds: Sequence[int] | None = None,
    ) -> tuple[Job, ...]:
        """Jobs with these settings, one for each seed; none if there are ``problems``.

        :param name: added to that of the entry.
        :param point: :attr:`Job.point` of the jobs.
        :param seeds: in place of those of the entry.
        """
        merged = {} if problems else self.settings.at(choices, problems)
        if problems:
            return ()
        merged = merged if seeds is None else {**merged, "seeds": seeds}
        if merged["resources"]["start"] == "auto":  # they come one by one, and more are to come
            merged["resources"] = {**merged["resources"], "start": "fork"}
        robot = replace(self.robot, name=f"{_name_of(self.robot, merged)}-{name}")
        jobs = _jobs(
            merged,
            (),
            robot,
            where=self.settings.where,
            base=self.base,
            names=JobNames(),
            problems=problems,
        )
        return tuple(replace(job, point=dict(point)) for job in jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """What the entries of a job file stand for."""

    jobs: Sequence[Job]
    """In the order of the file; where a job source makes them, its example."""
    template: JobTemplate | None
    """What a job source makes jobs of; None where there is none, and where there are problems."""
    warnings: Sequence[str]


def expand(
    checked: Checked,
    *,
    base: Path,
    overrides: Mapping[str, Any],
    skip_invalid: bool,
    problems: Problems,
    maker: JobSource | None = None,
) -> Expansion:
    """All jobs, or what they are made of, and warnings about settings; problems are added to
    ``problems``.

    :param maker: what makes the jobs; None: they are those that are declared.
    """
    # The worker passes on to Stable-Baselines3 only the hyperparameters that the user has set.
    unset: Tree = {name: {} for name in (*ALGORITHMS, "policy_kwargs")}
    builtin_values = Settings().model_dump(exclude={"env", "entry_point", *unset}) | unset
    shared_choices = matrix_choices(checked.defaults.pop("matrix", {}), "defaults", problems)
    trees = _override_trees(overrides, checked, problems)
    builtin = Layer(builtin_values, lambda key: key)
    defaults = Layer(checked.defaults, lambda key: f"defaults.{key}")
    given = Layer(functools.reduce(merge, trees.values(), {}), override)
    for layer in (builtin, defaults, given):
        check_family(layer, problems)

    @functools.cache
    def with_preset(preset: PresetName | None, algo: str) -> Tree:
        return overlay(builtin_values, preset_values(preset, algo))

    entries = _Entries(
        checked=checked,
        base=base,
        shared_choices=shared_choices,
        builtin=builtin,
        defaults=defaults,
        given=given,
        trees=trees,
        with_preset=with_preset,
        robots=Robots(base, skip_invalid=skip_invalid),
        maker=maker,
        problems=problems,
        unused=dict(trees),
    )
    for number, values in enumerate(checked.entries):
        entries.expand(number, values)
    return Expansion(
        jobs=link_jobs(entries.jobs, problems),
        template=entries.template,
        warnings=[*_without_effect(entries.unused, entries.kept), *few_iterations(entries.jobs)],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptValue:
    """A key of ``--set`` of which the jobs of an entry keep their own value."""

    key: str
    reason: str
    where: str
    """The entry."""


@dataclass(slots=True, kw_only=True)
class _Entries:
    """Expands the entries of a job file, one after another."""

    checked: Checked
    base: Path
    shared_choices: Mapping[str, Sequence[Choice]]
    """The matrix of ``[defaults]``."""
    builtin: Layer
    """The built-in defaults."""
    defaults: Layer
    """``[defaults]``."""
    given: Layer
    """What was given with ``--set``."""
    trees: Mapping[str, Tree]
    """The same: dotted key → the key and its value as nested tables."""
    with_preset: Callable[[PresetName | None, str], Tree]
    """The built-in defaults with the values of a preset."""
    robots: Robots
    maker: JobSource | None
    problems: Problems
    names: JobNames = field(default_factory=JobNames)
    jobs: list[Job] = field(default_factory=list)
    template: JobTemplate | None = None
    unused: dict[str, Tree]
    """Those of :attr:`trees` that no job has taken so far."""
    kept: list[_KeptValue] = field(default_factory=list)

    def expand(self, number: int, values: Tree) -> None:
        """Add the jobs of the entry with this number. Where it is invalid, so that they cannot be
        known, only its problems are added.
        """
        bad = self._invalid_keys(number)
        if "*" in bad:
            return
        where = f"jobs[{number}]"
        choices = self._choices(values, where)
        entry = Layer(values, lambda key: f"{where}.{key}")
        check_family(entry, self.problems)
        algos = {choice.value for choice in choices.get("algo", ())}
        if self.maker is not None:
            self.maker.check_entry(values, choices, where, self.problems)
            choices = {choice.key: [choice] for choice in self.maker.example(self.problems)}
            algos = {*self.maker.values_of("algo")}
        settled = self._settled_values(values, choices, where)
        files = self.robots.find(values.get("xml"), values.get("name"), number, self.problems)
        if self._are_too_many(choices, settled, files, where):
            return
        if "algo" not in bad:
            check_tables(entry, algos or {self._value("algo", settled)}, self.problems)
        settings = EntrySettings(
            where=where,
            builtin=self.builtin,
            defaults=self.defaults,
            entry=entry,
            given=self.given,
            settled=settled,
            with_preset=self.with_preset,
            bad=bad,
            formats={robot.format for robot in files} or {None, *robot_formats()},
        )
        points = [*itertools.product(*choices.values())]
        variants = [(settings.at(point, self.problems), point) for point in points]
        for merged, _ in variants:
            self._note_taken(merged, settings)
        if bad & {"name", "xml", "seeds", "matrix", *FAMILY}:
            return  # names made of invalid values might only seem to collide
        for robot in files:
            for merged, point in variants:
                self._add_jobs(settings, robot, merged, point)

    def _invalid_keys(self, number: int) -> set[str]:
        """Of an entry, also those that it would have from ``[defaults]`` or ``--set``; ``"*"``: all
        of them.
        """
        broken = self.checked.broken
        bad = {
            *broken.get("defaults", set()),
            *broken.get("--set", set()),
            *broken.get(number, set()),
        }
        if "preset" in bad:
            bad |= KEYS  # the values that it would have set are not known
        return bad

    def _choices(self, values: Tree, where: str) -> Mapping[str, Sequence[Choice]]:
        """The matrix of an entry, which is taken out of its values. An empty one undoes that of
        ``[defaults]``.
        """
        matrix = values.pop("matrix", None)
        if matrix == {}:
            return {}
        return {**self.shared_choices, **matrix_choices(matrix or {}, where, self.problems)}

    def _settled_values(
        self, values: Tree, choices: Mapping[str, Sequence[Choice]], where: str
    ) -> Tree:
        """The layers above the built-in defaults together."""
        given = self.given.values
        taken = {key: value for key, value in given.items() if not why_kept(key, values, ())}
        for key in self.trees:
            if reason := why_kept(key, values, choices):
                self.kept.append(_KeptValue(key=key, reason=reason, where=where))
        return overlay(overlay(self.checked.defaults, values), taken)

    def _value(self, key: str, settled: Tree) -> Any:
        return settled.get(key, self.builtin.values[key])

    def _are_too_many(
        self,
        choices: Mapping[str, Sequence[Choice]],
        settled: Tree,
        files: Sequence[Robot],
        where: str,
    ) -> bool:
        points = math.prod(map(len, choices.values()))
        count = points * len(self._value("seeds", settled)) * max(1, len(files))
        if len(self.jobs) + count <= MOST_JOBS:
            return False
        made = f"files, matrix and seeds make {count:_} jobs here"
        self.problems.add(where, f"{made}; an experiment can have at most {MOST_JOBS:_}")
        return True

    def _note_taken(self, merged: Tree, settings: EntrySettings) -> None:
        """Take out of :attr:`unused` what jobs with the settings ``merged`` take."""
        self.unused = {
            key: tree
            for key, tree in self.unused.items()
            if not takes_part(tree, merged, settings.formats)
        }

    def _add_jobs(
        self, settings: EntrySettings, robot: Robot, merged: Tree, point: Sequence[Choice]
    ) -> None:
        self.jobs += _jobs(
            merged,
            point,
            robot,
            where=settings.where,
            base=self.base,
            names=self.names,
            problems=self.problems,
        )
        if self.maker is not None:
            self.maker.check_settings(merged, self.problems)
            self.template = JobTemplate(settings=settings, robot=robot, base=self.base)


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """``below`` overridden by ``above``: tables key by key, other values as a whole."""
    if any(key in above for key in FAMILY):
        below = {key: value for key, value in below.items() if key not in FAMILY}
    return merge(below, above)


def _override_trees(
    overrides: Mapping[str, Any], checked: Checked, problems: Problems
) -> dict[str, Tree]:
    """The valid overrides: dotted key → the key and its value as nested tables."""
    trees: dict[str, Tree] = {}
    for key, value in overrides.items():
        where = override(key)
        top = key.partition(".")[0]
        tree = None
        if top in ("matrix", "max_parallel"):
            problems.add(where, _why_no_override(top))
        elif (number := _number_of_job(key, checked)) is not None:
            of_job = key.partition(".")[2]
            advice = f"set {of_job} in the [[jobs]] table of that job, jobs[{number}]"
            for_all = f"{option('overrides')} is for all jobs ({override(of_job)}=…)"
            problems.add(where, f"{quoted(top)} is a job, and {for_all}; {advice}")
        else:
            tree = check_one(key, value, where, problems)
        if tree is None:
            checked.broken.setdefault("--set", set()).add(top)
        else:
            trees[key] = tree
    return trees


def _why_no_override(key: str) -> str:
    if key == "matrix":
        return "cannot be set on the command line; write the matrix in the job file"
    return f"is not a default of jobs; use {option('max_parallel')}"


def _number_of_job(key: str, checked: Checked) -> int | None:
    """The number of the entry with whose name ``key`` begins; None where it is no such key."""
    top, _, of_job = key.partition(".")
    if not of_job or top in Settings.model_fields:
        return None
    for number, entry in enumerate(checked.entries):
        name = entry.get("name") or Path(str(entry.get("xml", ""))).stem
        if name == top:
            return number
    return None


def _without_effect(unused: Mapping[str, Tree], kept: Sequence[_KeptValue]) -> list[str]:
    """Warnings about overrides. :param unused: those that no job takes."""
    overridden: dict[tuple[str, str], list[str]] = {}
    for one in kept:
        overridden.setdefault((one.key, one.reason), []).append(one.where)
    partly = {key for key, _ in overridden}
    warnings = [
        f"{override(key)} has no effect: {why_unused(key)}" for key in unused if key not in partly
    ]
    for (key, reason), of_jobs in overridden.items():
        warnings.append(f"{override(key)} has no effect on {listed(of_jobs, 5)}: {reason}")
    return warnings


def _name_of(robot: Robot, merged: Tree) -> str:
    """The name of a job: of its robot where that has one, otherwise of what makes its environment."""
    if robot.name:
        return robot.name
    if "env" in merged:
        return str(merged["env"])
    return str(merged.get("entry_point") or merged.get("task")).rpartition(":")[2]


def _init(written: str, base: Path) -> str | None:
    """As in :class:`WorkerSpec`, but for a name of jobs in place of an id."""
    if written == "none":
        return None
    if written.startswith(INIT_JOB):
        return f"{INIT_JOB}{written.removeprefix(INIT_JOB).strip()}"
    return str(base / written)


def _jobs(
    merged: Tree,
    point: Sequence[Choice],
    robot: Robot,
    *,
    where: str,
    base: Path,
    names: JobNames,
    problems: Problems,
) -> list[Job]:
    """The jobs of one robot and matrix point, one per seed."""
    name = _name_of(robot, merged)
    chosen = {choice.key: choice.value for choice in point}
    suffix = matrix_suffix(chosen)
    point_text = canonical(chosen)
    resources = _resources(merged["resources"])
    jobs = []
    for seed in merged["seeds"]:
        try:
            job_id = names.take(name, suffix, point_text, seed, where)
        except NameTakenError as error:
            whose = "this entry" if error.where == where else error.where
            message = (
                f"the name {quoted(name)} with seed {seed} is taken by {whose}; "
                "give each job its own name or seeds"
            )
            problems.add(where, message)
            break
        parts = parts_of(merged, robot.format)
        spec = _worker_spec(
            merged, robot, resources, job_id=job_id, name=name, seed=seed, base=base, parts=parts
        )
        check_specs_of_features(spec, where, problems)
        jobs.append(
            Job(
                job_id=job_id,
                where=where,
                spec=spec,
                resources=resources,
                max_retries=merged["retry"]["max_retries"],
                xml_source=robot.xml,
                allow_outside=merged["allow_outside"],
                folder=base,
                robot_settings=robot_settings(merged, robot.format, base),
                point=chosen,
            )
        )
    return jobs


def _resources(table: Tree) -> Resources:
    return Resources(
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
        start=table["start"],
        move=table["move"],
    )


def _worker_spec(
    merged: Tree,
    robot: Robot,
    resources: Resources,
    *,
    job_id: str,
    name: str,
    seed: int,
    base: Path,
    parts: Mapping[str, Any],
) -> WorkerSpec:
    has_task = "task" in merged
    algo = merged["algo"]
    is_class = is_algorithm_class(algo)
    task = merged.get("task")
    every = merged["checkpoint_every"]
    is_in_steps = isinstance(every, int)
    return WorkerSpec(
        job_id=job_id,
        name=name,
        seed=seed,
        xml=f"robot/{robot.xml.name}" if robot.xml else None,
        robot_maker=robot.maker,
        params=merged["params"] if robot.maker else {},
        model_edits=flat(merged["model"]),
        randomize=flat(merged["randomize"]) if has_task else {},
        asymmetric=merged["asymmetric"] if has_task else False,
        evaluate=flat(merged["evaluate"]) if has_task else {},
        parts=parts,
        task=task,
        task_options=merged["task_options"] if has_task else {},
        env=merged.get("env"),
        entry_point=merged.get("entry_point"),
        env_kwargs={} if has_task else merged["env_kwargs"],
        hyperparameters=merged["algo_kwargs" if is_class else algo],
        checkpoint_every=every if is_in_steps else None,
        checkpoint_every_s=None if is_in_steps else parse_duration(every),
        threads=resources.threads,
        cores=resources.cores,
        device="cuda" if resources.gpus else "cpu",
        ranks=resources.ranks,
        backend=merged["distributed"]["backend"],
        mode=merged["distributed"]["mode"],
        collective_timeout_s=merged["distributed"]["timeout"],
        init=_init(merged["init"], base),
        after=tuple(merged.get("after", ())),
        search_path=str(base) if task is None or is_users_task(task) or is_class else None,
        **{key: merged[key] for key in SAME_IN_SPEC},
    )
