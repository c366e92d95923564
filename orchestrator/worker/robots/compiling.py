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
from orchestrator.worker.robots.env_check import UnfitError
from orchestrator.worker.robots.model_checks import ModelFindings


class MujocoAbortedError(UnfitError):
    """MuJoCo aborted, perhaps with locks held, so that the next robot might hang in this
    process.
    """


_WARNING = "MuJoCo warning: "
_LINE = re.compile(r"line(?: number=)?\s*([1-9]\d*)", re.IGNORECASE)
_KEYFRAME_SIZE = re.compile(r"keyframe .*invalid \w+ size")
_KEYFRAME_ADVICE = (
    "; a keyframe has numbers for all joints in the order of the file (qpos: 7 for a free joint, 4 for a ball, 1 for "
    "others) and one ctrl for each actuator: correct it, or remove it"
)


def compile_staged(
    staged: Path, bundle: Bundle, findings: ModelFindings, memory_mib: int | None
) -> mujoco.MjModel:
    """Compile the copy of a robot, which is what will be trained, and add MuJoCo's warnings to
    ``findings``.

    :raises UnfitError: MuJoCo cannot compile it.
    """
    output = io.StringIO()  # for MuJoCo's warnings
    try:
        with contextlib.redirect_stderr(output):
            model = load_model(staged)
    except ValueError as error:
        message = bundle.with_users_paths(str(error), staged).strip()
        if "allocate memory" in message:
            raise MujocoAbortedError(f"{bundle.xml}: {too_large(memory_mib)}") from None
        advice = _KEYFRAME_ADVICE if _KEYFRAME_SIZE.search(message) else ""
        # The last line: an error inside an include ends with the line of the <include>.
        lines = _LINE.findall(message)
        place = f"{bundle.xml}, line {lines[-1]}" if lines else str(bundle.xml)
        raise UnfitError(f"{place}: MuJoCo cannot compile it: {message}{advice}") from None
    lines = [" ".join(text.split()) for text in output.getvalue().split(_WARNING)]
    for warning in dict.fromkeys(filter(None, lines)):
        if "contains a 'NaN'" in warning:
            raise UnfitError(f"{bundle.xml}: contains NaN, expected a number")
        known = findings.notes if "deprecated" in warning else findings.warnings
        known.append(f"MuJoCo says: {warning}")
    return model


def too_large(memory_mib: int | None) -> str:
    """The message for a robot that needs more memory than is available."""
    limit = f"more than the {memory_mib:,} MiB available" if memory_mib else "too much"
    return f"compiling and simulating it takes {limit} of memory; check <size memory=…> and <replicate>"


@contextlib.contextmanager
def guard_compiler(xml: Path, memory_mib: int | None) -> Iterator[None]:
    """Limit the memory, and turn MuJoCo's fatal errors into :class:`MujocoAbortedError`."""
    try:
        with memory_limit(memory_mib):
            yield
    except mujoco.FatalError as error:
        text = f"{xml}: MuJoCo cannot simulate it: {error}"
        raise MujocoAbortedError(with_address_limit(text)) from None
    except MemoryError:
        raise MujocoAbortedError(f"{xml}: {too_large(memory_mib)}") from None
    except RuntimeError as error:
        # So MuJoCo's compiler says that it has run out of memory.
        if "unknown exception" not in str(error):
            raise
        raise MujocoAbortedError(f"{xml}: {too_large(memory_mib)} (MuJoCo says: {error})") from None


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
    finite = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    lowest = min([now + (memory_mib << 20), *finite])
    resource.setrlimit(resource.RLIMIT_AS, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
