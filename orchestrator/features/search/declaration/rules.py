"""What ``[search]`` and ``[scheduler]`` declare: checked by themselves, and together with the job
whose keys vary.
"""

from __future__ import annotations

import glob
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.core.job import Job
from orchestrator.core.measure_expressions import ExpressionError, parse_expression
from orchestrator.core.task_names import AUTO, EFFORT, GYMNASIUM_TASKS, MEASURES, TASKS
from orchestrator.core.text import count, is_installed, joined
from orchestrator.features.search.auto_sampler import AUTO as AUTO_SAMPLER
from orchestrator.features.search.declaration.constraints import read_constraints
from orchestrator.features.search.declaration.initial_points import read_initial
from orchestrator.features.search.declaration.spec import (
    ARCHIVE_SAMPLERS,
    EXTRAS,
    INSTALL,
    NETWORK_KEYS,
    RETURN,
    RETURNS,
    SAMPLER_OPTIONS,
    SAMPLERS,
    WITHOUT_CHOICES,
    ArchiveAxis,
    Dimension,
    RaceSpec,
    ReevaluationSpec,
    SchedulerSpec,
    SearchSpec,
    identity,
    learns,
)
from orchestrator.jobfile.expand import JobTemplate
from orchestrator.jobfile.joint_rules import FAMILY, check_family
from orchestrator.jobfile.matrix import Choice, is_key, matrix_fault
from orchestrator.jobfile.toml_models import FREE_TABLES
from orchestrator.jobfile.validation import Layer, check_one
from orchestrator.keys.problems import Problems, place, quoted, suggestion
from orchestrator.keys.value_types import MOST

NSGA2_POPULATION = 50
"""Optuna's, where the job file gives no ``population_size``."""
SMALL_POPULATION = 6
"""A smaller one that is advised is the trials divided by this."""
COLUMNS = (
    "eval_mean",
    "ep_rew_mean",
    "ep_rew_mean_first",
    "env_steps",
    "env_steps_per_s",
    "attempts",
    "divergences",
    "queue_s",
    "wall_s",
    "cpu_s",
    "import_s",
    "first_step_s",
    "checkpoint_s",
    "eval_s",
    "max_rss_mib",
)
"""Columns of ``summary.csv`` that can be in objectives and measures."""
_OF_EVALUATION = ("eval_mean", "eval_s")
_SAME_IN_SPEC = ("sampler_options", "seed", "aggregate", "trials", "max_env_steps", "order")
"""Keys that are fields of :class:`SearchSpec` with the same name and value."""
_NOT_IN_SPACE = {
    "name": "cannot vary: the jobs of a trial are named by the job and the number of the trial",
    "xml": 'cannot vary; a function can make the robots: xml = "module:function", with params.NAME in the space',
    "seeds": "every trial has a job for each seed; set seeds = [0, 1] on the job",
    "matrix": "a search has no matrix; its space takes the keys themselves",
}


def read_search(table: Mapping[str, Any], problems: Problems) -> SearchSpec:
    """The search that ``[search]`` declares; what is invalid is left out, and a problem.

    :param table: the keys that the user has written, each valid by itself.
    """
    objectives = _as_tuple(table.get("objective", "eval_mean"))
    directions = _as_tuple(table.get("direction", "maximize"))
    if len(directions) not in (1, len(objectives)):
        numbers = f"there are {len(directions)} directions for {len(objectives)} objectives"
        problems.add("search.direction", f"{numbers}; expected one, or one for each")
    repeated = [name for name, times in Counter(objectives).items() if times > 1]
    for name in repeated:
        problems.add("search.objective", f"{quoted(name)} is there twice")
    dimensions = [_dimension(key, content, problems) for key, content in table["space"].items()]
    check_family(Layer(table["space"], "search.space.{}".format), problems)
    space = tuple(dimension for dimension in dimensions if dimension is not None)
    declared = table.get("initial", [])
    reevaluation = dict(table.get("reevaluate", {}))
    is_space_known = len(space) == len(dimensions)
    race = table.get("race")
    search = SearchSpec(
        space=space,
        constraints=read_constraints(table.get("constraints", {}), problems),
        initial=read_initial(declared, space, problems) if is_space_known else (),
        sampler=table.get("sampler", "tpe"),
        objectives=objectives,
        directions=directions * len(objectives) if len(directions) == 1 else directions,
        measures=tuple(
            _measure(name, content, problems) for name, content in table.get("measures", {}).items()
        ),
        max_time_s=table.get("max_time"),
        start=table.get("start", "nothing"),
        reevaluate=min(reevaluation.pop("n", 0), table.get("trials", MOST)),
        reevaluation=ReevaluationSpec(**reevaluation),
        race=None if race is None else RaceSpec(**race),
        **{key: table[key] for key in _SAME_IN_SPEC if key in table},
    )
    if not dimensions:
        problems.add(
            "search.space",
            'nothing varies; add for example "ppo.learning_rate" = { low = 1e-4, high = 3e-3 }',
        )
    _check_end(search, problems)
    _check_sampler(search, problems)
    if search.start == "reference":
        _check_networks(search, problems)
    if search.race is not None:
        _check_race(search, problems)
    return search


def _check_end(search: SearchSpec, problems: Problems) -> None:
    """Check that the search ends: at the same trial where its order is fixed, and not before its
    initial points are tried.
    """
    if search.trials is search.max_env_steps is search.max_time_s is None:
        problems.add(
            "search",
            "it would never end; set trials, max_env_steps or max_time, for example trials = 200",
        )
    if search.order == "fixed" and (
        search.max_env_steps is not None or search.max_time_s is not None
    ):
        what = "max_env_steps and max_time end a search after a number of trials that depends on the machine's speed"
        problems.add("search.order", f'{what}; with order = "fixed", set trials alone')
    if search.trials is not None and len(search.initial) > search.trials:
        points = f"has {len(search.initial)} points, and the search trials = {search.trials}"
        problems.add("search.initial", f"{points}; leave some out, or raise trials")


def _check_race(search: SearchSpec, problems: Problems) -> None:
    """Check that values of trials with unequal numbers of seeds can be compared."""
    where = "search.race"
    if len(search.objectives) > 1:
        text = "several objectives have no best trial to race for; set one objective"
        problems.add(where, f"{text}, or leave race out")
    is_users_class = search.sampler not in (*SAMPLERS, AUTO_SAMPLER)
    # Measures of any other sampler are a problem by themselves.
    if search.sampler in ARCHIVE_SAMPLERS or (is_users_class and search.measures):
        text = "an archive has a best trial in every cell, and a race is for one best of all"
        problems.add(where, f"{text}; leave race out, or use another sampler than {search.sampler}")
    if search.has_lineages:
        what = f'with start = "{search.start}" trials begin with policies of others, and their values are not compared'
        problems.add(where, f'{what}; set start = "reference" or "nothing", or leave race out')
    if search.aggregate == "min":
        what = 'with aggregate = "min" a trial is the worse the more seeds it has'
        problems.add(where, f'{what}; set aggregate = "median" or "mean", or leave race out')


def check_seeds_of_race(search: SearchSpec, seeds: int, problems: Problems) -> None:
    """Check that the race allows more seeds than every trial has.

    :param seeds: those of the job.
    """
    if search.race is not None and search.race.seeds <= seeds:
        what = f"a trial has at most {search.race.seeds} seeds, and the job has {seeds} already"
        problems.add(
            "search.race.seeds", f"{what}; expected more than {seeds}, or one seed for the job"
        )


def _check_networks(search: SearchSpec, problems: Problems) -> None:
    """Check that one policy can be the start of all trials."""
    for dimension in search.space:
        if dimension.key.partition(".")[0] in NETWORK_KEYS:
            what = 'varies the network, and with start = "reference" all begin with one policy'
            problems.add(f"search.space.{place(dimension.key)}", f"{what}; leave it out")


def lineage_warning(search: SearchSpec | None, scheduler: SchedulerSpec | None) -> str:
    """That rungs compare what has not begun alike; empty where they do not."""
    if search is None or not search.has_lineages or scheduler is None:
        return ""
    return (
        f'search.start = "{search.start}" with a scheduler: rungs compare bodies whose policies come from lineages of'
        ' unequal length, and not the bodies; with start = "reference" all begin with the same policy'
    )


def untold_warning(search: SearchSpec | None, scheduler: SchedulerSpec | None, where: str) -> str:
    """That the sampler is never told of trials that stay at a rung; empty where it is told, or does
    not learn. With several objectives, or an archive, no rung has what it would be told.

    :param where: the place of the scheduler.
    """
    if search is None or scheduler is None or not learns(search.sampler):
        return ""
    is_single = len(search.objectives) == 1 and not search.measures
    if not is_single or scheduler.stands_for_end(search):
        return ""
    objective = search.objectives[0]
    if objective in RETURNS:
        advice = "leave by out there"
    elif _known_at_end(objective):
        advice = f"no rung has {quoted(objective)}; set an objective of measures alone, or leave [{where}] out"
    else:
        advice = f"set by = {quoted(objective)} there"
    return (
        f"{where}.by = {quoted(scheduler.by)} is not the objective, so that the sampler learns nothing from trials that"
        f" stay at a rung; {advice}"
    )


def population_warning(search: SearchSpec | None) -> str:
    """That the budget ends before nsga2 has made two populations; empty where it does not, or that
    is not known.
    """
    if search is None or search.sampler != "nsga2" or search.trials is None:
        return ""
    population = search.sampler_options.get("population_size", NSGA2_POPULATION)
    if search.trials >= 2 * population:
        return ""
    few = search.trials // SMALL_POPULATION
    advice = "raise trials"
    if few > 1:
        advice += f', or set sampler = "nsga2" and sampler_options = {{ population_size = {few} }}'
    return (
        f"search.sampler: nsga2 proposes random points until {population} trials have come to their end, and there are"
        f" {count(search.trials, 'trial')}; {advice}"
    )


def read_scheduler(top: Mapping[str, Any], problems: Problems) -> SchedulerSpec | None:
    """The scheduler of the jobs, or of the trials of a search; None where all go on to their
    end.
    """
    table = top.get("scheduler")
    where = "scheduler"
    in_search = (top.get("search") or {}).get("scheduler")
    if in_search is not None:
        if table is not None:
            problems.add(
                where, "is there twice; keep [search.scheduler], which is that of the trials"
            )
        table = in_search
        where = "search.scheduler"
    if table is None or table.get("kind") == "none":
        return None
    if table.get("min_env_steps") is None:
        problems.add(f"{where}.min_env_steps", "missing; add for example min_env_steps = 50_000")
        return None
    try:
        parse_expression(table.get("by", RETURN))
    except ExpressionError as error:
        problems.add(f"{where}.by", f"{quoted(table['by'])} {error}")
        return None
    return SchedulerSpec(**{"kind": "asha", **table})


def space_point(
    space: Sequence[Dimension], point: Mapping[str, Any], problems: Problems
) -> tuple[Choice, ...]:
    """The values of ``point`` as settings of a job; what is no value of its dimension is a
    problem.
    """
    choices = []
    for dimension in space:
        there = f"search.space.{place(dimension.key)}"
        try:
            dimension.unit(point[dimension.key])
        except (KeyError, TypeError):
            problems.add(there, "the point has no value for it")
        except ValueError as error:
            problems.add(there, f"{error}, and the point has {point[dimension.key]!r:.60}")
        else:
            value = dimension.job_value(point[dimension.key])
            tree = check_one(dimension.key, value, there, problems)
            choices.append(Choice(dimension.key, value, tree or {}, there))
    return tuple(choices)


def check_searched(
    entry: Mapping[str, Any], choices: Mapping[str, Any], where: str, problems: Problems
) -> None:
    """Check that an entry is one training for each point and seed.

    :param choices: the keys of its matrix.
    """
    if choices:
        advice = "its keys belong in search.space, each with choices; matrix = {} in the job undoes [defaults.matrix]"
        problems.add(f"{where}.matrix", f"a search has no matrix: {advice}")
    if glob.has_magic(entry.get("xml", "")):
        advice = (
            'name one file; for several bodies, xml = "module:function" with params in search.space'
        )
        problems.add(
            f"{where}.xml", f"a search varies one robot, and a pattern may match several: {advice}"
        )


def check_in_job(search: SearchSpec, merged: Mapping[str, Any], problems: Problems) -> None:
    """Check what ``search`` reads of the results of a job with these settings."""
    task = merged.get("task")
    known = None
    if not {dimension.key for dimension in search.space} & {*FAMILY} and (
        task in {AUTO, *TASKS, *GYMNASIUM_TASKS}
    ):
        known = [*COLUMNS, *_measures_of(task)]
    if search.constraints and task is None and merged.get("xml") is None:
        what = "are measured on a robot, and the job has an environment without one (xml)"
        problems.add("search.constraints", f"{what}; leave them out")
    written = [("search.objective", text) for text in search.objectives]
    written += [
        (f"search.measures.{place(measure.name)}", measure.name) for measure in search.measures
    ]
    for where, text in written:
        for name in _names_in(text, known, where, problems):
            if known is not None and name not in known:
                problems.add(where, _unknown_measure(name, text, task, known))
            elif merged["eval_episodes"] == 0 and (name in _OF_EVALUATION or name not in COLUMNS):
                problems.add(
                    where,
                    f"{quoted(name)} is known from an evaluation, and eval_episodes is 0; set it to 10",
                )


def _names_in(
    text: str, known: Collection[str] | None, where: str, problems: Problems
) -> Sequence[str]:
    """The columns and measures that an objective is computed from; none where it is no
    expression.
    """
    if known is not None and text in known:
        return (text,)
    try:
        return parse_expression(text).names
    except ExpressionError as error:
        problems.add(where, f"{quoted(text)} {error}")
        return ()


def _unknown_measure(name: str, text: str, task: Any, known: Sequence[str]) -> str:
    """What is wrong with a name in the objective ``text``.

    :param known: the columns and measures that there are.
    """
    in_text = "" if name == text else f" in {quoted(text)}"
    if name in EFFORT:
        what = f'has no value in the task "{task}", which does not travel'
    else:
        what = f'is no column of summary.csv with a result, and no measure of the task "{task}"'
    near = suggestion(name, known)
    hint = f"did you mean {quoted(near)}?" if near else f"there are {', '.join(known)}"
    return f"{quoted(name)}{in_text} {what}; {hint}"


def check_rungs(
    scheduler: SchedulerSpec,
    where: str,
    space: Sequence[Dimension],
    jobs: Sequence[Job],
    lengths: Collection[int],
    problems: Problems,
) -> Iterator[str]:
    """Check when the jobs are compared.

    :param where: the place of the scheduler.
    :param space: of the search; empty where there is none.
    :param lengths: ``total_timesteps`` that trials of a search can have.
    :return: warnings.
    """
    totals = [job.spec.total_timesteps for job in jobs]
    if any(dimension.key == "total_timesteps" for dimension in space):
        problems.add(
            where,
            "trials of different total_timesteps cannot be compared; leave it out of the space",
        )
    elif len(lengths) > 1:
        what = "the presets in the space have different total_timesteps, and such trials cannot be compared"
        problems.add(where, f"{what}; set total_timesteps in the job")
    if totals and scheduler.min_env_steps >= max(totals):
        message = f"is not below total_timesteps = {max(totals):_}, so nothing would be compared"
        problems.add(
            f"{where}.min_env_steps", f"min_env_steps = {scheduler.min_env_steps:_} {message}"
        )
    for job in jobs:
        if job.spec.after:
            what = "waits for other jobs, and jobs that wait cannot be compared at rungs"
            problems.add(
                job.where, f"{job.job_id} {what}; leave out after and init, or [scheduler]"
            )
    if not {dimension.key for dimension in space} & {*FAMILY}:
        for task in dict.fromkeys(job.spec.task for job in jobs):
            _check_compared(scheduler.by, f"{where}.by", task, problems)
    if _have_different_starts(jobs, space):
        yield (
            f"{where}: some jobs begin with a policy (init) and others with none, so rungs compare lineages of unequal"
            f" length, and not bodies; let all begin alike, or leave [{where}] out"
        )
    longest = max((job.spec.steps_an_iteration for job in jobs), default=0)
    if scheduler.min_env_steps < longest:
        yield (
            f"{where}.min_env_steps = {scheduler.min_env_steps:_} is less than an iteration of {longest:_} env_steps, "
            f"at whose end jobs are compared; expected at least {longest:_}"
        )


def _have_different_starts(jobs: Sequence[Job], space: Sequence[Dimension]) -> bool:
    """Whether some begin with a policy and others with none."""
    starts = [job.spec.init is not None for job in jobs]
    for dimension in space:
        if dimension.key == "init":
            starts = [choice != "none" for choice in dimension.choices]
    return len(set(starts)) > 1


def _check_compared(by: str, where: str, task: str | None, problems: Problems) -> None:
    """Check what jobs with this ``task`` are compared by at rungs."""
    names = parse_expression(by).names
    if of_end := _known_at_end(by):
        what = f"{quoted(of_end[0])} is not known at a rung; there are {RETURN} and measures"
        problems.add(where, f"{what} of the last episodes of training")
    elif task in {AUTO, *TASKS, *GYMNASIUM_TASKS}:
        known = [RETURN, *_measures_of(task)]
        for name in names:
            if name not in known:
                problems.add(where, _unknown_measure(name, by, task, known))


def _known_at_end(expression: str) -> Sequence[str]:
    """Its names that no rung has."""
    names = parse_expression(expression).names
    return [name for name in names if name in COLUMNS and name != RETURN]


def _measures_of(task: str) -> Sequence[str]:
    """Names of the measures that a built-in task can have, each once."""
    of_tasks = TASKS if task == AUTO else [task]
    return list(dict.fromkeys(name for one in of_tasks for name in MEASURES[one]))


def check_reevaluation(search: SearchSpec, template: JobTemplate, problems: Problems) -> None:
    """Check that what is trained at the end can be trained: the middle of the space, and the
    unchanged job where that is the reference, also of the start.
    """
    if search.reevaluate == 0:
        if search.start == "reference":
            _check_unchanged_job(search, template, (), problems)
        return
    where = "search.reevaluate"
    if search.reevaluation.by == "estimate":
        _check_estimates(search, problems)
    total = search.reevaluation.total_timesteps
    if total is not None and any(one.key == "total_timesteps" for one in search.space):
        what = "the space varies total_timesteps, and every body would be trained for as long"
        problems.add(f"{where}.total_timesteps", f"{what}; leave one of them out")
        return
    choices = [*length_choice(total)]
    if search.reevaluation.reference or search.start == "reference":
        _check_unchanged_job(search, template, choices, problems)
    of_middle = Problems()
    of_trial = Problems()
    at_middle = space_point(search.space, search.middle, of_middle)
    if total is not None:
        template.jobs("middle", at_middle, of_trial, point={})
        template.jobs("middle", [*at_middle, *choices], of_middle, point={})
    of_any_length = {problem.message for problem in of_trial.in_order()}
    for problem in of_middle.in_order():
        if problem.message not in of_any_length:
            problems.add(f"{where}.total_timesteps", problem.message)


def _check_unchanged_job(
    search: SearchSpec, template: JobTemplate, choices: Sequence[Choice], problems: Problems
) -> None:
    """Check that it can be trained. :param choices: settings in place of its own."""
    own = Problems()
    template.jobs("reference", choices, own, point={})
    for problem in own.in_order():
        text = f"the unchanged job cannot be trained: {problem.where}: {problem.message}"
        problems.add(place_of_reference(search), text)


def _check_estimates(search: SearchSpec, problems: Problems) -> None:
    """Check that a model of the trials will say which are the best."""
    where = "search.reevaluate.by"
    if len(search.objectives) > 1:
        problems.add(where, "several objectives have no estimates; expected value")
    if search.has_lineages:
        begin = "trials that begin with policies of others have no estimates"
        problems.add(where, f'{begin}; expected value, or start = "reference"')


def place_of_reference(search: SearchSpec) -> str:
    """The key that has the unchanged job trained."""
    return "search.start" if search.start == "reference" else "search.reevaluate.reference"


def length_choice(total_timesteps: int | None) -> Sequence[Choice]:
    """A training of so many env_steps as settings of a job; none for None."""
    if total_timesteps is None:
        return ()
    name = "total_timesteps"
    where = "search.reevaluate.total_timesteps"
    return (Choice(name, total_timesteps, {name: total_timesteps}, where),)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _measure(name: str, table: Mapping[str, Any], problems: Problems) -> ArchiveAxis:
    if table["low"] >= table["high"]:
        message = f"low = {table['low']} is not below high = {table['high']}"
        problems.add(f"search.measures.{place(name)}", message)
    return ArchiveAxis(name=name, **{"cells": 10, **table})


def _dimension(key: str, table: Mapping[str, Any], problems: Problems) -> Dimension | None:
    there = f"search.space.{place(key)}"
    if fault := _NOT_IN_SPACE.get(key) or matrix_fault(key):
        problems.add(there, fault)
        return None
    if not is_key(key):
        check_one(key, table.get("low", 0), there, problems)
        return None
    return (
        _choices(key, table, there, problems)
        if "choices" in table
        else _range(key, table, there, problems)
    )


def _choices(
    key: str, table: Mapping[str, Any], there: str, problems: Problems
) -> Dimension | None:
    others = [name for name in table if name != "choices"]
    if others:
        problems.add(there, f"choices and {joined(others)} exclude each other")
    own = Problems()
    choices = []
    for number, value in enumerate(table["choices"]):
        tree = check_one(key, value, f"{there}.choices[{number}]", own)
        choices.append(_as_the_key_has_it(value, key, tree))
    identities = [] if own else [identity(value) for value in choices]
    for number, one in enumerate(identities):
        if one in identities[:number]:
            own.add(f"{there}.choices[{number}]", "the same value is earlier in the list")
    for problem in own.in_order():
        problems.add(problem.where, problem.message)
    return None if own else Dimension(key=key, choices=tuple(choices))


def _as_the_key_has_it(value: Any, key: str, tree: Any) -> Any:
    """``value``, a whole number where the key takes no others, as 100000 for 1e5.

    Anything else, such as a duration, stays as it is written.

    :param tree: as of :func:`check_one`.
    """
    if not isinstance(value, float):
        return value
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, int) and tree == value else value


def _range(key: str, table: Mapping[str, Any], there: str, problems: Problems) -> Dimension | None:
    if missing := [name for name in ("low", "high") if name not in table]:
        expected = "expected { low = …, high = … }, or { choices = […] }"
        problems.add(
            there, f"{joined(missing)} {'is' if len(missing) == 1 else 'are'} missing: {expected}"
        )
        return None
    low, high, log, multiply = (
        table.get(name, False) for name in ("low", "high", "log", "multiply")
    )
    own = Problems()
    if not low < high:
        own.add(there, f"low = {low} is not below high = {high}")
    if log and low <= 0:
        own.add(f"{there}.log", f"needs low above 0, and low is {low}")
    if log and 0 < low < high and not math.isfinite(high / low):
        what = f"low = {low} and high = {high} are too far apart to be computed with"
        own.add(there, f"{what}; raise low")
    if multiply and not key.startswith("model."):
        problems.add(f"{there}.multiply", "is for keys of model, which change what the robot has")
        return None
    dimension = Dimension(
        key=key,
        low=float(low),
        high=float(high),
        log=log,
        integer=not multiply and _is_whole(key, low, high),
        multiply=multiply,
    )
    faults: dict[str, str] = {}  # a fault of the key is the same for both
    for name, value in (("low", low), ("high", high)):
        of_value = Problems()
        check_one(key, dimension.job_value(value), f"{there}.{name}", of_value)
        for problem in of_value.in_order():
            faults.setdefault(problem.message, problem.where)
    for message, where in faults.items():
        own.add(where, message)
    for problem in own.in_order():
        problems.add(problem.where, problem.message)
    return None if own else dimension


def _is_whole(key: str, low: float, high: float) -> bool:
    """Whether the values are whole numbers: the key takes no others, or any, and both ends are
    written as such.
    """
    if not (float(low).is_integer() and float(high).is_integer()):
        return False
    if key.partition(".")[0] in FREE_TABLES:
        return isinstance(low, int) and isinstance(high, int)
    return check_one(key, low + 0.5, "", Problems()) is None


def missing_package(search: SearchSpec) -> str | None:
    """What is wrong if the package of the sampler is not installed; None: it is."""
    sampler = search.sampler
    module = EXTRAS.get(sampler)
    if module is None or is_installed(module):
        return None
    advice = f'{INSTALL}; sampler = "random" needs nothing'
    what = f"auto is {sampler}, which" if search.has_auto_sampler else quoted(sampler)
    return f"{what} needs the package {module}, which is not installed here: {advice}"


def _check_auto(search: SearchSpec, problems: Problems) -> None:
    if search.measures:
        archives = " or ".join(ARCHIVE_SAMPLERS)
        text = f"auto is no sampler that fills an archive; name {archives}, or leave measures out"
        problems.add("search.sampler", text)
    if search.sampler_options:
        text = (
            "are those of one sampler, and auto may be several; name the sampler, or leave them out"
        )
        problems.add("search.sampler_options", text)


def _check_sampler(search: SearchSpec, problems: Problems) -> None:
    sampler = search.sampler
    if sampler == AUTO_SAMPLER:
        _check_auto(search, problems)
        return
    if sampler not in SAMPLERS:  # a class of the user's
        return
    if missing := missing_package(search):
        problems.add("search.sampler", missing)
    if sampler in WITHOUT_CHOICES:
        for dimension in search.space:
            if dimension.choices:
                text = f"{sampler} needs numbers in every dimension; use tpe, nsga2, random or sobol, or low and high"
                problems.add(f"search.space.{place(dimension.key)}.choices", text)
    if len(search.objectives) > 1 and sampler != "nsga2":
        text = f"{sampler} optimises one objective; nsga2 optimises several"
        problems.add("search.objective", text)
    if sampler in ARCHIVE_SAMPLERS and not search.measures:
        text = (
            f"{sampler} fills an archive; name its axes, for example distance_m "
            f"= {{ low = 0, high = 10, cells = 20 }}"
        )
        problems.add("search.measures", f"missing: {text}")
    elif search.measures and sampler not in ARCHIVE_SAMPLERS:
        problems.add(
            "search.measures", f"are for {' and '.join(ARCHIVE_SAMPLERS)}; {sampler} has no archive"
        )
    _check_options(search, problems)


def _check_options(search: SearchSpec, problems: Problems) -> None:
    options = SAMPLER_OPTIONS[search.sampler]
    for name, value in search.sampler_options.items():
        where = f"search.sampler_options.{place(str(name))}"
        if name not in options:
            known = (
                f"{search.sampler} has {', '.join(options)}"
                if options
                else f"{search.sampler} has none"
            )
            near = suggestion(str(name), options)
            problems.add(
                where, f"unknown option; {f'did you mean {quoted(near)}?' if near else known}"
            )
            continue
        kind, least, most = options[name]
        if kind is bool:
            if not isinstance(value, bool):
                problems.add(where, f"expected true or false, found {value!r:.60}")
            continue
        is_number = isinstance(value, int if kind is int else int | float) and not isinstance(
            value, bool
        )
        if not (is_number and least <= value <= most):
            number = "a whole number" if kind is int else "a number"
            problems.add(
                where, f"expected {number} from {least:g} to {most:_}, found {value!r:.60}"
            )
