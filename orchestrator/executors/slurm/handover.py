"""The beginning of a session: pilots of a supervisor that was killed hand back what they have, and serve the next one.

They went on while there was no supervisor. What has ended meanwhile is in the job directories; what still runs saves a
checkpoint and ends, and the next supervisor resumes it, without a new wait in Slurm's queue.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.text import listed
from orchestrator.executors.slurm.batch_queue import ASK_EVERY_S, PRESENT, BatchQueue, cancel_named
from orchestrator.executors.slurm.mailbox import Outbox, has_sent
from orchestrator.executors.slurm.pilot_messages import JoinOrder, PilotBye
from orchestrator.executors.slurm.session_file import HAND_BACK_S, Session, read_session, write_session

TIMEOUT_S = HAND_BACK_S + 30.0
FIRST_ASK_S = 1.0
"""Before Slurm is asked which pilots have ended: most answer at once."""
SHOWN = 5


def begin_session(folder: Path, session: str, queue: BatchQueue) -> list[str]:
    """Make ``session`` the one that pilots serve, and wait until those of the session before have handed back.

    :param folder: ``slurm`` in the run directory, which this process has locked.
    :raises OSError: it cannot be written.
    """
    before = read_session(folder)
    (folder / session).mkdir(parents=True)
    if before is not None and not before.ended:
        queue.name = before.batch_jobs or queue.name
    write_session(folder, Session(session=session, batch_jobs=queue.name))
    if before is None or before.ended:
        return []
    old = folder / before.session
    names = {path.name.partition(".events.")[0] for path in old.glob("*.events.*")}
    queue.heard |= {name.partition(".")[0] for name in names}  # that they end now is no failed start
    awaited = {name for name in names if not has_sent(old / f"{name}.events", PilotBye)}
    for name in awaited:
        Outbox(old / f"{name}.orders").send(JoinOrder(session))
    deadline, ask_at = time.monotonic() + TIMEOUT_S, time.monotonic() + FIRST_ASK_S
    while awaited and time.monotonic() < deadline:
        time.sleep(0.1)
        awaited = {
            name
            for name in awaited
            if not (folder / session / f"{name}.events.0").exists() and not has_sent(old / f"{name}.events", PilotBye)
        }
        if awaited and time.monotonic() >= ask_at:
            ask_at = time.monotonic() + ASK_EVERY_S
            if queue.ask_now():
                awaited = {name for name in awaited if queue.state(name.partition(".")[0]) in (*PRESENT, "COMPLETING")}
    if not awaited:
        return []
    text = f"pilots of the run before do not answer, and are given up: {listed(sorted(awaited), SHOWN)}"
    return [f"{text}. Their jobs resume from their last checkpoints."]


def end_left_pilots(folder: Path) -> str | None:
    """End the pilots that a killed supervisor has left. Returns what was done; None where there are none.

    :raises UsageError: Slurm does not obey, and the pilots cannot be told by a file either.
    """
    left = read_session(folder)
    if left is None or left.ended or not left.batch_jobs:
        return None
    answer = cancel_named(left.batch_jobs)
    if answer.returncode == 0:
        return f"cancelled the batch jobs {left.batch_jobs}, which the supervisor before had left"
    try:
        write_session(folder, dataclasses.replace(left, ended=True))
    except OSError as error:
        advice = f"run `scancel --name={left.batch_jobs}` on a login node"
        raise UsageError(f"{folder}: cannot be written ({error.strerror}), scancel failed; {advice}") from error
    return f"scancel failed ({answer.problem}); batch jobs {left.batch_jobs} end by themselves as soon as they run"
