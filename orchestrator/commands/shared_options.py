"""Arguments and options that several commands take, and what their functions share."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from orchestrator.core.text import plain

LARGEST_MAX_PARALLEL = 999_999
"""The largest number of jobs at once that can be asked for."""

RunDir = Annotated[Path, Argument(metavar="RUN_DIR", help="A run directory, such as runs/robots.")]
FoundRunDir = Annotated[
    Path | None,
    Argument(
        metavar="[RUN_DIR]",
        help="A run directory, such as runs/robots.",
        show_default="the only one here or in runs/; if there are several, your experiments are listed",
    ),
]
ONE_JOB = "A job, the beginning of its name, or a pattern that it alone matches."
JobName = Annotated[str, Argument(metavar="JOB", help=ONE_JOB)]
Checkpoint = Annotated[
    str | None,
    Option(
        metavar="N|latest|PATH",
        help="The checkpoint whose policy is taken: its env_steps, the latest, or a file.",
        show_default="the trained policy",
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print JSON, and nothing else, on standard output.")]
Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of all jobs, such as ppo.n_steps=512, whatever the job file says; a matrix keeps its values. "
        "May be repeated.",
    ),
]
Learner = Annotated[
    str | None,
    Option(
        help="Learner of all jobs: auto, fast or sb3.", show_default="the learner in the job file"
    ),
]


def parse_max_parallel(text: str) -> int | None:
    """``max_parallel`` as a number; None for what is no number of jobs."""
    digits = text.lstrip("0")
    if not (digits.isdecimal() and digits.isascii()):
        return None
    # Compared by length first: Python reads no number of thousands of digits.
    if len(digits) > len(str(LARGEST_MAX_PARALLEL)):
        return None
    return int(digits)


def overrides(settings: list[str] | None, learner: str | None) -> dict[str, Any]:
    """Settings of all jobs, by dotted key, from ``--set`` and ``--learner``."""
    from orchestrator.jobfile import parse_override

    chosen = {} if learner is None else {"learner": learner}
    return dict(map(parse_override, settings or [])) | chosen


@contextlib.contextmanager
def stoppable(message: str) -> Iterator[None]:
    """Ctrl-C prints ``message`` on standard error and ends the command with exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print_progress(message)
        raise typer.Exit(130) from None


@contextlib.contextmanager
def interruptible(message: str) -> Iterator[None]:
    """As :func:`stoppable`, for a command that has no handlers of its own for signals."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by __main__; here a message follows
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with stoppable(message):
        yield


def print_json(facts: Any) -> None:
    print_text(json.dumps(facts, indent=1, ensure_ascii=False))


def literal(text: str) -> str:
    """``text`` for ``--help``, where brackets would be a style of Rich."""
    return text.replace("[", r"\[")


def print_text(text: str) -> None:
    """Print a result. It may hold names and messages, which must not control the terminal."""
    print(plain(text, keep="\n"))


def print_progress(text: str) -> None:
    """Print on standard error, at once: standard output is for the result."""
    with contextlib.suppress(OSError):  # nobody reads it
        print(plain(text, keep="\n"), file=sys.stderr, flush=True)
