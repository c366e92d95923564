"""The table ``[notify]``: programs of the user that are started when something happens."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Predicate

from orchestrator.keys.feature_tables import FeatureTable
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import Expected, TomlTable, key

Command = Annotated[
    list[Annotated[str, Predicate(lambda text: "\0" not in text)]] | None,
    Predicate(lambda command: command is None or bool(command and command[0].strip())),
    Expected(
        'a list of a program and its arguments, such as ["mail", "-s", "done", "me@example.org"]; no shell'
    ),
]


class NotifyTable(TomlTable):
    """Programs that are started when something happens, each a list of the program and its
    arguments; no shell.
    """

    on_end: Command = key(
        None,
        "Program to start when the run ends, in whatever way.",
        ["mail", "-s", "The experiment has ended", "me@example.org"],
    )
    on_failure: Command = key(
        None, "Program to start when a job has FAILED.", ["notify-send", "A job has failed"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Programs with their arguments, each to be started without a shell; empty: none."""

    on_end: tuple[str, ...] = ()
    on_failure: tuple[str, ...] = ()

    @property
    def commands(self) -> Mapping[str, tuple[str, ...]]:
        """Those that are set, by key."""
        both = {"on_end": self.on_end, "on_failure": self.on_failure}
        return {name: command for name, command in both.items() if command}


def read(table: Mapping[str, Any], _: Problems) -> Notify:
    return Notify(**{name: tuple(command or ()) for name, command in table.items()})


def lines(notify: Notify) -> Iterator[str]:
    for name, command in notify.commands.items():
        yield f"notify.{name}: {shlex.join(command)}"


def facts(notify: Notify) -> dict[str, list[str]]:
    return {name: list(command) for name, command in notify.commands.items()}


TABLE = FeatureTable(
    name="notify",
    about="Programs to start at the end and when a job fails.",
    model=NotifyTable,
    read=read,
    lines=lines,
    facts=facts,
)
