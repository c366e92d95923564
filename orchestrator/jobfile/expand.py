"""Expands validated layers into jobs: one for every robot file, matrix point and seed.

A job's settings are layers, each of which overrides the one before, tables key by key: the built-in
defaults, the preset, ``[defaults]``, the job's own table, ``--set``, and one point of its matrix.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core.decoding import Table
from orchestrator.core.front_end import override
from orchestrator.core.job import Job, Resources
from orchestrator.core.worker_spec import INIT_JOB, WorkerSpec, is_algorithm_class
from orchestrator.jobfile.hyperparameters import ALGORITHMS
from orchestrator.jobfile.job_links import link_jobs
from orchestrator.jobfile.job_names import matrix_suffix, with_seed
from orchestrator.jobfile.job_source import JobSource
from orchestrator.jobfile.job_table_rules import parts_of, robot_settings
from orchestrator.jobfile.joint_rules import FAMILY, check_family, check_together
from orchestrator.jobfile.matrix import Choice, Tree, matrix_choices, merge, point_layer
from orchestrator.jobfile.merged_job import EntryLayers, MergedJob
from orchestrator.jobfile.model_edit_keys import flat
from orchestrator.jobfile.presets import PresetName, preset_values
from orchestrator.jobfile.robot_globs import Robot, find_robots
from orchestrator.jobfile.toml_models import Settings
from orchestrator.jobfile.validation import Checked, Layer, check_one
from orchestrator.keys.names import safe_name
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import is_users_task

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
    "preview",
    "video",
)
"""Settings that are fields of :class:`WorkerSpec` with the same name and value."""


_WITHOUT_TASK: Tree = {"randomize": {}, "asymmetric": False, "evaluate": {}, "task_options": {}}


@functools.cache
def builtin_settings(preset: PresetName | None, algo: str) -> Tree:
    """Return the built-in defaults with the values of a preset."""
    # The worker passes on to Stable-Baselines3 only the hyperparameters that the user has set.
    unset: Tree = {name: {} for name in (*ALGORITHMS, "policy_kwargs")}
    defaults = Settings().model_dump(exclude={"env", "entry_point", *unset}) | unset
    return overlay(defaults, preset_values(preset, algo))


def overlay(below: Table, above: Table) -> Tree:
    """Return ``below`` overridden by ``above``: tables key by key, other values as a whole."""
    if any(key in above for key in FAMILY):
        below = {key: value for key, value in below.items() if key not in FAMILY}
    return merge(below, above)


def merged_settings(layers: EntryLayers, point: Sequence[Choice], problems: Problems) -> Tree:
    """Return the settings of the jobs of a point, and check them together: what is wrong is added to
    ``problems``.
    """
    chosen = point_layer(point)
    own = overlay(layers.settled, chosen.values)
    algo = own.get("algo", builtin_settings(None, "ppo")["algo"])
    merged = overlay(builtin_settings(own.get("preset"), algo), own)
    check_together(MergedJob(settings=merged, layers=layers, point=chosen, problems=problems))
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTemplate:
    """The entry of which a job source makes jobs."""

    layers: EntryLayers
    robot: Robot
    base: Path

    def jobs(
        self,
        name: str,
        choices: Sequence[Choice],
        problems: Problems,
        *,
        point: Table,
        seeds: Sequence[int] | None = None,
    ) -> tuple[Job, ...]:
        """Return jobs with these settings, one for each seed; none if there are ``problems``.

        :param name: added to that of the entry.
        :param point: :attr:`Job.point` of the jobs.
        :param seeds: in place of those of the entry.
        """
        merged = {} if problems else merged_settings(self.layers, choices, problems)
        if problems:
            return ()
        if seeds is not None:
            merged["seeds"] = seeds
        if merged["resources"]["start"] == "auto":  # they come one by one, and more are to come
            merged["resources"] = {**merged["resources"], "start": "fork"}
        robot = replace(self.robot, name=f"{_name_of(self.robot, merged)}-{name}")
        jobs = _jobs(merged, {}, robot, self.layers.where, self.base, {}, problems)
        return tuple(replace(job, point=dict(point)) for job in jobs)


class Expansion:
    """What the entries of a job file stand for. Problems are added to ``problems``.

    :param maker: what makes the jobs; None: they are those that are declared.
    """

    def __init__(
        self,
        checked: Checked,
        *,
        base: Path,
        overrides: Table,
        skip_invalid: bool,
        problems: Problems,
        maker: JobSource | None = None,
    ) -> None:
        self.jobs: list[Job] = []
        """In the order of the file; where a job source makes them, its example."""
        self.template: JobTemplate | None = None
        """What a job source makes jobs of; None where there is none, and where there are problems."""
        self._broken = checked.broken
        self._base = base
        self._problems = problems
        self._maker = maker
        self._skip_invalid = skip_invalid
        self._places: dict[str, str] = {}
        """job_id → place of the entry that makes it."""
        matrix = checked.defaults.pop("matrix", {})
        self._shared_choices = matrix_choices(matrix, "defaults", problems)
        self._shared = Layer(checked.defaults, "defaults.{}".format)
        self._given = _given_settings(overrides, checked, problems)
        check_family(self._shared, problems)
        check_family(self._given, problems)
        for number, values in enumerate(checked.entries):
            self._expand(number, values)
        self.jobs = link_jobs(self.jobs, problems)

    def _expand(self, number: int, values: Tree) -> None:
        """Add the jobs of the entry with this number; only its problems if keys are invalid that it
        has or that all jobs have.
        """
        where = f"jobs[{number}]"
        problems = self._problems
        matrix = values.pop("matrix", None)
        choices = {**self._shared_choices, **matrix_choices(matrix or {}, where, problems)}
        if matrix == {}:  # undoes that of [defaults]
            choices = {}
        entry = Layer(values, f"{where}.{{}}".format)
        check_family(entry, problems)
        robots = find_robots(
            values.get("xml"),
            values.get("name"),
            f"{where}.xml",
            problems,
            base=self._base,
            skip_invalid=self._skip_invalid,
        )
        if self._maker is not None:
            self._maker.check_entry(values, choices, where, problems)
            choices = {choice.key: [choice] for choice in self._maker.example(problems)}
        settled = overlay(overlay(self._shared.values, values), self._given.values)
        seeds = len(settled.get("seeds", [0]))
        count = math.prod(map(len, choices.values())) * seeds * max(1, len(robots))
        if len(self.jobs) + count > MOST_JOBS:
            text = f"files, matrix and seeds make {count:_} jobs; an experiment has at most {MOST_JOBS:_}"
            problems.add(where, text)
            return
        broken = [self._broken.get(layer, set()) for layer in ("defaults", "--set", number)]
        layers = EntryLayers(
            where=where,
            shared=self._shared,
            entry=entry,
            given=self._given,
            settled=settled,
            invalid=set[str]().union(*broken),
        )
        points = [*itertools.product(*choices.values())]
        variants = [(merged_settings(layers, point, problems), point) for point in points]
        if layers.invalid:
            return
        for robot, (merged, point) in itertools.product(robots, variants):
            chosen = {choice.key: choice.value for choice in point}
            self.jobs += _jobs(merged, chosen, robot, where, self._base, self._places, problems)
            if self._maker is not None:
                self._maker.check_settings(merged, problems)
                self.template = JobTemplate(layers=layers, robot=robot, base=self._base)


def _given_settings(overrides: Table, checked: Checked, problems: Problems) -> Layer:
    """Return the valid settings of ``--set``."""
    values: Tree = {}
    for key, value in overrides.items():
        top = key.partition(".")[0]
        if top == "matrix":
            problems.add(override(key), "cannot be set here; write it in the job file")
        elif (tree := check_one(key, value, override(key), problems)) is not None:
            values = merge(values, tree)
        else:
            checked.broken.setdefault("--set", set()).add(top)
    return Layer(values, override)


def _name_of(robot: Robot, merged: Tree) -> str:
    """Return the name of a job: of its robot where that has one, otherwise of what makes its
    environment.
    """
    if robot.name:
        return robot.name
    if "env" in merged:
        return str(merged["env"])
    return str(merged.get("entry_point") or merged.get("task")).rpartition(":")[2]


def _jobs(
    merged: Tree,
    point: Tree,
    robot: Robot,
    where: str,
    base: Path,
    places: dict[str, str],
    problems: Problems,
) -> list[Job]:
    """Return the jobs of one robot and matrix point, one per seed.

    :param places: of the jobs so far, by job_id; these are added.
    """
    name = _name_of(robot, merged)
    stem = safe_name(name) + matrix_suffix(point)
    resources = _resources(merged["resources"])
    spec = _worker_spec(merged, robot, resources, name=name, base=base)
    settings = robot_settings(merged, robot.format, base)
    jobs = []
    for seed in merged["seeds"]:
        job_id = with_seed(stem, seed)
        if job_id in places:
            text = f"{places[job_id]} makes a job {job_id}, too; give each job a name of its own"
            problems.add(where, text)
            break
        places[job_id] = where
        job = Job(
            job_id=job_id,
            where=where,
            spec=replace(spec, job_id=job_id, seed=seed),
            resources=resources,
            max_retries=merged["retry"]["max_retries"],
            xml_source=robot.xml,
            allow_outside=merged["allow_outside"],
            folder=base,
            robot_settings=settings,
            point=point,
        )
        jobs.append(job)
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
    merged: Tree, robot: Robot, resources: Resources, *, name: str, base: Path
) -> WorkerSpec:
    """Return the spec of the jobs of one robot and matrix point, without job id and seed."""
    has_task = "task" in merged
    of_task = merged if has_task else _WITHOUT_TASK
    algo = merged["algo"]
    is_class = is_algorithm_class(algo)
    task = merged.get("task")
    every = merged["checkpoint_every"]
    is_in_steps = isinstance(every, int)
    return WorkerSpec(
        job_id="",
        name=name,
        seed=0,
        xml=f"robot/{robot.xml.name}" if robot.xml else None,
        robot_maker=robot.maker,
        params=merged["params"] if robot.maker else {},
        model_edits=flat(merged["model"]),
        randomize=flat(of_task["randomize"]),
        asymmetric=of_task["asymmetric"],
        evaluate=flat(of_task["evaluate"]),
        parts=parts_of(merged, robot.format),
        task=task,
        task_options=of_task["task_options"],
        env=merged.get("env"),
        entry_point=merged.get("entry_point"),
        env_kwargs={} if has_task else merged["env_kwargs"],
        hyperparameters=merged["algo_kwargs" if is_class else algo],
        checkpoint_every=every if is_in_steps else None,
        checkpoint_every_s=None if is_in_steps else every,
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


def _init(written: str, base: Path) -> str | None:
    """As in :class:`WorkerSpec`, but for a name of jobs in place of an id."""
    if written == "none":
        return None
    if written.startswith(INIT_JOB):
        return f"{INIT_JOB}{written.removeprefix(INIT_JOB).strip()}"
    return str(base / written)
