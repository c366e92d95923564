"""Job directories that travel: from the run directory (*home*) to a node (*away*), and back as they change there.

::

    home                                      away
    outgoing_chunks(job_dir) ───── pieces ─────▶ Receiver(scratch).apply(piece)
                                              source = Sender.of_copy(scratch); the worker starts
    Receiver(job_dir).apply(piece) ◀─ pieces ──── source.scan(), again and again, and once after the worker's end

Pieces hold at most 1 MiB before compression, so that memory is bounded on both sides whatever the size of the files.
All pieces are applied in the order in which they were made. After every one of them home is something that a
worker can go on from: of its newest checkpoint it has the replay buffer and at least the rows of the tables.
Nothing here knows how pieces are carried. Files of more than a few KiB can go through a file system
(:class:`Storage`) instead; their pieces only say where they lie.
"""

from orchestrator.executors.ray.file_sync.chunks import (
    Appended,
    Chunk,
    FilePart,
    FileSyncError,
    RemovedFile,
    StoredFile,
    payload_bytes,
)
from orchestrator.executors.ray.file_sync.receiver import Receiver
from orchestrator.executors.ray.file_sync.sender import Sender, outgoing_chunks
from orchestrator.executors.ray.file_sync.storage import Storage

__all__ = [
    "Appended",
    "Chunk",
    "FilePart",
    "FileSyncError",
    "Receiver",
    "RemovedFile",
    "Sender",
    "Storage",
    "StoredFile",
    "outgoing_chunks",
    "payload_bytes",
]
