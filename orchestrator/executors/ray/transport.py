"""How files travel between the run directory and the nodes, as ``--storage`` says."""

from __future__ import annotations

import contextlib
import hashlib
import io
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.errors import UsageError
from orchestrator.executors.ray.file_sync import Storage

TransferMode: TypeAlias = Literal["shared", "stream"]
"""``shared``: workers train in the run directory itself, which their node sees; ``stream``: in a copy, which is kept
the same as the run directory while they do."""
MARK = b"Files of a run of many trainings pass through this folder. It is removed when the run ends."
CHOICES = "auto, shared, stream, or a URI such as s3://bucket/folder"


@dataclass(frozen=True, slots=True)
class Transport:
    """``way`` is None where each node's own view decides."""

    way: TransferMode | None
    storage: Storage | None = None
    """Through which whole files go, in the place of Ray."""
    mark: str | None = None
    """The name of a file that the driver has put there."""

    @classmethod
    def chosen(cls, option: str, home: Path) -> Transport:
        """As the option says, for the run directory ``home``, which is ours alone.

        :raises UsageError: no such way, or the storage does not do what one should.
        """
        match option:
            case "auto":
                return cls(None)
            case "shared" | "stream":
                return cls(option)
        if ":" not in option:
            raise UsageError(f"--storage {option}: unknown; valid: {CHOICES}")
        whose = hashlib.sha256(f"{socket.gethostname()}:{home}".encode()).hexdigest()
        storage = Storage(option, f"orchestrator-{whose[:16]}")
        try:
            storage.check()
            storage.clear()
            mark = storage.put(io.BytesIO(MARK))
        except OSError as error:
            raise UsageError(f"--storage {option}: {error}") from error
        return cls("stream", storage, mark)

    def of(self, *, sees_home: bool) -> TransferMode:
        """For a node."""
        return self.way or ("shared" if sees_home else "stream")

    def problem(self) -> str | None:
        """Asked on a node: why files cannot travel between it and the driver; None: they can."""
        if self.storage is None or self.mark is None:
            return None
        return self.storage.problem(self.mark)

    def close(self) -> None:
        """Nothing is on its way any more."""
        if self.storage is not None:
            with contextlib.suppress(OSError):  # the next driver of this run directory clears it
                self.storage.clear()
