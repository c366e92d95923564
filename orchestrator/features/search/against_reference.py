"""Whether a trial that was trained again is better than the unchanged job, which was trained alike: from
nothing, with the same fresh seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis.statistics import TwoGroups, compare
from orchestrator.analysis.statistics_text import chance_text, difference_text
from orchestrator.features.search.history import Trial
from orchestrator.features.search.trial_values import values_of_all_seeds
from orchestrator.ledger import SummaryRow


def differences(
    trained_again: Trial,
    reference: Trial,
    objectives: Sequence[str],
    rows: Mapping[str, SummaryRow],
) -> list[TwoGroups | None]:
    """How a training of a trial differs from that of the unchanged job, in each objective; None where
    one of the two is not over, or one of their jobs has no value of it.

    :param rows: by ``job_id``.
    """
    if not (trained_again.values and reference.values):
        return [None for _ in objectives]
    found: list[TwoGroups | None] = []
    for objective in objectives:
        values = values_of_all_seeds(objective, trained_again.jobs, rows)
        of_reference = values_of_all_seeds(objective, reference.jobs, rows)
        is_known = values and of_reference
        found.append(compare([of_reference], [values]) if is_known else None)
    return found


def sentences(
    number: int, objectives: Sequence[str], found: Sequence[TwoGroups | None]
) -> list[str]:
    """What :func:`differences` has found of trial ``number``, for people."""
    return [
        f"By {objective}, trial {number} is {difference_text(one.difference, 'the unchanged job')};"
        f" {_chance_text(one)}."
        for objective, one in zip(objectives, found, strict=True)
        if one is not None
    ]


def _chance_text(found: TwoGroups) -> str:
    if found.p is not None:
        return chance_text(found)
    return (
        "whether that is chance cannot be said of one seed each (`seeds` of reevaluate trains more)"
    )
