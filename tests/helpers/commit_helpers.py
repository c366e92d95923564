"""What changes from commit to commit: which seeds are played, and which of several variants of a
test."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

TESTS = Path(__file__).parents[1]


@functools.cache
def number_of_this_commit() -> int:
    """The first 32 bits of its name; 0 without a repository, and without git."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(answer.stdout[:8], 16) if answer.returncode == 0 else 0
