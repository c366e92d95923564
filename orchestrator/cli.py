"""The command line: the application, its commands, and how every error becomes a message and an
exit code.

A new command is a decorated function in one of the modules of :data:`COMMANDS`, or a new module
named there.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from orchestrator.commands import (
    authoring_commands,
    cluster_commands,
    control_commands,
    experiment_commands,
    inspection_commands,
    measurement_commands,
    run_command,
    search_commands,
    track_commands,
    web_commands,
)
from orchestrator.core.errors import OrchestratorError, SpecError, UsageError
from orchestrator.core.paths import DIRECTORY_REMOVED, current_directory
from orchestrator.core.text import count

PROGRAM = "orchestrator"
DISTRIBUTION = "mujoco-orchestrator"
_EMPTY_OPTION = re.compile(r"--[\w-]+=")
COMMANDS = (
    *(authoring_commands, run_command, control_commands),
    *(
        search_commands,
        track_commands,
        experiment_commands,
        web_commands,
        inspection_commands,
        measurement_commands,
    ),
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0: all jobs succeeded. 1: some jobs did not succeed (`retry` queues them again), or the run "
    "could not continue (the disk is full, the head of the cluster is lost; the same command resumes it). 2: wrong "
    "usage or job file (of a wrong job file, `check` ends with 1). 130: stopped, or jobs are paused; run the "
    "same command again to resume.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in COMMANDS:
    for (
        command
    ) in module.app.registered_commands:  # lines of a docstring are no lines of a terminal
        paragraphs = (
            inspect.cleandoc(command.callback.__doc__ or "").split("\n\n")
            if command.callback
            else []
        )
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.add_typer(module.app)
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(search_commands.group, name="search")


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
    from orchestrator.terminal.background_output import print_last

    print_last(message)
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
    os.umask(
        os.umask(0o077) | 0o002
    )  # the user's own umask, but nothing is ever writable by everybody
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a name that the terminal cannot show is no reason to fail
    try:
        _refuse_empty(sys.argv[1:])
        app(prog_name=PROGRAM)
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
