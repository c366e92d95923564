"""Reference pages made from the program itself, a hook of MkDocs: keys of the job file, options,
Python interface.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

import orchestrator
from orchestrator.cli import PROGRAM, app
from orchestrator.experiment.job_file_text import toml
from orchestrator.jobfile import json_schema

GENERAL_LIMIT = 1e12
"""Of numbers without a smaller one."""
KEYS = f"""# All keys of the job file

Made from the models that check a job file. [The job file](../job-file.md) explains what the keys do together.
Numbers are at most {GENERAL_LIMIT:,.0f} unless a smaller limit is given.
`python -m orchestrator schema` prints the same as JSON Schema.
"""
OPTIONS = (
    "# All options of the commands\n\nMade from the commands "
    "themselves. [Commands](../commands.md) is the overview.\n"
)
PYTHON = """# Python interface

Made from docstrings. [From Python](../python.md) is the guide, with examples.
"""
PLUG_POINTS = """# Plug points

Made from docstrings. [Add a feature of your own](../extending.md) is the guide.
"""
ROLE = re.compile(r":(?:class|func|meth):(?=<code>)")
"""The role of a name in a docstring, which Markdown leaves as it is."""
SHORTENED = re.compile(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+\n")
"""A list of commands with the first words of their help; docs/commands.md has a better one."""
LITERAL_FOLLOWS = "<p>::</p>\n"


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the pages."""
    for name, text in (
        ("job-file-keys", job_file_keys()),
        ("options", options()),
        ("python", python_interface()),
        ("plug-points", plug_points()),
    ):
        files.append(File.generated(config, f"reference/{name}.md", content=text))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # called by name
    """Remove what Sphinx would understand in a docstring, and Markdown does not."""
    return (
        ROLE.sub("", html).replace(LITERAL_FOLLOWS, "")
        if page.file.src_uri in ("reference/python.md", "reference/plug-points.md")
        else html
    )


def job_file_keys() -> str:
    """A section for each table of a job file, with a row for each of its keys."""
    schema = json_schema()
    return KEYS + "".join(_section(table) for table in _tables(schema, "", schema["$defs"]))


def _tables(
    schema: Mapping[str, Any], path: str, models: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A table with its path, and those in it."""
    yield path, schema
    jobs_first = sorted(schema["properties"].items(), key=lambda item: item[0] != "jobs")
    for key, value in jobs_first:
        inner = value.get("items", value.get("additionalProperties", value))
        if (
            key != "defaults" and isinstance(inner, Mapping) and "$ref" in inner
        ):  # defaults: keys of a job
            name = f"{path}.{key}".removeprefix("jobs.").removeprefix(".")
            named = f"{name}.NAME" if "additionalProperties" in value else name
            yield from _tables(models[inner["$ref"].rpartition("/")[2]], named, models)


def _section(table: tuple[str, Mapping[str, Any]]) -> str:
    path, schema = table
    title = {"": "Top level", "jobs": "A job: `[[jobs]]` and `[defaults]`"}.get(path, f"`{path}`")
    required = schema.get("required", ())
    rows = "".join(
        f"| `{key}` | {_kind(value)} | {'required' if key in required else _default(value)} | {_meaning(value)} |\n"
        for key, value in schema["properties"].items()
    )
    text = _plain(schema["description"])
    return (
        f"\n## {title}\n\n{text}\n\n| key | value | default | meaning |\n|---|---|---|---|\n{rows}"
    )


def _kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    match schema:
        case {"anyOf": alternatives}:
            return " or ".join(dict.fromkeys(map(_kind, alternatives)))
        case {"enum": values}:
            return ", ".join(f"`{toml(value)}`" for value in values)
        case {"const": value}:
            return f"`{toml(value)}`"
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


def options() -> str:
    """Every command with its arguments and options, from the application of typer."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(
        obj=command, ctx=typer.Context(command, info_name=PROGRAM), name=PROGRAM
    )
    return OPTIONS + SHORTENED.sub("", text.partition("\n")[2]).replace(r"\[", "[")


def python_interface() -> str:
    """A directive of mkdocstrings for each public name."""
    errors = [
        name for name in orchestrator.__all__ if name.endswith(("Error", "Interrupted", "Warning"))
    ]
    functions = [name for name in orchestrator.__all__ if name.islower()]
    classes = [name for name in orchestrator.__all__ if name not in {*errors, *functions}]
    sections = {"Functions": functions, "Classes": classes, "Exceptions and warnings": errors}
    return PYTHON + "".join(
        f"\n## {title}\n\n" + "".join(f"::: orchestrator.{name}\n\n" for name in names)
        for title, names in sections.items()
    )


def plug_points() -> str:
    """What a feature has, and the types of what it gives."""
    names = (
        "core.feature.Feature",
        "executors.kinds.ExecutorKind",
        "executors.kinds.ExecutorOption",
        "executors.kinds.BatchJobs",
        "executors.base.BackendSettings",
        "executors.base.Backend",
        "executors.base.Executor",
        "executors.base.Launch",
        "keys.value_types.TomlTable",
        "keys.value_types.key",
        "keys.feature_tables.FeatureTable",
        "jobfile.job_source.JobSource",
        "jobfile.job_source.Forecast",
        "keys.feature_tables.JobTable",
        "keys.feature_tables.JobKey",
        "jobfile.job_table_rules.JobTableRules",
        "keys.problems.Problems",
        "core.job_parts.JobPart",
        "core.job_parts.News",
        "core.job_parts.Mark",
        "core.robot_sources.RobotSource",
        "core.robot_sources.RobotFormat",
        "worker.robots.converted_robot.ConvertedRobot",
        "core.robot_sources.RobotCollection",
        "worker.training.loop_parts.LoopPart",
        "worker.training.loop_parts.LoopContext",
        "experiment.beside_run.BesideRun",
        "experiment.beside_run.RunFacts",
        "experiment.run_end.RunOutcome",
        "experiment.run_watch.RunWatch",
        "experiment.run_watch.LiveSection",
        "experiment.run_watch.LiveChart",
        "experiment.run_watch.LiveSeries",
        "experiment.run_watch.LiveTable",
        "experiment.run_watch.LiveColumn",
        "supervisor.events.News",
        "supervisor.events.Note",
        "experiment.beside_run.RunProblem",
        "experiment.begun_source.BegunSource",
        "experiment.policy_process.PlayRequest",
        "core.messages.MeasurementRequest",
        "worker.rendering.trained_policy.ReadPolicy",
        "machine.doctor_checks.Finding",
        "machine.topology.Machine",
        "core.paths.RunPaths",
        "ledger.Ledger",
        "report.document.AddedSections",
        "report.document.ShownJobs",
        "report.document.Document",
        "report.document.Section",
        "report.document.Headline",
        "report.document.Text",
        "report.document.Table",
        "report.document.Cell",
        "report.document.Figure",
    )
    return PLUG_POINTS + "".join(f"\n::: orchestrator.{name}\n" for name in names)
