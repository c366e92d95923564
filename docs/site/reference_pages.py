"""Reference pages made from the program itself, a hook of MkDocs: options, Python interface, plug
points.
"""

from __future__ import annotations

import re

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

import orchestrator
from orchestrator.cli import PROGRAM, app

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
        "executors.executor.ExecutorSettings",
        "executors.executor.Executor",
        "executors.executor.OpenedExecutor",
        "executors.launcher.Launcher",
        "executors.launcher.Launch",
        "keys.value_types.TomlTable",
        "keys.value_types.key",
        "keys.feature_tables.FeatureTable",
        "jobfile.job_source.JobSource",
        "jobfile.job_source.Forecast",
        "keys.feature_tables.JobTable",
        "jobfile.job_table_rules.JobTableRules",
        "jobfile.merged_job.MergedJob",
        "keys.problems.Problems",
        "core.job_parts.JobPart",
        "core.job_parts.News",
        "core.robot_sources.RobotSource",
        "core.robot_sources.RobotFormat",
        "worker.robots.converted_robot.ConvertedRobot",
        "core.robot_sources.RobotCollection",
        "worker.training.loop_parts.LoopPart",
        "worker.training.loop_parts.LoopContext",
        "server.companions.Companion",
        "server.companions.RunFacts",
        "client.run_watch.RunWatch",
        "client.run_watch.LiveSection",
        "client.run_watch.LiveChart",
        "client.run_watch.LiveSeries",
        "client.run_watch.LiveTable",
        "client.run_watch.LiveColumn",
        "client.events.News",
        "client.events.Note",
        "experiment.begun_source.BegunSource",
        "experiment.policy_process.PlayRequest",
        "worker.training.trained_policy.ReadPolicy",
        "machine.doctor.Finding",
        "machine.topology.Machine",
        "core.paths.RunPaths",
        "ledger.Ledger",
        "report.document.Section",
        "report.document.Headline",
        "report.document.Text",
        "report.document.Table",
        "report.document.Cell",
        "report.document.Figure",
    )
    return PLUG_POINTS + "".join(f"\n::: orchestrator.{name}\n" for name in names)
