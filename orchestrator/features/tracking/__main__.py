"""``python -m orchestrator.features.tracking RUN_DIR [--give-way] [--at-once]``: tells trackers of a run,
beside its supervisor.

It ends when its standard input does: with the supervisor. A line there, or ``--at-once``, means
that all jobs and their videos are done: it sends what is left and ends, with exit code 0 when every
tracker has everything. With ``--give-way`` it takes only CPU time that nothing else wants.
"""

from __future__ import annotations

import os
import sys

from orchestrator.core.processes.process_setup import give_way
from orchestrator.features.tracking.process_arguments import AT_ONCE, GIVE_WAY


def main() -> int:
    if GIVE_WAY in sys.argv:
        give_way()  # first of all, as the imports are work, too
    from orchestrator.features.tracking import sending

    return sending.main(sys.argv[1], is_at_once=AT_ONCE in sys.argv)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of the packages are not waited for
