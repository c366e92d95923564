"""The driver's run directory, as nodes know it."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDirectory:
    """A driver's run directory, and how a node can tell whether it is the one that it sees under the same path."""

    root: Path
    nonce_file: Path
    nonce: str
    host: str
    """The driver's: without a shared file system others may have a directory of the same path."""

    @property
    def identity(self) -> str:
        return f"{self.host}:{self.root}"

    @classmethod
    def at(cls, root: Path) -> DriverDirectory:
        """With a file in ``root``, which is ours alone, that holds a random word; :meth:`leave` takes it away."""
        for left in root.glob(".driver-*"):  # by one that was killed
            left.unlink(missing_ok=True)
        nonce = secrets.token_hex(16)
        path = root / f".driver-{nonce[:8]}"
        path.write_text(nonce)
        return cls(root=root, nonce_file=path, nonce=nonce, host=socket.gethostname())

    def is_visible(self) -> bool:
        """And can be written to."""
        try:
            return self.nonce_file.read_text() == self.nonce and os.access(self.root, os.W_OK | os.X_OK)
        except OSError:
            return False

    def leave(self) -> None:
        self.nonce_file.unlink(missing_ok=True)
