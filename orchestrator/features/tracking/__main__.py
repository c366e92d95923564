"""``python -m orchestrator.features.tracking RUN_DIR SETTINGS JOBS_AT_ONCE``: the companion that tells
trackers of a run.

It reads the run directory alone, so that workers know nothing of trackers. Its imports cost seconds
of CPU time, so it has the lowest priority.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path


def main() -> int:
    os.nice(19)  # first of all, as the imports are work, too
    # Sessions are groups of their own (sched(7)), unless the kernel has no autogroups.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")
    from orchestrator.features.tracking import sending

    return sending.main(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of the packages are not waited for
