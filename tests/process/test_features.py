"""Features: the program's own, those of others, and those that cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core import feature

PACKAGE = """
import typer
from orchestrator.core.feature import Feature

app = typer.Typer()


@app.command("{command}")
def greet() -> None:
    \"\"\"Greet whoever is there.\"\"\"
    print("hello")


FEATURE = Feature(name="{name}", about="It greets.", commands=lambda: app, api={api})
"""


def install(folder: Path, code: str, entry: str = "greeting = greeting_package") -> None:
    """As pip does it: a package, and its entry points beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "greeting_package.py").write_text(code)
    facts = folder / "greeting_package-1.0.dist-info"
    facts.mkdir()
    entries = f"[console_scripts]\nother = other\n\n[orchestrator.features]\n{entry}\n"
    (facts / "entry_points.txt").write_text(entries)


def package(name: str = "greeting", command: str = "greet", api: int = feature.API) -> str:
    return PACKAGE.format(name=name, command=command, api=api)


def orchestrator(
    folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    if "ORCHESTRATOR_FEATURES" not in variables:
        del environment["ORCHESTRATOR_FEATURES"]
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_installed_package_adds_a_command(tmp_path: Path) -> None:
    install(tmp_path, package())
    assert (done := orchestrator(tmp_path, "greet")).stdout == "hello\n", done.stderr
    assert "Greet whoever is there." in orchestrator(tmp_path, "--help").stdout


def test_installed_features_are_chosen_by_a_variable_and_traced_by_another(tmp_path: Path) -> None:
    install(tmp_path, package())
    assert orchestrator(tmp_path, "greet", ORCHESTRATOR_FEATURES="other").returncode == 2
    done = orchestrator(
        tmp_path,
        "greet",
        ORCHESTRATOR_FEATURES="other, greeting",
        ORCHESTRATOR_TRACE_FEATURES="1",
    )
    assert done.stdout == "hello\n"
    assert "features: greeting is asked for commands" in done.stderr.splitlines()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_module", "cannot be loaded: ModuleNotFoundError"),
        ("FEATURE = 3", "cannot be loaded: its FEATURE is no orchestrator.core.feature.Feature"),
        ("", "cannot be loaded: AttributeError"),
        (package(api=feature.API + 1), f"and this program has {feature.API}"),
        (package(name="verify"), "there is a feature named verify already"),
        (package(command="run"), "adds no command: there is run already"),
        (
            package().replace("lambda: app", "lambda: 1 / 0"),
            "adds no command: ZeroDivisionError",
        ),
    ],
)
def test_a_feature_that_cannot_be_used_is_named_and_nothing_else_is_broken(
    code: str, why: str, tmp_path: Path
) -> None:
    install(tmp_path, code)
    done = orchestrator(tmp_path, "list")
    assert (done.returncode, done.stdout) == (0, "no experiment was started here\n")
    [warning] = done.stderr.splitlines()
    assert warning.startswith("warning: the feature greeting")
    assert why in warning


def test_entry_points_are_read_as_others_write_them(tmp_path: Path) -> None:
    install(tmp_path, package(), entry="# mine\ngreeting = greeting_package : FEATURE")
    found = list(feature._in_group(tmp_path / "greeting_package-1.0.dist-info/entry_points.txt"))
    assert found == [("greeting", "greeting_package")]
    assert orchestrator(tmp_path, "greet").stdout == "hello\n"


def test_what_belongs_to_a_feature_is_there_and_says_what_it_is_for() -> None:
    root = Path(__file__).parents[2]
    assert feature.problems() == ()
    for one in feature.features():
        assert one.about.endswith(".")
        assert [path for path in one.belongings if not (root / path).exists()] == []
