"""The formats of exported policies, by the ends of their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from orchestrator.core.regular_files import open_regular
from orchestrator.core.text import shortened
from orchestrator.worker.export.exported_policy import ExportedPolicy, ExportError, Floats

READABLE = (".onnx", ".pt", ".npz")
FORMATS = (*READABLE, ".h")
LONGEST_REASON = 300


class Act(Protocol):
    """A policy that was read from an exported file."""

    observations: int
    actions: int

    def __call__(self, observation: NDArray[Any], /) -> Mapping[str, Floats]:
        """``action`` and, where it is known, ``ctrl``, ``(batch, actions)``, for observations
        ``(batch, n)``.
        """


def check_name(path: Path, formats: tuple[str, ...] = FORMATS) -> None:
    """:raises ExportError: the name does not end like one of ``formats``."""
    if path.suffix not in formats:
        raise ExportError(
            f"{path}: expected a name that ends in {', '.join(formats[:-1])} or {formats[-1]}"
        )


def content(policy: ExportedPolicy, path: Path) -> str | bytes:
    """What to write to ``path``. :raises ExportError: a package that the format needs is not
    installed.
    """
    match path.suffix:
        case ".onnx":
            from orchestrator.worker.export import onnx_file

            return onnx_file.content(policy)
        case ".pt":
            from orchestrator.worker.export import torchscript_file

            return torchscript_file.content(policy)
        case ".npz":
            from orchestrator.worker.export import numpy_file

            return numpy_file.content(policy)
        case _:
            from orchestrator.worker.export import c_header

            return c_header.content(policy, path.stem)


def read(path: Path) -> Act:
    """:raises ExportError: it is no exported policy, or a package that it needs is not
    installed.
    """
    check_name(path, READABLE)
    try:
        open_regular(path).close()
        return _reader(path.suffix)(path)
    except ExportError:
        raise
    except Exception as error:  # the libraries raise errors of their own for other files
        text = " ".join(shortened(f"{type(error).__name__}: {error}").split())[:LONGEST_REASON]
        raise ExportError(
            f"{path} cannot be read: {text}; expected a file that `export` has written"
        ) from error


def _reader(suffix: str) -> Callable[[Path], Act]:
    if suffix == ".onnx":
        from orchestrator.worker.export import onnx_file

        return onnx_file.OnnxPolicy
    if suffix == ".pt":
        from orchestrator.worker.export import torchscript_file

        return torchscript_file.TorchScriptPolicy
    from orchestrator.worker.export import numpy_policy

    return numpy_policy.load
