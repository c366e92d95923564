"""The messages that synchronise files. Paths are relative to the job directory, with ``/`` as
separator.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.core.errors import OrchestratorError

CHUNK_BYTES = 2**20
"""Most bytes of a file in one chunk, before compression."""
COMPARED_BYTES = 4096
"""A file counts as one that only grew if its last bytes sent, so many of them, are still in their
place."""
WORTHWHILE_RATIO = 0.9
"""Compressed to original size, below which compression is worth the receiver's time."""


class FileSyncError(OrchestratorError):
    """Chunks do not fit the files there, or must not be applied. The attempt that they belong to is
    given up.
    """


@dataclass(frozen=True, slots=True)
class Payload:
    content: bytes
    is_compressed: bool

    @classmethod
    def of(cls, raw: bytes, *, compress: bool) -> Payload:
        """:param compress: whether to try: it is left as it is where that brings little."""
        if compress:
            compressed = zlib.compress(raw, level=1)
            if len(compressed) < WORTHWHILE_RATIO * len(raw):
                return cls(compressed, True)
        return cls(raw, False)

    def raw(self) -> bytes:
        """:raises FileSyncError: the compressed bytes are damaged."""
        if not self.is_compressed:
            return self.content
        decompressor = zlib.decompressobj()
        try:
            raw = decompressor.decompress(self.content, CHUNK_BYTES)
        except zlib.error as error:
            raise FileSyncError(f"a chunk arrived damaged: {error}") from error
        if not decompressor.eof:
            raise FileSyncError(
                f"a chunk arrived damaged: it is cut short or holds more than {CHUNK_BYTES} bytes"
            )
        return raw


@dataclass(frozen=True, slots=True)
class FilePart:
    """Part of a file that appears, or replaces the previous one, when its last part has arrived."""

    path: str
    offset: int
    payload: Payload
    is_last: bool


@dataclass(frozen=True, slots=True)
class Appended:
    path: str
    offset: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A whole file in the storage, under ``name``. Whoever applies the chunk removes the file from
    the storage.
    """

    path: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class RemovedFile:
    path: str


Chunk: TypeAlias = FilePart | Appended | StoredFile | RemovedFile


def payload_bytes(chunk: Chunk) -> int:
    """Size of the chunk when transmitted, without a few dozen bytes of overhead."""
    return len(chunk.payload.content) if isinstance(chunk, FilePart | Appended) else 0
