"""What files hold."""

from __future__ import annotations

from pathlib import Path


def tree(root: Path) -> dict[str, bytes]:
    """Content of every file that is not hidden, by its path."""
    states_or_none = [
        path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")
    ]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in states_or_none}
