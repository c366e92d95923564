"""The command line: the application, its commands, and how every error becomes a message and an
exit code.

A new command of the kernel is a decorated function in one of the modules of :data:`COMMANDS`; one of
a feature is made by its plug point ``commands`` (:mod:`orchestrator.core.feature`).
"""

from __future__ import annotations

import copy
import inspect
import io
import os
import re
import sys
from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated, NoReturn

import typer
from typer.models import CommandInfo

from orchestrator.commands import (
    control_commands,
    experiment_commands,
    inspection_commands,
    report_command,
    run_command,
)
from orchestrator.commands.shared_options import literal, print_progress
from orchestrator.core.errors import OrchestratorError, SpecError, UsageError
from orchestrator.core.feature import answers
from orchestrator.core.paths import DIRECTORY_REMOVED, current_directory
from orchestrator.core.text import count

PROGRAM = "orchestrator"
DISTRIBUTION = "mujoco-orchestrator"
_EMPTY_OPTION = re.compile(r"--[\w-]+=")
COMMANDS: tuple[tuple[int, typer.Typer], ...] = (
    (20, run_command.app),
    (30, control_commands.app),
    (60, experiment_commands.app),
    (80, inspection_commands.app),
    (90, report_command.app),
)
"""The commands of the kernel, each with its place in ``--help`` among those of features."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0: all jobs succeeded. 1: some jobs did not succeed (`retry` queues them again), or the run "
    "could not continue (the disk is full, the head of the cluster is lost; the same command resumes it). 2: wrong "
    "usage or job file (of a wrong job file, `check` ends with 1). 130: stopped, or jobs are paused; run the "
    "same command again to resume.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _commands() -> list[typer.Typer]:
    """Groups of commands in the order of ``--help``."""
    added = [(feature.rank, group) for feature, group in answers("commands")]
    return [group for _, group in sorted([*COMMANDS, *added], key=itemgetter(0))]


def _name(command: CommandInfo) -> str:
    return command.name or typer.main.get_command_name(getattr(command.callback, "__name__", ""))


def _help(command: CommandInfo) -> str:
    """Its docstring, a line for each paragraph: its own lines are no lines of a terminal."""
    text = inspect.cleandoc(getattr(command.callback, "__doc__", None) or "")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return literal("\n\n".join(paragraphs))


GROUPS = tuple(_commands())
for commands in GROUPS:
    for command in commands.registered_commands:
        command.help = command.help or _help(command)
    app.add_typer(commands)


def application(arguments: Sequence[str]) -> typer.Typer:
    """The application for a command line: with the command alone that its first argument names, as
    making all of them takes longer than some commands; otherwise :data:`app`.
    """
    named = arguments[0] if arguments else None
    commands = [one for group in GROUPS for one in group.registered_commands if _name(one) == named]
    inner = [one for group in GROUPS for one in group.registered_groups if one.name == named]
    if not commands and not inner:
        return app
    chosen = copy.copy(app)
    chosen.registered_commands = commands
    chosen.registered_groups = inner
    return chosen


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from orchestrator.machine import provenance

        print(DISTRIBUTION, provenance.version(DISTRIBUTION) or "(not installed)")
        raise typer.Exit


@app.callback()
def orchestrator(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train many reinforcement-learning policies at once, each in a supervised process on its own
    CPU cores.
    """


def _fail(message: str, code: int) -> NoReturn:
    print_progress(message)
    raise SystemExit(code)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """An empty path would be the current directory, and an empty name of a job the beginning of
    every name.

    :raises UsageError: there is one.
    """
    for number, argument in enumerate(arguments, 1):
        if not argument or _EMPTY_OPTION.fullmatch(argument):
            named = f"{argument} has no value" if argument else f"argument {number} is empty"
            raise UsageError(
                f"{named}; expected a value. Perhaps a variable of the shell in its place is not set"
            )


def main() -> None:
    """Entry point of the program: every :class:`OrchestratorError` becomes its message and its exit
    code.
    """
    # The user's own umask, but nothing is ever writable by everybody.
    users = os.umask(0o077)
    os.umask(users | 0o002)
    # A name that the terminal cannot show is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _refuse_empty(sys.argv[1:])
        application(sys.argv[1:])(prog_name=PROGRAM)
    except SpecError as error:
        _fail(f"{error}\n{count(len(error.problems), 'problem')}; nothing was launched", 2)
    except UsageError as error:
        _fail(f"error: {error}", 2)
    except OrchestratorError as error:
        _fail(f"error: {error}", 1)
    except BrokenPipeError:
        # The reader of standard output has closed it (`… | head`), which is no error.
        from orchestrator.terminal.output import mute

        mute()
        raise SystemExit(141) from None
    except OSError as error:
        if error.filename is None and current_directory() is None:
            _fail(f"error: {DIRECTORY_REMOVED}", 2)
        _fail(f"error: {error.filename or 'the system'}: {error.strerror or error}", 1)
