"""What travels. Paths are relative to the job directory, with ``/`` between their parts."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.core.errors import OrchestratorError

CHUNK_BYTES = 2**20
"""Of a file in one piece at most."""
COMPARED_BYTES = 4096
"""How much of what was sent last must still stand there for a file to count as one that only grew."""
PAYS_BELOW = 0.9
"""Compressed to original size, where compression is worth the receiver's time."""


class FileSyncError(OrchestratorError):
    """Pieces do not fit what is there, or must not be applied: the attempt they belong to is to be given up."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes of a file, compressed where that pays."""

    content: bytes
    is_packed: bool

    @classmethod
    def of(cls, raw: bytes, *, pack: bool) -> Payload:
        packed = zlib.compress(raw, level=1) if pack else raw
        return cls(packed, True) if len(packed) < PAYS_BELOW * len(raw) else cls(raw, False)

    def raw(self) -> bytes:
        """:raises FileSyncError: they are not what was packed."""
        if not self.is_packed:
            return self.content
        unpacking = zlib.decompressobj()
        try:
            raw = unpacking.decompress(self.content, CHUNK_BYTES)
        except zlib.error as error:
            raise FileSyncError(f"a piece arrived damaged: {error}") from error
        if not unpacking.eof:
            raise FileSyncError(f"a piece arrived damaged: it ends early, or holds more than {CHUNK_BYTES} bytes")
        return raw


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file that appears, or replaces the one before, when its last part has arrived."""

    path: str
    offset: int
    data: Payload
    is_last: bool


@dataclass(frozen=True, slots=True)
class Appended:
    """Bytes that a file of ``offset`` bytes has grown by."""

    path: str
    offset: int
    data: Payload


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that lies whole in the storage, under ``name``; who applies the piece removes it from there."""

    path: str
    name: str
    size: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class RemovedFile:
    path: str


Chunk: TypeAlias = FilePart | Appended | StoredFile | RemovedFile


def payload_bytes(piece: Chunk) -> int:
    """What the piece weighs on its way, but for a few dozen bytes."""
    return len(piece.data.content) if isinstance(piece, FilePart | Appended) else 0
