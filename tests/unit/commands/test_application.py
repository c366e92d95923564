"""The application that a command line gets."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from orchestrator.cli import app, application

ALL: dict[str, Any] = dict(typer.main.get_group(app).commands)


@pytest.mark.parametrize("name", ALL)
def test_a_command_that_is_named_is_made_alone_and_as_among_all(name: str) -> None:
    commands = typer.main.get_group(application([name, "x"])).commands
    assert list(commands) == [name]
    assert facts(commands[name]) == facts(ALL[name])


def facts(command: Any) -> dict[str, Any]:
    """What a command says of itself and takes; that of its own commands, where it is a group."""
    return {
        "kind": type(command),
        "help": command.help,
        "epilog": command.epilog,
        "settings": command.context_settings,
        "parameters": [(one.name, one.opts, one.required) for one in command.params],
        "commands": {
            name: facts(inner) for name, inner in getattr(command, "commands", {}).items()
        },
    }
