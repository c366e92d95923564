"""The format of ``[slurm]``, key by key; ``slurm_settings.py`` has what it means."""

from __future__ import annotations

import re
from typing import Annotated, Any

from annotated_types import Predicate
from pydantic import PlainValidator, WithJsonSchema

from orchestrator.keys import value_types
from orchestrator.keys.value_types import (
    Count,
    CountFromZero,
    Expected,
    ExpectedError,
    TomlTable,
    key,
)


def _is_word(text: str) -> bool:
    return bool(text.strip()) and not set(text) & set('\n\0"')


def _options(value: Any) -> dict[str, str | None]:
    """``nice = 100`` and ``mail_type = "END"`` as sbatch takes them; true stands for an option
    without a value.
    """
    if not isinstance(value, dict):
        raise ExpectedError("expected a table of options of sbatch")
    options: dict[str, str | None] = {}
    written: dict[str, str] = {}
    for key_written, one in value.items():
        name = key_written.replace("_", "-")
        if not re.fullmatch("[a-z][a-z0-9-]+", name):
            raise ExpectedError(
                f"{key_written!r}: expected the long name of an option of sbatch, such as mail-type"
            )
        if not (isinstance(one, int) or (isinstance(one, str) and _is_word(one))):
            raise ExpectedError(
                f"{key_written}: expected text in one line without double quotes, a whole number or"
                " true"
            )
        if name in written:
            raise ExpectedError(
                f"{written[name]} and {key_written} are the same option of sbatch: expected one of"
                " them"
            )
        written[name] = key_written
        if one is not False:
            options[name] = None if one is True else str(one)
    return options


_Word = Annotated[str, Predicate(_is_word), Expected("text in one line, without double quotes")]
_SetupLine = Annotated[
    str,
    Predicate(lambda text: not set(text) & set("\n\0")),
    Expected("a line of a bash script, in quotes"),
]
_SbatchOptions = Annotated[
    dict[str, Any],
    PlainValidator(_options),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}}
    ),
]


class SlurmTable(TomlTable):
    """Pilots of --executor slurm: an array of batch jobs, each of which runs as many jobs at once
    as fit into it.
    """

    array: Count = key(1, "Number of pilots.", 4)
    partition: _Word | None = key(
        None, "Partition; unset: that of the cluster, and likewise below.", "compute"
    )
    account: _Word | None = key(None, "Account that is charged.", "robotics")
    qos: _Word | None = key(None, "Quality of service.", "normal")
    time: value_types.Duration | None = key(
        None, "Wall-clock time limit of a pilot; a job may train longer, in several.", "12h"
    )
    cpus_per_task: Count | None = key(None, "CPUs of a pilot.", 16)
    mem: value_types.Size | None = key(None, "Memory of a pilot.", "32 GiB")
    gpus: CountFromZero = key(0, "GPUs of a pilot.", 1)
    constraint: _Word | None = key(None, "Features that the node of a pilot must have.", "zen4")
    setup: list[_SetupLine] = key(
        [], "Lines of the batch script before the pilot starts.", ["module load cuda"]
    )
    options: _SbatchOptions = key(
        {},
        "Further options of sbatch by their long names: text, a number, or true for one without a value.",
        {"mail-type": "END"},
    )
