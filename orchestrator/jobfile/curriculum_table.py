"""The table ``curriculum`` of a job, and the numbers of its ``task_options`` that change over the
training.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, PlainValidator, WithJsonSchema

from orchestrator.core.changing_numbers import changing_numbers, parse_condition, parse_number
from orchestrator.keys.value_types import Count, ExpectedError, Options, TomlTable, key

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


def _changing(options: dict[Any, Any]) -> dict[Any, Any]:
    for dotted, text in changing_numbers(options):
        try:
            parse_number(text)
        except ValueError as error:
            raise ValueError(f"{dotted}: {error}") from None
    return options


TaskOptions = Annotated[Options, AfterValidator(_changing)]
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
