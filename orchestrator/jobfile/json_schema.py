"""The JSON Schema of the job file, for editors that complete and check it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.jobfile.toml_models import FREE_TABLES, JobFile


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a job file, generated from
    :mod:`orchestrator.jobfile.toml_models`.
    """
    schema = JobFile.model_json_schema()
    definitions = schema["$defs"]
    _remove_null(schema)
    _join_lines(schema)
    matrix = _matrix(definitions)
    for table in ("Settings", "Entry"):
        definitions[table]["properties"]["matrix"] |= matrix
    definitions["Settings"]["description"] = "Default settings of all jobs."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Orchestrator job file",
    }


def _matrix(definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of ``matrix``: every dotted key, with a list of values of its own type."""
    properties: dict[str, Any] = {}
    for key, content in definitions["Settings"]["properties"].items():
        if key in ("seeds", "matrix", *FREE_TABLES):
            continue
        if "$ref" in content:
            inner = definitions[content["$ref"].rpartition("/")[2]]["properties"]
            properties |= {f"{key}.{name}": value for name, value in inner.items()}
        else:
            properties[key] = content
    varied = sorted({*FREE_TABLES} - {"evaluate"})  # which changes no training
    return {
        "properties": {
            key: {"type": "array", "items": content, "minItems": 1, "uniqueItems": True}
            for key, content in properties.items()
        },
        "patternProperties": {rf"^({'|'.join(varied)})\.": {"type": "array", "minItems": 1}},
        "additionalProperties": False,
    }


def _remove_null(schema: Any) -> None:
    """Remove null, which TOML does not have, from alternatives and defaults."""
    if isinstance(schema, dict):
        if schema.get("default", ...) is None:
            del schema["default"]
        alternatives = [one for one in schema.get("anyOf", []) if one != {"type": "null"}]
        if alternatives:
            schema["anyOf"] = alternatives
        if len(alternatives) == 1:
            schema |= schema.pop("anyOf")[0]
    parts: Iterable[Any] = ()
    if isinstance(schema, dict):
        parts = schema.values()
    elif isinstance(schema, list):
        parts = schema
    for part in parts:
        _remove_null(part)


def _join_lines(schema: dict[str, Any]) -> None:
    """Descriptions that are docstrings become one line."""
    for table in (schema, *schema["$defs"].values()):
        if "description" in table:
            table["description"] = " ".join(table["description"].split())
