"""``RUN_DIR/events.jsonl``: what happens in a run, a line of JSON for each event.

    python -m prefixed.event_log RUN_DIR CURSOR JOBS_AT_ONCE

is the companion that writes it.
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

from orchestrator.client.follow import Follower
from orchestrator.server.companions import ALL_ENDED, DONE

LOOK_EVERY_S = 0.2


def main(run_dir: str, cursor: str) -> int:
    follower = Follower(Path(run_dir), int(cursor))
    told = b""
    with (Path(run_dir) / "events.jsonl").open("a", encoding="utf-8") as file:
        while ALL_ENDED not in told:
            if select.select([0], [], [], LOOK_EVERY_S)[0]:
                told = os.read(0, 1024)
                if not told:  # the supervisor has been killed
                    return 1
            for event in follower.new():
                values = {"time": event.at, "event": event.kind, "message": event.message}
                file.write(json.dumps({**values, **event.facts}) + "\n")
            file.flush()
    follower.close()
    return DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
