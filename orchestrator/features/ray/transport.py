"""How files get from the run directory to the nodes and back, as chosen by ``--storage``."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core import front_end
from orchestrator.core.errors import UsageError
from orchestrator.features.ray.file_sync.storage import Storage

TransferMode: TypeAlias = Literal["shared", "stream"]
"""``shared``: workers train in the run directory itself, on a shared file system. ``stream``: they
train in a copy that is synchronised with it."""
PROBE_CONTENT = (
    b"Files of a training run pass through this folder. It is removed when the run ends."
)
CHOICES = "auto, shared, stream, or a URI such as s3://bucket/folder"


@dataclass(frozen=True, slots=True)
class Transport:
    """``mode`` None: ``shared`` on each node that sees the run directory, otherwise ``stream``."""

    mode: TransferMode | None
    storage: Storage | None = None
    """Where whole files go, instead of through Ray."""
    probe: str | None = None
    """The name of a file that the driver has put there."""

    @classmethod
    def from_option(cls, option: str, run_dir: Path) -> Transport:
        """From the value of ``--storage``, for a run directory that this process has locked.

        :raises UsageError: an unknown value, or a storage that does not work.
        """
        match option:
            case "auto":
                return cls(None)
            case "shared" | "stream":
                return cls(option)
        given = front_end.option("storage", option)
        if ":" not in option:
            raise UsageError(f"{given}: unknown; valid: {CHOICES}")
        identity = hashlib.sha256(os.fsencode(f"{socket.gethostname()}:{run_dir}")).hexdigest()
        storage = Storage(option, f"orchestrator-{identity[:16]}")
        try:
            storage.check()
            storage.clear()
            probe = storage.put(io.BytesIO(PROBE_CONTENT))
        except OSError as error:
            raise UsageError(f"{given}: {error}") from error
        return cls("stream", storage, probe)

    def problem(self) -> str | None:
        """Asked on a node: why files cannot be exchanged with the driver; None: they can."""
        if self.storage is None or self.probe is None:
            return None
        try:
            self.storage.check()
            self.storage.fetch(self.probe, io.BytesIO())
        except (UsageError, OSError) as error:
            return str(error)
        return None

    def close(self) -> None:
        """Clear the storage, when no file is in transit."""
        if self.storage is not None:
            with contextlib.suppress(OSError):  # the next driver of this run directory clears it
                self.storage.clear()
