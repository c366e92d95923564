"""What jobs are declared to be trained with, and where that differs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

from orchestrator.core.job import META
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed
from orchestrator.experiment import run_directory
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.job_names import without_seed
from orchestrator.ledger import JobRow
from orchestrator.server.differences import decisive_keys

UNSET = "–"
LONGEST_VALUE = 40
"""Characters of a value in the list of differences."""
COMMON_SHOWN = 10
"""Characters before the first that differs, of values that begin alike."""
CASES_SHOWN = 5
HASH_SHOWN = 12
OF_ONE_JOB = ("job_id", "seed", "xml", "learner", "extended_from")
"""Keys that are no settings; the learner that a job really had is among the facts."""


@dataclass(frozen=True, slots=True)
class Difference:
    what: str
    a: str
    """The value in A, whole."""
    b: str

    @property
    def shown(self) -> tuple[str, str]:
        """Both values as short texts."""
        texts = short_texts([self.a, self.b])
        return texts[self.a], texts[self.b]

    def __str__(self) -> str:
        return f"{self.what}: {' → '.join(self.shown)}"


class DifferenceOfCases(NamedTuple):
    """A difference, and the cases that have it."""

    difference: Difference
    cases: Sequence[str]


class DifferenceOfAll(NamedTuple):
    """What differs between several run directories."""

    what: str
    values: Sequence[str]
    """In each of them, the first one first."""


def declared_jobs(paths: RunPaths) -> list[JobRow]:
    """All jobs of a run directory, as they are declared."""
    with run_directory.reading_ledger(paths) as ledger:
        return list(ledger.jobs())


def settings_of_cases(rows: Iterable[JobRow]) -> dict[str, dict[str, Any]]:
    """Case (a job's name without its seed) → what its jobs are trained with, by dotted key."""
    return {case: _declared_settings(jobs) for case, jobs in jobs_of_cases(rows).items()}


def points_of_cases(rows: Iterable[JobRow]) -> dict[str, dict[str, Any]]:
    """Case → :attr:`.Job.point` of its jobs, without what a program says of them."""
    points: dict[str, dict[str, Any]] = {}
    for case, jobs in jobs_of_cases(rows).items():
        point = jobs[0].job.point
        points[case] = {key: value for key, value in point.items() if not key.startswith(META)}
    return points


def jobs_of_cases(rows: Iterable[JobRow]) -> dict[str, list[JobRow]]:
    by_case: dict[str, list[JobRow]] = {}
    for row in rows:
        by_case.setdefault(without_seed(row.job_id, row.job.spec.seed), []).append(row)
    return by_case


def differing_settings(
    a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """Every setting that differs, once for all common cases in which both values are the same.

    :param a: case → its settings. :param b: likewise.
    """
    common = a.keys() & b.keys()
    return [
        one.difference if len(one.cases) == len(common) else _of_cases(one)
        for one in _differences_of_cases(a, b)
    ]


def _differences_of_cases(
    a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]
) -> list[DifferenceOfCases]:
    """As :func:`differing_settings`, with all cases."""
    cases_with: dict[Difference, list[str]] = {}
    for case in (case for case in a if case in b):
        old = a[case]
        new = b[case]
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                difference = Difference(key, value_text(old.get(key)), value_text(new.get(key)))
                cases_with.setdefault(difference, []).append(case)
    return [DifferenceOfCases(one, cases) for one, cases in cases_with.items()]


def _of_cases(one: DifferenceOfCases) -> Difference:
    what = f"{one.difference.what} ({listed(one.cases, CASES_SHOWN)})"
    return replace(one.difference, what=what)


def _declared_settings(rows: Sequence[JobRow]) -> dict[str, Any]:
    """What the jobs of one case, which differ in their seed, are trained with: the first of them, should
    they differ otherwise, too.
    """
    job = min(rows, key=lambda row: row.job.spec.seed).job
    spec = job.spec
    of_algorithm = DEFAULTS.get(spec.algo, {})
    defaults = {f"{spec.algo}.{key}": value for key, value in of_algorithm.items()}
    keys = {key: value for key, value in decisive_keys(job).items() if key not in OF_ONE_JOB}
    hashes = sorted({row.robot_hash[:HASH_SHOWN] for row in rows if row.robot_hash})
    return {
        "robot_hash": ", ".join(hashes),
        "seeds": sorted(row.job.spec.seed for row in rows),
        **defaults,
        **keys,
        "eval_episodes": spec.eval_episodes,
        "resources.cores": job.resources.cores,
        "resources.nice": job.resources.nice,
    }


def merged_differences(rows: Sequence[Sequence[Difference]]) -> list[DifferenceOfAll]:
    """Differences of several run directories from the same first one.

    A run directory without a difference has the value of the first. It is ``–`` where it differs in
    the same setting, but for other jobs.

    :param rows: for each of the others its settings or differences.
    """
    first: dict[str, str] = {}
    for differences in rows:
        for one in differences:
            first.setdefault(one.what, one.a)
    return [_merged_difference(what, value, rows) for what, value in first.items()]


def _merged_difference(
    what: str, first: str, rows: Sequence[Sequence[Difference]]
) -> DifferenceOfAll:
    """Of one setting, of which the first run directory has the value ``first``."""
    found = [_merged_value(what, first, others) for others in rows]
    shown = short_texts([first, *(one.value for one in found), *(one.start for one in found)])
    values = [
        shown[one.value] if one.start == first else f"{shown[one.value]} (from {shown[one.start]})"
        for one in found
    ]
    return DifferenceOfAll(what, [shown[first], *values])


class _MergedValue(NamedTuple):
    value: str
    start: str
    """The value in the first run directory, of the jobs in common, which may be others."""


def _merged_value(what: str, first: str, differences: Sequence[Difference]) -> _MergedValue:
    """The value in a run directory with these ``differences`` from one that has ``first``."""
    for one in differences:
        if one.what == what:
            return _MergedValue(one.b, one.a)
    is_of_other_jobs = any(without_cases(one.what) == without_cases(what) for one in differences)
    return _MergedValue(UNSET if is_of_other_jobs else first, first)


def without_cases(what: str) -> str:
    """``"ppo.n_steps (hopper)"`` → ``"ppo.n_steps"``."""
    return what.partition(" (")[0]


def value_text(value: Any) -> str:
    """The whole of it."""
    return UNSET if value is None or value == "" else str(value)


def short_texts(whole: Collection[str]) -> dict[str, str]:
    """Each text → a short one: its beginning or, where another one begins alike, the part in which
    they begin to differ.
    """
    return {text: _short(text, [other for other in whole if other != text]) for text in whole}


def _short(text: str, others: Iterable[str]) -> str:
    alike = [_alike(text, other) for other in others if _cut(other) == _cut(text)]
    return _cut(f"…{text[max(alike) - COMMON_SHOWN :]}") if alike else _cut(text)


def _alike(text: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = zip(text, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
