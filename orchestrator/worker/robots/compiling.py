"""Compiling a copied robot, with MuJoCo's messages referring to the user's own files and lines."""

from __future__ import annotations

import contextlib
import io
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import mujoco

from orchestrator.core.processes.address_space import with_address_limit
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.robots.bundle import Bundle
from orchestrator.worker.robots.unfit import UnfitError

_WARNING = "MuJoCo warning: "
_LINE = re.compile(r"line(?: number=)?\s*([1-9]\d*)", re.IGNORECASE)


def compile_copy(copy: Path, bundle: Bundle) -> tuple[mujoco.MjModel, list[str]]:
    """Compile the copy of a robot, which is what will be trained. Return the model and MuJoCo's
    warnings.

    :param copy: its main MJCF.
    :raises UnfitError: MuJoCo cannot compile it.
    """
    output = io.StringIO()  # for MuJoCo's warnings
    try:
        with contextlib.redirect_stderr(output):
            model = load_model(copy)
    except ValueError as error:
        message = bundle.with_users_paths(str(error), copy).strip()
        if "allocate memory" in message:
            raise MemoryError from None
        # The last line: an error inside an include ends with the line of the <include>.
        lines = _LINE.findall(message)
        place = f"{bundle.xml}, line {lines[-1]}" if lines else str(bundle.xml)
        raise UnfitError(f"{place}: MuJoCo cannot compile it: {message}") from None
    said = output.getvalue()
    if "contains a 'NaN'" in said:
        raise UnfitError(f"{bundle.xml}: contains NaN, expected a number")
    lines = [" ".join(text.split()) for text in said.split(_WARNING)]
    # What is deprecated still works.
    told = [f"MuJoCo says: {text}" for text in lines if text and "deprecated" not in text]
    return model, list(dict.fromkeys(told))


def too_large(memory_mib: int | None) -> str:
    """The message for a robot that needs more memory than is available."""
    limit = f"more than the {memory_mib:,} MiB available" if memory_mib else "too much"
    return (
        f"making and simulating it takes {limit} of memory; check <size memory=…> and <replicate>"
    )


@contextlib.contextmanager
def guard_compiler(xml: Path, memory_mib: int | None) -> Iterator[None]:
    """Limit the memory, and turn MuJoCo's fatal errors into :class:`UnfitError`."""
    try:
        with memory_limit(memory_mib):
            yield
    except mujoco.FatalError as error:
        problem = with_address_limit(f"MuJoCo cannot simulate it: {error}")
    except MemoryError:
        problem = too_large(memory_mib)
    except RuntimeError as error:
        # So MuJoCo's compiler says that it has run out of memory.
        if "unknown exception" not in str(error):
            raise
        problem = too_large(memory_mib)
    else:
        return
    raise UnfitError(f"{xml}: {problem}", process_exits=True)


@contextlib.contextmanager
def memory_limit(memory_mib: int | None) -> Iterator[None]:
    """Limit the address space: allocations beyond it fail with :class:`MemoryError` or MuJoCo's own
    error.
    """
    if memory_mib is None:
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    lowest = now + (memory_mib << 20)
    if limits[0] != resource.RLIM_INFINITY:
        lowest = min(lowest, limits[0])
    resource.setrlimit(resource.RLIMIT_AS, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
