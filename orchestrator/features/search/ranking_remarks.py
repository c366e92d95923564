"""What has to be known to compare the trials that ``best`` shows."""

from __future__ import annotations

from orchestrator.analysis.statistics import INTERVALS
from orchestrator.core.task_names import measure_of_task
from orchestrator.core.text import count
from orchestrator.features.search import against_reference, trials
from orchestrator.features.search.ranking import Ranking
from orchestrator.features.search.trial_values import DRAWN

INHERITED = (
    "Some of these trials began with the policy of another one, so they cannot be compared at equal env_steps. "
    "`reevaluate = 5` in [search] trains the five best again from nothing."
)

JUDGED = (
    "Trials that were trained again come first: values, env_steps and jobs are of that training, from nothing with "
    "other seeds, and the values of the search are in a column of their own."
)

FRONTS = (
    "There are two Pareto fronts: that of the trials that were trained again, and below it that of the others, by "
    "their values in the search."
)

LUCKY = (
    f"{DRAWN} `estimate` is what a model of the finished trials of the search says of the point; `--by estimate` ranks "
    "by it."
)

ONE_SEED = f"{DRAWN} With one seed nobody can tell how much; `compare --jobs A,B --race` trains further ones."

FRESH_MEANS = (
    f"[ ] is the 95 % interval of the mean over the fresh seeds of a trial, by {INTERVALS}. The best of several such "
    "means had some luck, too."
)

RACED = (
    "With `race`, trials are in the order of `believed`: the mean over the seeds of the search, shrunk towards that of "
    "all trials, the more the noisier it is, ± its error. A high value of few seeds counts less than one of many."
)

LINEAGE = (
    "These jobs cannot be compared at equal env_steps: their first policies had been trained for different numbers of "
    "them, or it is not known for how many. lineage has the env_steps of all jobs that have trained a policy."
)


def of(ranking: Ranking) -> list[str]:
    """A sentence or two for each."""
    return [
        *_of_lineages(ranking),
        *_of_values(ranking),
        *_of_failed_seeds(ranking),
        *_of_returns(ranking),
    ]


def _of_lineages(ranking: Ranking) -> list[str]:
    if ranking.has_lineages and any(trial.parent is not None for trial in ranking.shown):
        return [INHERITED]
    return [LINEAGE] if ranking.has_lineage and not _have_begun_alike(ranking) else []


def _have_begun_alike(ranking: Ranking) -> bool:
    """Whether the policies that the jobs of all shown trials started from had been trained for
    equally many env_steps.
    """
    found = [ranking.lineages[trial.number].before for trial in ranking.shown if not trial.role]
    before = frozenset().union(*found)
    return len(before) == 1 and None not in before


def _of_values(ranking: Ranking) -> list[str]:
    found = []
    if ranking.left_out:
        found.append(_left_out(ranking))
    if ranking.in_search:
        found.append(JUDGED)
        if len(ranking.objectives) > 1:
            found.append(FRONTS)
    if any(mean for trial in ranking.shown for mean in ranking.fresh_means(trial)):
        found.append(FRESH_MEANS)
    found += _against_reference(ranking)
    if ranking.believed:
        found.append(RACED)
    if ranking.estimates and not ranking.is_by_estimate:
        found.append(LUCKY)
    elif _have_one_seed(ranking):
        found.append(ONE_SEED)
    return found


def _have_one_seed(ranking: Ranking) -> bool:
    """Whether nothing is known of how much the shown trials, of more than one, owe to luck."""
    if ranking.is_by_estimate or ranking.believed or ranking.in_search:
        return False
    return ranking.finished > 1 and all(len(trial.jobs) == 1 for trial in ranking.shown)


def _left_out(ranking: Ranking) -> str:
    noun = "trial" if ranking.is_search else "job"
    which = count(ranking.left_out, f"finished {noun} has", f"finished {noun}s have")
    verb = "is" if ranking.left_out == 1 else "are"
    return f"{which} no {ranking.objectives[0]}, and {verb} left out."


def _against_reference(ranking: Ranking) -> list[str]:
    """How the first trial that was trained again differs from the unchanged job."""
    for number, found in ranking.against_reference.items():
        return against_reference.sentences(number, ranking.objectives, found)
    return []


def _of_failed_seeds(ranking: Ranking) -> list[str]:
    return [
        f"A further seed of trial {seed.reevaluates} has failed, and has no part in its value:"
        f" {' '.join(seed.why.split())}"
        for seed in trials.failed_further_seeds(ranking.shown)
    ]


def _of_returns(ranking: Ranking) -> list[str]:
    own = measure_of_task(ranking.measure_names)
    if own is None or ranking.is_search or ranking.objectives != (trials.OF_PLAIN_JOBS,):
        return []
    return [
        f"{trials.OF_PLAIN_JOBS} is a return, which a robot may also earn by standing still;"
        f" `--by {own}` ranks by what the task measures."
    ]
