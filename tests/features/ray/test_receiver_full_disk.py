"""Applying chunks to a directory on a full disk."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from file_helpers import tree
from file_sync_helpers import (
    MIB,
    part,
    tail,
)

from orchestrator.core.paths import JobPaths
from orchestrator.features.ray.file_sync.receiver import Receiver


def test_a_full_disk_raises_with_the_path_and_damages_nothing(small_disk: Path) -> None:
    paths = JobPaths(small_disk / "job")
    receiver = Receiver(paths.root)
    receiver.apply(part("progress.csv", b"a\n"))
    for offset in range(0, 2 * MIB, MIB):
        receiver.apply(part("model.zip", os.urandom(MIB), offset=offset, is_last=False))
    with pytest.raises(OSError, match=re.escape(str(paths.model))) as raised:
        receiver.apply(part("model.zip", os.urandom(MIB), offset=2 * MIB))
    assert raised.value.errno == errno.ENOSPC
    assert tree(paths.root) == {"progress.csv": b"a\n"}
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(int(2.9 * MIB)))
    growth = tail("progress.csv", 2, b"1\n" * (MIB // 4))
    with pytest.raises(OSError, match=re.escape(str(paths.progress_csv))) as raised:
        receiver.apply(growth)
    assert raised.value.errno == errno.ENOSPC
    assert tree(paths.root) == {"progress.csv": b"a\n"}
    ballast.unlink()
    receiver.apply(growth)
    assert paths.progress_csv.stat().st_size == 2 + MIB // 2
    receiver.close()
    assert [path.name for path in paths.root.iterdir()] == ["progress.csv"]
