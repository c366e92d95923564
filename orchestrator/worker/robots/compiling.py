"""Compiling a staged robot, with MuJoCo's messages referring to the user's own files and lines."""

from __future__ import annotations

import contextlib
import io
import os
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
_XML_ERROR = re.compile(
    r"XML parse error \d+:\s*Error=XML_ERROR_(\w+) ErrorID=.*?(?:XMLElement name=(\w+))?\Z", re.S
)
"""As tinyxml2 words it: kind of error and, for some, the element."""
_PARTS = {
    "ATTRIBUTE": "an attribute",
    "ELEMENT": "a tag",
    "COMMENT": "a comment",
    "CDATA": "a CDATA section",
}
_KEYFRAME_SIZE = re.compile(r"keyframe .*invalid \w+ size")
KEYFRAME_ADVICE = (
    "; a keyframe has numbers for all joints in the order of the file (qpos: 7 for a free joint, 4 for a ball, 1 for "
    "others) and one ctrl for each actuator: correct it, or remove it"
)
_NAN = re.compile(rb"""["'\s]nan["'\s]""", re.IGNORECASE)


def compile_staged(
    staged: Path,
    bundle: Bundle,
    findings: ModelFindings,
    memory_mib: int | None,
    *,
    is_edited: bool = False,
) -> mujoco.MjModel:
    """The model of the staged robot, which is the one that will be trained; add MuJoCo's warnings
    to ``findings``.
    """
    output = io.StringIO()  # for MuJoCo's warnings
    try:
        with contextlib.redirect_stderr(output):
            model = load_model(staged)
    except ValueError as error:
        prefix = str(staged)[: -len(bundle.main)]
        message = str(error).replace(prefix, f"{bundle.origin}{os.sep}").strip()
        if "allocate memory" in message:
            raise MujocoAbortedError(
                f"{bundle.origin / bundle.main}: {too_large(memory_mib)}"
            ) from None
        what = "MuJoCo cannot compile it"
        if is_edited:
            what = "the edited robot cannot be written as MJCF"
        advice = KEYFRAME_ADVICE if _KEYFRAME_SIZE.search(message) else ""
        text = _XML_ERROR.sub(_malformed_text, message)
        raise UnfitError(f"{_place(message, bundle)}: {what}: {text}{advice}") from None
    for warning in _mujoco_warnings(output.getvalue()):
        if "contains a 'NaN'" in warning:
            raise UnfitError(f"{_place_of_nan(bundle)}: contains NaN, expected a number")
        if "deprecated" in warning:
            findings.notes.append(f"MuJoCo says: {warning}")
        else:
            findings.warnings.append(f"MuJoCo says: {warning}")
    return model


def _mujoco_warnings(output: str) -> list[str]:
    """MuJoCo's warnings in what it has printed, each once and on one line."""
    lines = [" ".join(text.split()) for text in output.split(_WARNING)]
    return list(dict.fromkeys(filter(None, lines)))


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
    usual, hard = resource.getrlimit(resource.RLIMIT_AS)
    if memory_mib is None:
        yield
        return
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    there_are = [limit for limit in (usual, hard) if limit != resource.RLIM_INFINITY]
    lowest = min([now + (memory_mib << 20), *there_are])
    resource.setrlimit(resource.RLIMIT_AS, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (usual, hard))


def _place(message: str, bundle: Bundle) -> str:
    """File and line that MuJoCo's message is about, as far as they can be determined."""
    lines = re.findall(r"line(?: number=)?\s*([1-9]\d*)", message, re.IGNORECASE)
    if lines:  # the last one: an error inside an include ends with the line of the <include>
        return f"{bundle.origin / bundle.main}, line {lines[-1]}"
    element = re.search(r"Element '(\w+)', line 0", message)
    attribute = re.search(r"attribute:? '(\w+)'", message)
    included = None
    if element is not None:
        name = None if attribute is None else attribute[1]
        included = bundle.find_included(element[1], name)
    return included or str(bundle.origin / bundle.main)


def _malformed_text(error: re.Match[str]) -> str:
    kind, element = error.groups()
    part = _PARTS.get(kind.rpartition("_")[2], "the text")
    if kind == "MISMATCHED_ELEMENT":
        part = "the closing tag"
    of = f" of <{element}>" if element else ""
    return f"XML parse error in {part}{of}; check quotes, brackets and closing tags in this line and above"


def _place_of_nan(bundle: Bundle) -> str:
    for name in (bundle.main, *bundle.contents):
        content = bundle.contents[name]
        match = _NAN.search(content) if name.endswith(".xml") else None
        if match is not None:
            line = content.count(b"\n", 0, match.start()) + 1
            return f"{bundle.users_path(name)}, line {line}"
    return str(bundle.origin / bundle.main)
