"""How long a search takes, from its start or from what it has done so far, and what `run --dry-run`
says of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from orchestrator.core.job import Job, Paused, Pending, Running
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, joined, rough_duration
from orchestrator.examination import training_time
from orchestrator.examination.preflight import JobVerdict
from orchestrator.features.search import search_events
from orchestrator.features.search.declaration.declared_search import SearchDeclaration
from orchestrator.features.search.declaration.spec import SchedulerSpec, SearchSpec
from orchestrator.features.search.declaration.summary import SearchLimits
from orchestrator.features.search.event_contents import REFERENCE
from orchestrator.features.search.history import History
from orchestrator.features.search.queued_ahead import queued_ahead
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import Forecast
from orchestrator.ledger import Ledger, job_figures

RANDOM_POINTS = 10
"""Trials of which Optuna's samplers are told before they propose what is not random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTime:
    """An estimate for a search: for the whole of it, or for what remains of one that has begun."""

    longest_s: float
    """If all trials are trained to their end, each for as many env_steps as the longest."""
    with_rungs_s: float
    """If as many go on at each rung as the scheduler lets go on."""
    measured: int
    """Number of bodies whose physics was measured; 0: it is assumed to be that of Hopper-v5."""
    begun: DoneSoFar | None = None
    """What has been done of it already; None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a search has used of its budget."""

    trials: int
    """Those that repeat one are not among them."""
    repeated: int
    """Trials that are trained again at the end, and those of the unchanged job."""
    raced: int
    """Further seeds of trials, which are in none of the numbers before."""
    env_steps: int
    """Of all jobs together."""
    elapsed_s: float
    """As :attr:`~orchestrator.features.search.history.History.elapsed_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneSoFar:
    """What has been done of a search, and what its jobs have to go."""

    spent: Spent
    steps_queued: int
    """env_steps that jobs which are queued or run have to go, each to its end or to the rung where
    it pauses."""
    steps_left: int
    """env_steps that all jobs which have not ended have to go to their end."""

    def rest_of(self, search: SearchSpec) -> SearchSpec:
        """``search`` with what is left of its budget."""
        spent = self.spent
        trials = search.trials
        env_steps = search.max_env_steps
        time_s = search.max_time_s
        if trials is not None:
            trials = max(0, trials - spent.trials)
        if env_steps is not None:
            env_steps = max(0, env_steps - spent.env_steps)
        if time_s is not None:
            time_s = max(0.0, time_s - spent.elapsed_s)
        return replace(
            search,
            trials=0 if env_steps == 0 or time_s == 0 else trials,
            max_env_steps=env_steps,
            max_time_s=time_s,
            reevaluate=max(0, search.reevaluations - spent.repeated),
            reevaluation=replace(search.reevaluation, reference=False),
            start="nothing" if search.start == "reference" else search.start,
        )


def spent_budget(paths: RunPaths, ledger: Ledger) -> Spent:
    """Return how much of its budget the search of a run directory has used.

    :raises LedgerDamagedError: an event is damaged.
    """
    history = History()
    history.take_in(search_events.events(paths), SearchPaths(paths.root).events)
    is_repeated = [one.is_reevaluation or one.role == REFERENCE for one in history.trials]
    return Spent(
        trials=len(history.asked),
        repeated=sum(is_repeated),
        raced=len(history.further),
        env_steps=job_figures.env_steps(ledger),
        elapsed_s=history.elapsed_s,
    )


def done_so_far(paths: RunPaths, ledger: Ledger) -> DoneSoFar | None:
    """Return what has been done of a search, or None if it has not begun.

    :raises LedgerDamagedError: an event of it is damaged.
    """
    if not search_events.has_begun(paths):
        return None
    rows = ledger.jobs()
    queued = [row for row in rows if isinstance(row.state, Pending | Running)]
    waiting = [row for row in rows if isinstance(row.state, Paused)]
    return DoneSoFar(
        spent=spent_budget(paths, ledger),
        steps_queued=sum(max(0, row.job.spec.attempt_end - row.env_steps) for row in queued),
        steps_left=sum(
            max(0, row.job.spec.total_timesteps - row.env_steps) for row in (*queued, *waiting)
        ),
    )


def of_search(
    examples: Sequence[tuple[Job, float]],
    search: SearchSpec,
    scheduler: SchedulerSpec | None,
    limits: SearchLimits,
    jobs_at_once: int,
    begun: DoneSoFar | None = None,
) -> SearchTime:
    """:param examples: jobs of points of the space, each with the seconds of physics in one of its
    env_steps.

    :param search: with what is left of its budget.
    :param limits: of ``search``.
    :param jobs_at_once: of the run.
    """
    job_s = [
        training_time.of_job(job, physics_s) + training_time.JOB_S for job, physics_s in examples
    ]
    steps = [job.spec.total_timesteps for job, _ in examples]
    most = math.inf if limits.env_steps is None else limits.env_steps
    expected = most
    again = limits.env_steps_again
    share = _trained_share(scheduler, max(steps))
    if limits.all_env_steps is not None:
        # Further seeds have a share of what is trained of trials, whatever rungs leave of that.
        of_trials = (limits.all_env_steps - again) * share
        expected = min(most, of_trials + again)
    # A start after a pause at a rung takes as long as the first one; the share of the env_steps has
    # a part of each job's first start in it already.
    jobs = max(0.0, expected - again) / (share * max(steps))
    starts_s = jobs * (_starts(scheduler, max(steps)) - share) * training_time.JOB_S
    if begun is not None:
        expected += begun.steps_queued
        if expected:  # what waits at rungs goes on only if others come there
            most += begun.steps_left

    def elapsed_s(env_steps: float, others_s: float = 0.0) -> float:
        """:param others_s: seconds of a slot besides those that env_steps take."""
        if not env_steps:
            return 0.0
        latest_s = math.inf if search.max_time_s is None else search.max_time_s + max(job_s)
        work_s = (env_steps * math.fsum(job_s) / sum(steps) + others_s) / jobs_at_once
        return min(latest_s, max(*job_s, 0.0, work_s))

    with_rungs_s = elapsed_s(expected, starts_s if share < 1 else 0.0)
    return SearchTime(
        longest_s=max(elapsed_s(most), with_rungs_s),
        with_rungs_s=with_rungs_s,
        measured=sum(physics_s > 0 for _, physics_s in examples),
        begun=begun,
    )


def _trained_share(scheduler: SchedulerSpec | None, total_timesteps: int) -> float:
    """Share of the env_steps of trials that are trained if as many go on at each rung as the
    scheduler lets go on.
    """
    if scheduler is None or not (rungs := scheduler.rungs(total_timesteps)):
        return 1.0
    kept = _kept(scheduler)
    spans = [after - before for before, after in pairwise((0, *rungs, total_timesteps))]
    return sum(span * kept**rung for rung, span in enumerate(spans)) / total_timesteps


def _starts(scheduler: SchedulerSpec | None, total_timesteps: int) -> float:
    """How often a job is started on average: once, and again where it goes on from a rung."""
    rungs = () if scheduler is None else scheduler.rungs(total_timesteps)
    kept = _kept(scheduler)
    return math.fsum(kept**rung for rung in range(len(rungs) + 1))


def _kept(scheduler: SchedulerSpec | None) -> float:
    """Share of the trials at a rung that go on."""
    return 1.0 if scheduler is None else 1 / scheduler.reduction


def forecast(
    experiment: Experiment,
    source: SearchDeclaration,
    verdicts: Mapping[str, JobVerdict],
    jobs_at_once: int,
    begun: DoneSoFar | None,
) -> Forecast:
    """What the run would do. :param begun: None where nothing has been done yet."""
    scheduler = None if source.scheduler is None else asdict(source.scheduler)
    pairs = [(job, verdicts[job.job_id]) for job in experiment.jobs_to_examine]
    remark = _remark_on_early_rungs(source.scheduler, pairs)
    if source.search is None:
        return Forecast(lines=remark, facts={"search": None, "scheduler": scheduler})
    rest = source if begun is None else replace(source, search=begun.rest_of(source.search))
    assert rest.search is not None
    examples = [(job, verdict.physics_s) for job, verdict in pairs if verdict.problem is None]
    time = of_search(
        examples,
        rest.search,
        source.scheduler,
        _limits_of_rest(experiment, source, rest, begun),
        max(1, jobs_at_once),
        begun,
    )
    facts = _facts(experiment, source, time)
    is_told = source.scheduler is None or source.scheduler.stands_for_end(source.search)
    if is_told:  # else there is a warning already
        seeds = source.seeds_of_trial(experiment)
        remark += _remark_on_random_points(source.search, seeds, jobs_at_once)
    return Forecast(lines=[_line(time), *remark], facts={"search": facts, "scheduler": scheduler})


def _remark_on_early_rungs(
    scheduler: SchedulerSpec | None, pairs: Sequence[tuple[Job, JobVerdict]]
) -> list[str]:
    """Which rungs come before an episode of full length has ended; empty where none does, or that is
    not known.

    :param pairs: jobs of points of the space, and what their examination has found.
    """
    if scheduler is None:
        return []
    for job, verdict in pairs:
        spec = job.spec
        if verdict.episode_steps is None or spec.ranks > 1:
            continue
        whole = verdict.episode_steps * spec.n_envs
        each = spec.steps_an_iteration
        rungs = scheduler.rungs(spec.total_timesteps)
        early = [rung for rung in rungs if math.ceil(rung / each) * each < whole]
        if early:
            places = joined(f"{rung:,}" for rung in early)
            episode = (
                f"{verdict.episode_steps:,} steps in each of {count(spec.n_envs, 'environment')}"
            )
            rung = "the rung" if len(early) == 1 else "the rungs"
            return [
                f"at {rung} of {places} env_steps no episode of full length has ended ({episode}): a"
                " trial of which none has ended early has no value there, and counts as the worst"
            ]
    return []


def _remark_on_random_points(search: SearchSpec, seeds: int, jobs_at_once: int) -> list[str]:
    """That most points are proposed before the sampler has learnt anything; empty where they are
    not, or that is not known.

    :param seeds: jobs of a trial.
    """
    if search.sampler not in ("tpe", "gp") or search.trials is None:
        return []
    told = search.sampler_options.get("n_startup_trials", RANDOM_POINTS)
    waiting = queued_ahead(search.sampler, jobs_at_once)
    ahead = math.ceil((max(1, jobs_at_once) + waiting) / seeds)
    learnt = max(0, search.trials - told - ahead)
    if 2 * learnt >= search.trials:
        return []
    follow = f"about {learnt} follow" if learnt else "none follows"
    return [
        f"{search.sampler} proposes random points until it knows the values of {told} trials, and by then some {ahead}"
        f" more are queued or train: of {count(search.trials, 'trial')} {follow} what it has learnt; raise trials, or"
        " lower max_parallel"
    ]


def _limits_of_rest(
    experiment: Experiment,
    source: SearchDeclaration,
    rest: SearchDeclaration,
    begun: DoneSoFar | None,
) -> SearchLimits:
    """Of what is left of a search. :param rest: that."""
    if begun is None:
        return rest.limits(experiment)
    raced = source.limits(experiment).jobs_raced - begun.spent.raced
    return rest.limits(experiment, max(0, raced))


def _line(time: SearchTime) -> str:
    whole = f"about {rough_duration(time.longest_s)}"
    if time.with_rungs_s < time.longest_s:
        whole += f" if all trials are trained to their end, about {rough_duration(time.with_rungs_s)} with the rungs"
    bodies = count(time.measured, "body", "bodies")
    basis = (
        f"by the speed of the physics of {bodies}, measured here"
        if time.measured
        else "without a measured speed"
    )
    if time.begun is None:
        return f"estimated time: {whole}; {basis}"
    spent = time.begun.spent
    done = f"done so far: {count(spent.trials, 'trial')} and {spent.env_steps:,} env_steps"
    if not time.longest_s:
        return f"{done}; none remain"
    return f"{done}; estimated time of what remains: {whole}; {basis}"


def _facts(experiment: Experiment, source: SearchDeclaration, time: SearchTime) -> dict[str, Any]:
    assert source.search is not None
    limits = source.limits(experiment)
    spent = None if time.begun is None else time.begun.spent
    return {
        **asdict(source.search),
        **{f"most_{key}": getattr(limits, key) for key in ("trials", "jobs", "env_steps")},
        "estimate_s": round(time.longest_s, 1),
        "with_rungs_s": round(time.with_rungs_s, 1),
        "trials_so_far": 0 if spent is None else spent.trials,
        "env_steps_so_far": 0 if spent is None else spent.env_steps,
    }
