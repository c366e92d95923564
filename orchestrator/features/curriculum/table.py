"""The table ``curriculum`` of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from orchestrator.features.curriculum.conditions import parse_condition
from orchestrator.features.curriculum.part import PART
from orchestrator.keys.feature_tables import JobTable
from orchestrator.keys.value_types import Count, ExpectedError, TomlTable, key

if TYPE_CHECKING:
    from orchestrator.jobfile.job_table_rules import JobTableRules

_ADVANCE = (
    'a condition such as "ep_rew_mean > 800", or a list with one for each stage after the first'
)


def _advance(value: Any) -> list[str]:
    conditions = [value] if isinstance(value, str) else value
    if not isinstance(conditions, list) or not all(isinstance(text, str) for text in conditions):
        raise ExpectedError(f"expected {_ADVANCE}")
    for text in conditions:
        parse_condition(text)
    return conditions


Advance = Annotated[
    list[str],
    PlainValidator(_advance),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class CurriculumTable(TomlTable):
    """When the training goes on to its next stage; numbers with a value for each stage are
    "stages(0, 0.5, 1)".
    """

    advance: Advance = key(
        [],
        "Condition on a column of progress.csv by which the next stage begins: one for all stages, or a list with one "
        "for each stage after the first.",
        "ep_rew_mean > 800",
    )
    episodes: Count = key(
        20, "Episodes that must have ended in a stage before the condition counts."
    )


def _rules() -> JobTableRules:
    from orchestrator.features.curriculum.rules import RULES

    return RULES


TABLE = JobTable(
    name=PART.name,
    about="When the training goes on to its next stage.",
    model=CurriculumTable,
    rules=_rules,
)
