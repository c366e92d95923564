"""What every table of the job file is made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def key(default: Any, description: str, example: Any = None, *, shown: Any = None) -> Any:
    """One key of the format. ``shown`` is the default as a user would write it, where that differs."""
    return Field(
        default=default,
        description=description,
        examples=None if example is None else [example],
        json_schema_extra=None if shown is None else {"default": shown},
    )


class Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        field_title_generator=lambda name, _: name,
    )
