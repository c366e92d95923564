"""A file that is given out from where it was opened, so that it is the one that was examined."""

from __future__ import annotations

import os
from typing import BinaryIO

from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send


class OpenedFileResponse(FileResponse):
    """The content of ``file``, whole or the ranges that are asked for; closes it."""

    def __init__(self, file: BinaryIO, *, media_type: str, headers: dict[str, str]) -> None:
        descriptor = file.fileno()
        path = f"/proc/self/fd/{descriptor}"
        found = os.fstat(descriptor)
        super().__init__(path, media_type=media_type, headers=headers, stat_result=found)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)
