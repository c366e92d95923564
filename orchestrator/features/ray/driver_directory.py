"""The driver's run directory, as nodes know it."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.files.atomic_files import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDirectory:
    """A driver's run directory, by which a node can tell whether its own file system has it under
    the same path.
    """

    root: Path
    nonce_file: Path
    nonce: str
    host: str
    """The driver's host: without a shared file system another host may have a directory of the same
    path."""

    @property
    def identity(self) -> str:
        return f"{self.host}:{self.root}"

    @classmethod
    def create(cls, root: Path) -> DriverDirectory:
        """Write a file with a random word to ``root``, which this process has locked;
        :meth:`remove` removes it.
        """
        for stale in root.glob(".driver-*"):  # of a driver that was killed
            stale.unlink(missing_ok=True)
        nonce = secrets.token_hex(16)
        path = root / f".driver-{nonce[:8]}"
        path.write_text(nonce)
        return cls(root=root, nonce_file=path, nonce=nonce, host=socket.gethostname())

    def keep(self, name: str, content: bytes) -> Path:
        """Write a file for nodes to fetch from the driver's machine; :meth:`remove` removes it."""
        path = self.nonce_file.with_name(f"{self.nonce_file.name}-{name}")
        if not path.exists():  # perhaps a node reads it
            write_whole(path, content, durable=False)
        return path

    def is_accessible(self) -> bool:
        """Whether this machine has the same directory under its path, and may write to it."""
        try:
            return self.nonce_file.read_text() == self.nonce and os.access(
                self.root, os.W_OK | os.X_OK
            )
        except OSError:  # it is missing here, or may not be read
            return False

    def remove(self) -> None:
        for path in self.root.glob(f"{self.nonce_file.name}*"):
            path.unlink(missing_ok=True)
