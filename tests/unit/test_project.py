"""Documents, example files and help texts say what the code does."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from orchestrator.cli import app
from orchestrator.core.feature import features
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


def test_what_a_feature_names_as_its_own_is_there_and_no_other_feature_names_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    owners: dict[str, str] = {}
    names = {feature.name for feature in features()}
    for feature in features():
        assert {*feature.extras} <= extras.keys(), feature.name
        for place in feature.belongings:
            is_gone = Path(place).parts[:2] == ("tests", "features") and (
                Path(place).parts[2] not in names
            )  # with the other feature whose tests it is among
            assert is_gone or (ROOT / place).exists(), f"{feature.name}: {place}"
        for one in (*feature.belongings, *feature.extras):
            assert owners.setdefault(one, feature.name) == feature.name, one
    assert extras.keys() - owners.keys() == {"docs", "dev"}, "those of the kernel"


def imported_by(file: Path, *, everywhere: bool) -> Iterator[str]:
    """Names of modules, and of what is taken from them. :param everywhere: in functions, too."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.nightly
def test_what_imports_a_feature_or_what_belongs_to_it_belongs_to_it() -> None:
    """So that it goes with the feature. Types of tests are not checked, so these may import it in a
    function that is run only where the feature is there.
    """
    benchmarks = set((ROOT / "benchmarks").rglob("*.py"))
    files = benchmarks | set((ROOT / "tests").rglob("*.py"))
    imports = {
        file: [f"{name}." for name in imported_by(file, everywhere=file in benchmarks)]
        for file in files
    }
    for feature in features():
        own = [f"orchestrator/features/{feature.name}", *feature.belongings]
        modules = tuple(f"{place.removesuffix('.py').replace('/', '.')}." for place in own)
        strangers = [
            file.relative_to(ROOT).as_posix()
            for file, names in imports.items()
            if not any(file.is_relative_to(ROOT / place) for place in own)
            and any(name.startswith(modules) for name in names)
        ]
        assert strangers == [], feature.name
