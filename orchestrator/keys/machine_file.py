"""``/etc/orchestrator.toml``: what the administrator of a machine gives all of its users as defaults. It
is optional, as each of its keys.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from orchestrator.core.errors import Problem, SpecError
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.processes.environment_variables import MACHINE_FILE_VARIABLE
from orchestrator.keys.messages import Layout, message_for
from orchestrator.keys.problems import Problems, place
from orchestrator.keys.value_types import Expected, FreeDisk, Nice, TomlTable, Whole

FILE = Path("/etc/orchestrator.toml")
LARGEST_BYTES = 1 << 16
MOST_CORES = 100_000


class MachineFile(TomlTable):
    """Its keys; None: the file does not say it."""

    nice: Nice | None = None
    """As ``resources.nice`` of jobs."""
    min_free_disk: FreeDisk | None = None
    """As ``resources.min_free_disk`` of jobs; here in MiB."""
    cores_per_user: (
        Annotated[
            int, Field(ge=1, le=MOST_CORES), Whole, Expected("a whole number of cores from 1 on")
        ]
        | None
    ) = None
    """Cores that the jobs of one user hold together, unless ``max_parallel`` is a number."""

    @property
    def resources(self) -> dict[str, Any]:
        """The keys of ``resources`` of jobs that have another default by it."""
        return self.model_dump(include={"nice", "min_free_disk"}, exclude_none=True)

    def __str__(self) -> str:
        """For people: ``nice = 10, cores_per_user = 16``."""
        values = self.model_dump(exclude_none=True)
        if self.min_free_disk is not None:
            values["min_free_disk"] = f"{self.min_free_disk} MiB"
        return ", ".join(f"{key} = {value}" for key, value in values.items()) or "no default"


LAYOUT = Layout(top=MachineFile, settings=MachineFile, job=MachineFile)


def machine_file() -> Path:
    """Where it is, or would be: the fixed path, or the one that the environment names."""
    return Path(os.environ.get(MACHINE_FILE_VARIABLE) or FILE)


def read_machine_file() -> MachineFile:
    """What it says; nothing where there is none.

    :raises SpecError: it cannot be read, or has something else in it.
    """
    path = machine_file()
    try:
        content = read_regular(path, LARGEST_BYTES)
    except FileNotFoundError:
        return MachineFile()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refusal(path, [Problem(where="", message=f"cannot be read: {reason}")]) from None
    try:
        data = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _refusal(path, [Problem(where="", message=f"is not valid TOML: {error}")]) from None
    try:
        return MachineFile.model_validate(data)
    except ValidationError as error:
        problems = Problems()
        for details in error.errors(include_url=False):
            location = details["loc"][:1]  # behind it stands which form a value was taken for
            problems.add(place(*location), message_for(LAYOUT, location, details)[0])
        raise _refusal(path, problems.in_order()) from None


def _refusal(path: Path, problems: list[Problem]) -> SpecError:
    advice = "it holds defaults for all users of this machine; ask its administrator to correct it"
    return SpecError(str(path), problems, advice)
