"""The pages of the site that are made from the repository and from the program; CI builds the site
itself."""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

import orchestrator
from orchestrator.cli import app
from orchestrator.core import feature
from orchestrator.jobfile import json_schema

HOOKS = Path(__file__).resolve().parents[2] / "docs/site"


DECLARED = "(../orchestrator/jobfile/toml_models.py)"


def hook(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, HOOKS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # where dataclasses look for it
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "link", "of_site"),
    [
        ("index.md", "docs/report.md#report-json", "report.md#report-json"),
        ("index.md", "docs/pictures/robots.png", "pictures/robots.png"),
        ("index.md", "docs/decisions.md#files", "decisions.md#files"),
        ("index.md", "CONTRIBUTING.md", "contributing.md"),
        ("tutorial-own-robot.md", "../README.md#two-commands", "index.md#two-commands"),
        ("distributed.md", "../jobs/wide.toml", "jobs/wide.toml.md"),
        ("python.md", "../examples/train_a_folder.ipynb", "examples/train_a_folder.ipynb"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(
    page: str, link: str, of_site: str
) -> None:
    text = "See [what there is]({}) and [elsewhere](https://example.org/a) or [here](#b)."
    assert hook("repository_pages").links_of_site(text.format(link), page) == text.format(of_site)


def test_the_job_file_document_has_a_row_for_every_key() -> None:
    text = hook("key_tables").with_tables((HOOKS.parent / "job-file.md").read_text())
    models = {
        name: model
        for name, model in json_schema()["$defs"].items()
        if not name.startswith("PolicyAnd")
    }
    keys = {key for model in [json_schema(), *models.values()] for key in model["properties"]}
    shown = {
        name.rpartition(".")[2] for name in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    }
    assert keys - shown == set()
    assert "| `nice` | whole number ≥ 0 and ≤ 19 | `0` |" in text
    assert '| `min_free_disk` | `0` or text | `"1 GiB"` |' in text


def test_every_line_of_the_job_file_document_that_stands_for_a_table_becomes_one() -> None:
    document = (HOOKS.parent / "job-file.md").read_text()
    text = hook("key_tables").with_tables(document)
    assert re.findall(r"^\[Keys of .*", text, re.MULTILINE) == []
    tables = re.findall(r"\| key \| value \| default \| meaning \|\n((?:\|.*\n)+)", text)
    assert len(tables) == len(re.findall(r"^\[Keys of ", document, re.MULTILINE))
    rows = [row for table in tables for row in table.splitlines()]
    assert [row for row in rows if row.count(" | ") != 3 and not row.startswith("|---")] == []


def test_a_table_without_a_line_of_its_own_is_within_the_one_that_holds_it() -> None:
    with_tables = hook("key_tables").with_tables
    alone = with_tables(f"[Keys of a job]{DECLARED}")
    assert "| `resources` | table |" in alone
    assert "| `resources.nice` | whole number" in alone
    both = with_tables(f"[Keys of a job]{DECLARED}\n\n[Keys of `resources`]{DECLARED}")
    assert "| `resources.nice` |" not in both
    assert "| `nice` | whole number" in both


def test_keys_of_jobs_alone_stand_before_those_of_defaults() -> None:
    text = hook("key_tables").with_tables(f"[Keys of a job]{DECLARED}")
    names = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert names[:4] == ["name", "xml", "after", "preset"]


def test_reference_has_every_command_and_every_public_name() -> None:
    options, names = hook("reference_pages").options(), hook("reference_pages").python_interface()
    assert [
        name
        for name in typer.main.get_group(app).commands
        if f"\n## `orchestrator {name}`\n" not in options
    ] == []
    assert "--max-parallel" in options
    assert [
        name for name in orchestrator.__all__ if f"\n::: orchestrator.{name}\n" not in names
    ] == []


def test_reference_has_the_type_of_whatever_a_plug_point_takes_or_gives() -> None:
    tree = ast.parse(Path(feature.__file__).read_text())
    (for_types,) = (node for node in tree.body if isinstance(node, ast.If))
    types = {
        f"{statement.module}.{alias.name}"
        for statement in for_types.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    text = hook("reference_pages").plug_points()
    assert types
    assert [name for name in sorted(types) if f"\n::: {name}\n" not in text] == []


def test_guide_to_features_has_every_plug_point() -> None:
    guide = (HOOKS.parent / "extending.md").read_text()
    points = feature.Feature.__dataclass_fields__.keys() - {"name", "about", "rank"}
    assert [point for point in points if f"\n| `{point}` | " not in guide] == []
