"""Writes and reads policies in the format that the end of a name says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.core.files.regular_files import open_regular
from orchestrator.core.text import shortened
from orchestrator.features.export.formats import FORMATS
from orchestrator.features.export.worker.exported_policy import ExportedPolicy, ExportError
from orchestrator.worker.training.trained_policy import ReadPolicy

LONGEST_REASON = 300


def check_name(path: Path) -> None:
    """:raises ExportError: the name does not end like one of :data:`FORMATS`."""
    if path.suffix not in FORMATS:
        expected = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise ExportError(f"{path}: expected a name that ends in {expected}")


def content(policy: ExportedPolicy, path: Path) -> str | bytes:
    """What to write to ``path``. :raises ExportError: a package that the format needs is not
    installed.
    """
    match path.suffix:
        case ".onnx":
            from orchestrator.features.export.worker import onnx_file

            return onnx_file.content(policy)
        case ".npz":
            from orchestrator.features.export.worker import numpy_file

            return numpy_file.content(policy)
        case _:
            from orchestrator.features.export.worker import c_header

            return c_header.content(policy, path.stem)


def read(path: Path) -> ReadPolicy:
    """:param path: ends like one of :data:`.READABLE`.
    :raises ExportError: it is no exported policy, or a package that it needs is not installed.
    """
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


def _reader(suffix: str) -> Callable[[Path], ReadPolicy]:
    if suffix == ".onnx":
        from orchestrator.features.export.worker import onnx_file

        return onnx_file.OnnxPolicy
    from orchestrator.features.export.worker import numpy_policy

    return numpy_policy.load
