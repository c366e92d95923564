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
    own = {"PYTHONPATH": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    chosen = {"ORCHESTRATOR_FEATURES": "greeting"} | variables
    environment = {**os.environ, **own, **chosen}
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
    other = orchestrator(tmp_path, "greet", ORCHESTRATOR_FEATURES="other")
    assert other.returncode == 2
    assert other.stderr.startswith("warning: the feature other is not installed, and ORCHESTR")
    done = orchestrator(
        tmp_path,
        "greet",
        ORCHESTRATOR_FEATURES="other, greeting",
        ORCHESTRATOR_TRACE_FEATURES="1",
    )
    assert done.stdout == "hello\n"
    assert "features: greeting is asked for commands" in done.stderr.splitlines()


BROKEN = {
    "import": ("import no_such_module", "cannot be loaded: ModuleNotFoundError"),
    "exit": ("raise SystemExit('needs more')", "cannot be loaded: SystemExit: needs more"),
    "kind": ("FEATURE = 3", "cannot be loaded: its FEATURE is no orchestrator.core.feature.Fea"),
    "nothing": ("", "cannot be loaded: AttributeError"),
    "lines": ("raise ValueError('a\\n\\x1b[31mb')", "cannot be loaded: ValueError: a "),
    "version": (package(api=feature.API + 1), f"and this program has {feature.API}"),
    "name": (package(name="other"), "the name other; expected that of its entry point"),
    "call": (package().replace("lambda: app", "lambda: 1 / 0"), "no commands: ZeroDivisionError"),
    "command": (package(command="run"), "adds no commands: there is run already"),
    "case": (package().replace('"greet"', "").replace("greet(", "Status("), "there is status alr"),
    "group": (package(command="search"), "adds no commands: there is search already"),
    "groups": (
        package()
        .replace(
            "\n\nFEATURE", "\nother = typer.Typer()\nother.add_typer(app, name='run')\nFEATURE"
        )
        .replace("lambda: app", "lambda: other"),
        "adds no commands: there is run already",
    ),
    "argument": (package().replace("greet()", "greet(x: 'Nope')"), "adds no commands: NameError"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_feature_that_cannot_be_used_is_named_and_nothing_else_is_broken(
    what: str, tmp_path: Path
) -> None:
    code, why = BROKEN[what]
    install(tmp_path, f"print('welcome')\n{code}")
    done = orchestrator(tmp_path, "list")
    assert (done.returncode, done.stdout) == (0, "no experiment was started here\n")
    [printed, warning] = done.stderr.splitlines()
    assert printed == "welcome"
    assert warning.startswith("warning: the feature greeting")
    assert why in warning
    assert "\x1b" not in warning


def test_no_two_features_have_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = feature.features()[0].name
    install(tmp_path, package(name=own), entry=f"{own} = greeting_package")
    done = orchestrator(tmp_path, "list", ORCHESTRATOR_FEATURES=own)
    assert done.stdout == "no experiment was started here\n"
    assert f"the feature {own} (greeting_package) cannot be loaded: there is a f" in done.stderr


def test_the_help_of_a_command_is_its_own_or_its_docstring(tmp_path: Path) -> None:
    install(tmp_path, package().replace('command("greet")', 'command("greet", help="Own text.")'))
    assert "Own text." in orchestrator(tmp_path, "--help").stdout


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
