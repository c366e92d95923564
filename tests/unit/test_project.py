"""Documents, example files and help texts say what the code does."""

import re
import tomllib
from pathlib import Path

import typer

from orchestrator.cli import app
from orchestrator.jobfile import json_schema

ROOT = Path(__file__).resolve().parents[2]


def shell_commands(text: str) -> list[str]:
    return [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()
    ]


def test_readme_has_two_commands_and_ci_runs_the_second_word_for_word() -> None:
    first, second = shell_commands((ROOT / "README.md").read_text())
    assert first.endswith("python -m orchestrator run jobs/robots.toml")
    assert second.endswith("python -m pytest")
    assert second in (ROOT / ".ci/run").read_text().splitlines()


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited == [project["version"]]


def test_the_document_of_the_job_file_names_every_key_of_its_two_main_tables() -> None:
    text = (ROOT / "docs/job-file.md").read_text()
    schema = json_schema()
    keys = {*schema["properties"], *schema["$defs"]["Entry"]["properties"]}
    assert [
        key for key in sorted(keys) if f"`{key}`" not in text and f'`"{key}"`' not in text
    ] == []


def test_documentation_names_every_command() -> None:
    text = (ROOT / "docs/commands.md").read_text()
    names = typer.main.get_group(app).commands
    assert [name for name in names if f"`{name}" not in text] == []


def test_the_readme_names_every_document() -> None:
    text = (ROOT / "README.md").read_text()
    names = sorted(f"docs/{document.name}" for document in ROOT.glob("docs/*.md"))
    assert [name for name in names if f"({name}" not in text] == []


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert "://" in target or (document.parent / target).exists(), (
                f"{document.name}: {target}"
            )
