"""What the file system says of a file that may not be there."""

from __future__ import annotations

import os
from pathlib import Path


def status_of(path: str | Path) -> os.stat_result | None:
    """None where there is no such file any more or yet, or its file system does not answer."""
    try:
        return os.stat(path)  # noqa: PTH116 - many a second, and a Path each would take longer
    except OSError:
        return None
