"""Features that other packages add."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator.core import feature

REPOSITORY = Path(__file__).parents[3]


PACKAGE = """
import typer
from orchestrator.core.feature import Feature

app = typer.Typer()


@app.command("greet")
def greet() -> None:
    \"\"\"Greet whoever is there.\"\"\"
    print("hello")


FEATURE = Feature(name="greeting", about="It greets.", commands=lambda: app)
"""


def install(folder: Path, code: str, entry: str = "", name: str = "greeting") -> None:
    """As pip does it: a package, and its entry points beside it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}_package.py").write_text(code)
    facts = folder / f"{name}_package-1.0.dist-info"
    facts.mkdir()
    entries = entry or f"{name} = {name}_package"
    (facts / "entry_points.txt").write_text(
        f"[console_scripts]\nother = other\n\n[orchestrator.features]\n{entries}\n"
    )


def search_path(folder: Path) -> str:
    """Of a process: ``folder``, and the program under test, whatever else is installed."""
    return os.pathsep.join([str(folder), str(REPOSITORY)])


def orchestrator(
    folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": search_path(folder), "XDG_STATE_HOME": str(folder / "state")}
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
    install(tmp_path, PACKAGE)
    assert (done := orchestrator(tmp_path, "greet")).stdout == "hello\n", done.stderr


def test_installed_features_are_chosen_by_a_variable_and_traced_by_another(tmp_path: Path) -> None:
    install(tmp_path, PACKAGE)
    assert orchestrator(tmp_path, "greet", ORCHESTRATOR_FEATURES="other").returncode == 2
    done = orchestrator(
        tmp_path,
        "greet",
        ORCHESTRATOR_FEATURES="other, greeting",
        ORCHESTRATOR_TRACE_FEATURES="1",
    )
    assert done.stdout == "hello\n"


def test_entry_points_are_read_as_others_write_them(tmp_path: Path) -> None:
    install(tmp_path, PACKAGE, entry="# mine\ngreeting = greeting_package : FEATURE")
    found = list(feature._in_group(tmp_path / "greeting_package-1.0.dist-info/entry_points.txt"))
    assert found == [("greeting", "greeting_package")]
    assert orchestrator(tmp_path, "greet").stdout == "hello\n"


def test_names_of_the_python_interface_are_loaded_when_they_are_first_used(tmp_path: Path) -> None:
    code = (
        "from orchestrator.core.feature import Feature\n"
        "names = {'Bell': 'bells'}\n"
        "FEATURE = Feature(name='greeting', about='It greets.', python=lambda: names)\n"
    )
    install(tmp_path, code)
    (tmp_path / "bells.py").write_text("print('loaded')\nBell = 3\n")
    program = """
import orchestrator
assert "Bell" in dir(orchestrator)
assert "Bell" in orchestrator.__all__
print(hasattr(orchestrator, "Horn"))
print(orchestrator.Bell)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONPATH": search_path(tmp_path),
            "ORCHESTRATOR_FEATURES": "greeting",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["False", "loaded", "3"], done.stderr
