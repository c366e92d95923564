"""A CSV file that grows while it is read, and that is replaced when its job resumes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.files.regular_files import LARGEST_BYTES, open_regular, read_up_to


@dataclass(slots=True)
class GrowingTable:
    """Reads what is new in the file since the last call; from its beginning when it is another one,
    or shorter.
    """

    path: Path
    most_bytes: int = LARGEST_BYTES
    """Of the file that are read at once."""
    header: bytes = field(default=b"", init=False)
    """Its first line, with the newline; empty before it has been read."""
    modified: float = field(default=0.0, init=False)
    """When the file was written last."""
    _file: tuple[int, int] = field(default=(0, 0), init=False)
    """Device and inode of what was read."""
    _offset: int = field(default=0, init=False)

    def new_lines(self) -> tuple[bytes, bool]:
        """The whole lines that are new, without the header, and whether they are the first ones of
        the file.

        A file that is missing, or cannot be read, has no new lines.
        """
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())
                if (status.st_dev, status.st_ino) != self._file or status.st_size < self._offset:
                    self._file = (status.st_dev, status.st_ino)
                    self._offset = 0
                    self.header = b""
                self.modified = status.st_mtime
                file.seek(self._offset)
                content = read_up_to(file, self.most_bytes)
        except OSError:  # it is not there yet, or is being replaced
            return b"", False
        content = content[: content.rfind(b"\n") + 1]
        self._offset += len(content)
        if self.header or not content:
            return content, False
        end = content.find(b"\n") + 1
        self.header = content[:end]
        return content[end:], True
