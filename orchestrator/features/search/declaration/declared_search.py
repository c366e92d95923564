"""What ``[search]`` and ``[scheduler]`` declare together, and the jobs that are made of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from orchestrator.core.errors import SpecError
from orchestrator.core.job import Job
from orchestrator.features.search import auto_sampler
from orchestrator.features.search.auto_sampler import AUTO, SamplerChoice, SearchTraits
from orchestrator.features.search.declaration import rules
from orchestrator.features.search.declaration.initial_points import initial_points
from orchestrator.features.search.declaration.spec import SchedulerSpec, SearchSpec
from orchestrator.features.search.declaration.summary import SearchLimits, limits, sentences
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.expand import JobTemplate, builtin_settings
from orchestrator.jobfile.job_source import JobSource
from orchestrator.jobfile.matrix import Choice
from orchestrator.keys.problems import Problems


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDeclaration(JobSource):
    """A search, whose trials may be compared at rungs; or the comparison of declared jobs."""

    search: SearchSpec | None
    """None where the jobs of the job file are compared at rungs."""
    scheduler: SchedulerSpec | None
    """When the jobs, or the trials of the search, are compared; None: all are trained to their
    end."""
    scheduler_place: str = "scheduler"
    """Where the job file has it."""
    noun: ClassVar[str] = "search"

    @classmethod
    def of_tables(cls, top: Mapping[str, Any], problems: Problems) -> Self | None:
        """None where all jobs are trained to their end as they are declared.

        :param top: the tables that the user has written, each of their keys valid by itself.
        """
        table = top.get("search")
        search = None if table is None else rules.read_search(table, problems)
        scheduler = rules.read_scheduler(top, problems)
        if search is None and scheduler is None:
            return None
        place = "search.scheduler" if "scheduler" in (table or ()) else "scheduler"
        return cls(search=search, scheduler=scheduler, scheduler_place=place)

    @property
    def makes_jobs(self) -> bool:
        return self.search is not None

    def check_entry(
        self, entry: Mapping[str, Any], matrix: Mapping[str, Any], where: str, problems: Problems
    ) -> None:
        rules.check_searched(entry, matrix, where, problems)

    def example(self, problems: Problems) -> Sequence[Choice]:
        assert self.search is not None
        return rules.space_point(self.search.space, self.search.middle, problems)

    def check_settings(self, settings: Mapping[str, Any], problems: Problems) -> None:
        assert self.search is not None
        rules.check_in_job(self.search, settings, problems)

    def settled(self, jobs: Sequence[Job], template: JobTemplate | None) -> Self:
        """The search with the sampler that ``auto`` is. Its package is asked for before a run: then
        it is known whether a search goes on that has another one.
        """
        search = self.search
        if search is None or template is None or search.sampler != AUTO:
            return self
        longest = max(lengths_of(search, template))
        chosen = auto_sampler.choose(_traits(search, len(jobs) * longest))
        return replace(self, search=search.with_sampler(chosen))

    def begun_with(self, chosen: SamplerChoice | None) -> Self:
        """The same as it has begun. :param chosen: what ``auto`` was then."""
        search = self.search
        if search is None or chosen is None or not search.has_auto_sampler:
            return self
        return replace(self, search=search.with_sampler(chosen))

    def check_jobs(
        self, jobs: Sequence[Job], template: JobTemplate | None, problems: Problems
    ) -> Iterable[str]:
        if self.search is not None and template is not None:
            initial_points(self.search, template, problems)
            rules.check_reevaluation(self.search, template, problems)
            rules.check_seeds_of_race(self.search, len(jobs), problems)
        warnings: list[str] = []
        if self.scheduler is not None:
            warnings += self._check_rungs(self.scheduler, jobs, template, problems)
        if problems:  # the others read what has been found to be right
            return warnings
        of_search = (
            rules.population_warning(self.search),
            rules.lineage_warning(self.search, self.scheduler),
            rules.untold_warning(self.search, self.scheduler, self.scheduler_place),
        )
        return [*warnings, *filter(None, of_search)]

    def _check_rungs(
        self,
        scheduler: SchedulerSpec,
        jobs: Sequence[Job],
        template: JobTemplate | None,
        problems: Problems,
    ) -> Iterable[str]:
        """Returns warnings."""
        space = () if self.search is None else self.search.space
        lengths = set[int]()
        if self.search is not None and template is not None:
            lengths = lengths_of(self.search, template)
        place = self.scheduler_place
        return rules.check_rungs(scheduler, place, space, jobs, lengths, problems)

    def jobs_to_examine(self, experiment: Experiment) -> tuple[Job, ...]:
        """Those of the middle of the space and of a corner, as far as their values fit together.

        They show before launch whether the keys of the space match something in the robot.
        """
        if self.search is None:
            return experiment.jobs
        middle = jobs_at(experiment, "middle", self.search.middle)[0]
        probes = [replace(middle, where=f"{middle.where} (the middle of [search.space])")]
        with contextlib.suppress(SpecError):  # then some trials fail, with this reason
            probes += jobs_at(experiment, "corner", self.search.corner)[:1]
        return tuple(probes)

    def lines(self, experiment: Experiment) -> Sequence[str]:
        """What is searched, how far, and where trials are compared; none without a search."""
        if self.search is None:
            return ()
        seeds = self.seeds_of_trial(experiment)
        return tuple(sentences(self.search, self.scheduler, seeds, self._longest(experiment)))

    def limits(self, experiment: Experiment, jobs_raced: int | None = None) -> SearchLimits:
        """The most that the search does; for ``jobs_raced`` see :func:`.summary.limits`."""
        assert self.search is not None
        seeds = self.seeds_of_trial(experiment)
        return limits(self.search, seeds, self._longest(experiment), jobs_raced)

    def seeds_of_trial(self, experiment: Experiment) -> int:
        """Number of jobs of a trial."""
        assert self.search is not None
        return len(jobs_at(experiment, "middle", self.search.middle))

    def _longest(self, experiment: Experiment) -> int:
        """env_steps of the longest job that a trial can have."""
        assert self.search is not None
        assert experiment.template is not None
        return max(lengths_of(self.search, experiment.template))


def _traits(search: SearchSpec, env_steps_a_trial: int) -> SearchTraits:
    """What the sampler is chosen by."""
    choices = sum(bool(dimension.choices) for dimension in search.space)
    budgets = [] if search.trials is None else [search.trials]
    if search.max_env_steps is not None:
        of_points = round(search.share_of_points * search.max_env_steps)
        budgets.append(max(1, of_points // max(1, env_steps_a_trial)))
    return SearchTraits(
        numbers=len(search.space) - choices,
        choices=choices,
        objectives=len(search.objectives),
        trials=min(budgets, default=None),
    )


def declaration_of(experiment: Experiment) -> SearchDeclaration:
    """The search that an experiment has, or the comparison of its jobs; one that does nothing where
    it has none.
    """
    source = experiment.job_source
    if isinstance(source, SearchDeclaration):
        return source
    return SearchDeclaration(search=None, scheduler=None)


def trial_jobs(
    experiment: Experiment,
    number: int,
    point: Mapping[str, Any],
    seeds: Sequence[int] | None = None,
) -> tuple[Job, ...]:
    """The jobs of one trial of the search, one for each seed.

    :param point: a value for every key of the space, before ``multiply``.
    :param seeds: in place of those of the job file.
    :raises SpecError: the values do not fit the job, or not together.
    """
    return jobs_at(experiment, f"t{number:05d}", point, seeds)


def start_job(experiment: Experiment) -> Job:
    """The unchanged job, whose policy all trials begin with where they start from the reference: one
    training, with the first seed.

    :raises SpecError: it is no job without the values of a point.
    """
    return jobs_at(experiment, "start", None)[0]


def points_to_begin_with(experiment: Experiment) -> list[dict[str, Any]]:
    """Those of ``initial``, with a value for every key of the space.

    :raises SpecError: the unchanged job has lost a value of theirs.
    """
    search = declaration_of(experiment).search
    assert search is not None
    assert experiment.template is not None
    problems = Problems()
    points = initial_points(search, experiment.template, problems)
    if problems:
        raise SpecError(experiment.source, problems.in_order())
    return points


def jobs_at(
    experiment: Experiment,
    name: str,
    point: Mapping[str, Any] | None,
    seeds: Sequence[int] | None = None,
    total_timesteps: int | None = None,
) -> tuple[Job, ...]:
    """The same under another name than that of a trial.

    :param point: None: the unchanged job.
    :param total_timesteps: in place of those of the job file.
    """
    search = declaration_of(experiment).search
    assert search is not None
    assert experiment.template is not None
    problems = Problems()
    choices = () if point is None else rules.space_point(search.space, point, problems)
    choices = (*choices, *rules.length_choice(total_timesteps))
    jobs = experiment.template.jobs(name, choices, problems, point=point or {}, seeds=seeds)
    if problems:
        raise SpecError(experiment.source, problems.in_order())
    return jobs


def compared_job(job: Job, scheduler: SchedulerSpec, pause_at: int | None) -> Job:
    """``job`` as it is trained to a rung, with measures of its training where the rungs compare by
    them, or where the job file asks for them.

    :param pause_at: env_steps of the rung; None: it is trained to its end.
    """
    return job.with_spec(
        pause_at=pause_at,
        measure_training=scheduler.measures_training or job.spec.measure_training,
    )


def lengths_of(search: SearchSpec, template: JobTemplate) -> set[int]:
    """``total_timesteps`` of the trials: those of all choices or presets, or both ends of a
    range.
    """
    for dimension in search.space:
        if dimension.key == "total_timesteps":
            return set(dimension.choices or (int(dimension.low), int(dimension.high)))
    settled = template.layers.settled
    if declared := settled.get("total_timesteps"):
        return {declared}
    presets: Sequence[Any] = [settled.get("preset")]
    for dimension in search.space:
        if dimension.key == "preset":
            presets = dimension.choices
    return {builtin_settings(preset, "ppo")["total_timesteps"] for preset in presets}
