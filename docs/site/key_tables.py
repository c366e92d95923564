"""Tables of the keys of a job file, made from the models that check one: a hook of MkDocs.

In a document, a line of its own such as ``[Keys of `slurm`](../orchestrator/…/slurm_table.py)`` leads
readers of the repository to the declarations. In the site it is the table. A line with a name of
which there is no table stays, and the build refuses its link.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from orchestrator.jobfile import json_schema
from orchestrator.keys.toml_text import toml

LINE = re.compile(r"^\[Keys of (?P<table>[^\]]+)\]\([^)]+\)$", re.MULTILINE)
NAMES = {"the file": "", "a job": "jobs"}
"""What a line calls tables without a name, and what :class:`KeyTable` does."""
HEAD = "| key | value | default | meaning |\n|---|---|---|---|\n"
GENERAL_LIMIT = 1e12
"""Of numbers without a smaller one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """A table of a job file, from its JSON Schema."""

    name: str
    """``"search.scheduler"``; a table of a job without ``jobs.``."""
    keys: Mapping[str, Mapping[str, Any]]
    required: Collection[str]


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # called by name
    """Fill in the tables."""
    return with_tables(markdown) if LINE.search(markdown) else markdown


def with_tables(markdown: str) -> str:
    """The text of a document with a table in place of each line that stands for one.

    A table without a line in the document is shown within the one that holds it, with dotted keys.
    So every key is shown, also those of features that the document does not know.
    """
    schema = json_schema()
    tables = {table.name: table for table in _tables("", schema, schema["$defs"])}
    own_place = {_table_name(line) for line in LINE.finditer(markdown)}

    def filled(line: re.Match[str]) -> str:
        table = tables.get(_table_name(line))
        return HEAD + "".join(_rows(table, tables, own_place)) if table else line[0]

    return LINE.sub(filled, markdown)


def _table_name(line: re.Match[str]) -> str:
    return NAMES.get(line["table"], line["table"].strip("`"))


def _tables(name: str, schema: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[KeyTable]:
    """The table with this name and schema, and those in it."""
    keys = schema["properties"]
    if name == "jobs":  # those that [defaults] does not have, such as xml, stand first
        of_defaults = models["Settings"]["properties"]
        keys = dict(sorted(keys.items(), key=lambda item: item[0] in of_defaults))
    yield KeyTable(name=name, keys=keys, required=schema.get("required", ()))
    for key, value in keys.items():
        model = None if key == "defaults" else _model_of(value)
        if model is not None:
            yield from _tables(_inner_name(name, key, value), models[model], models)


def _model_of(schema: Mapping[str, Any]) -> str | None:
    """The model of the table that is the value of a key, that each value in it is, or that it may be
    in place of a number; None where there is none, or several to choose from.
    """
    inner = schema.get("items", schema.get("additionalProperties", schema))
    if not isinstance(inner, Mapping):
        return None
    references = [one["$ref"] for one in (inner, *inner.get("anyOf", ())) if "$ref" in one]
    return references[0].rpartition("/")[2] if len(references) == 1 else None


def _inner_name(table: str, key: str, schema: Mapping[str, Any]) -> str:
    """The name of the table that is the value of a key, or that each value in it is."""
    return f"{table}.{_step(key, schema)}".removeprefix("jobs.").removeprefix(".")


def _step(key: str, schema: Mapping[str, Any]) -> str:
    """From a table to the one in it: ``"space.NAME"`` where users choose the names."""
    return f"{key}.NAME" if "additionalProperties" in schema else key


def _rows(
    table: KeyTable, tables: Mapping[str, KeyTable], own_place: Collection[str], prefix: str = ""
) -> Iterator[str]:
    """A row for each key, and for those of tables in it that have no place of their own."""
    for key, schema in table.keys.items():
        default = "required" if key in table.required else _default(schema)
        yield f"| `{prefix}{key}` | {_kind(schema)} | {default} | {_meaning(schema)} |\n"
        inner = tables.get(_inner_name(table.name, key, schema))
        if inner and inner.name not in own_place:
            yield from _rows(inner, tables, own_place, f"{prefix}{_step(key, schema)}.")


def _kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    match schema:
        case {"anyOf": alternatives}:
            kinds = [_kind(one) for one in alternatives if one != {"type": "null"}]
            return " or ".join(dict.fromkeys(kinds))
        case {"enum": values}:
            return ", ".join(f"`{toml(value)}`" for value in values)
        case {"const": value}:
            return f"`{toml(value)}`"
        case {"type": "integer" | "number", "minimum": least, "maximum": most} if least == most:
            return f"`{toml(least)}`"
        case {"type": "integer" | "number" as name}:
            return ("whole number" if name == "integer" else "number") + _limits(schema)
        case {"type": "array", "prefixItems": parts}:
            return f"list of {' and '.join(map(_kind, parts))}"
        case {"type": "array", "items": {"type": "integer" | "number" | "string"} as item}:
            return f"list, each {_kind(item)}"
        case {"type": "array"}:
            return "list"
        case {"type": "string"}:
            return "text"
        case {"type": "boolean"}:
            return "`true`, `false`"
    return "table"


def _limits(schema: Mapping[str, Any]) -> str:
    names = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [
        f"{sign} {schema[key]:,}"
        for key, sign in names.items()
        if abs(schema.get(key, GENERAL_LIMIT)) < GENERAL_LIMIT
    ]
    return f" {' and '.join(limits)}" if limits else ""


def _default(schema: Mapping[str, Any]) -> str:
    return f"`{toml(schema['default'])}`" if schema.get("default", {}) != {} else ""


def _meaning(schema: Mapping[str, Any]) -> str:
    text = _plain(schema.get("description", ""))
    if "enum" in schema or schema.get("type") == "boolean":  # all values are shown anyway
        return text
    examples = [
        example
        for example in schema.get("examples", ())
        if example not in (schema.get("default"), {})
    ]
    return text + "".join(f" Example: `{toml(example)}`" for example in examples)


def _plain(text: str) -> str:
    """A description, which is no Markdown but for its code."""
    return re.sub(r"([*_|\[\]])", r"\\\1", text.replace("<", "&lt;"))
