"""The beginning of a session: pilots of a supervisor that was killed hand back what they have, and
serve the next one.

They went on while there was no supervisor. What has ended meanwhile is in the job directories; what
still runs saves a checkpoint and ends, and the next supervisor resumes it, without a new wait in
Slurm's queue.
"""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.text import listed
from orchestrator.features.slurm.left_pilots import unfinished_pilots
from orchestrator.features.slurm.mailbox import Outbox, has_sent
from orchestrator.features.slurm.pilot_messages import JoinOrder, PilotBye
from orchestrator.features.slurm.pilot_names import events_of, joined_pilots, orders_of, parsed_name
from orchestrator.features.slurm.session_file import (
    HAND_BACK_S,
    Session,
    read_own_session,
    write_session,
)
from orchestrator.features.slurm.submission import ASK_EVERY_S, PRESENT, BatchQueue

TIMEOUT_S = HAND_BACK_S + 30.0
FIRST_ASK_S = 1.0
"""Before Slurm is asked which pilots have ended: most answer at once."""
SHOWN = 5


def begin_session(folder: Path, session: str, queue: BatchQueue) -> list[str]:
    """Make ``session`` the one that pilots serve, and wait until those of earlier sessions have
    handed back. That is not the one before alone: its supervisor may have been killed while it
    waited here.

    :param folder: ``slurm`` in the run directory, which this process has locked.
    :raises OSError: it cannot be written.
    """
    before = read_own_session(folder)
    (folder / session).mkdir(parents=True)
    if before is not None and not before.ended:
        queue.continue_named(before.batch_jobs or queue.name)
    write_session(folder, Session(session=session, batch_jobs=queue.name))
    if before is None or before.ended:
        return []
    awaited: dict[str, Path] = {}
    for old in _earlier(folder, session, before):
        queue.record_joined_before({parsed_name(name).task for name in joined_pilots(old)})
        awaited |= dict.fromkeys(sorted(unfinished_pilots(old)), old)
    for name, old in awaited.items():
        Outbox(orders_of(old, name)).send(JoinOrder(session))
    deadline = time.monotonic() + TIMEOUT_S
    questions = Pacer(Pace(every_s=ASK_EVERY_S))
    questions.wait(FIRST_ASK_S)
    while awaited and time.monotonic() < deadline:
        time.sleep(0.1)
        joined = joined_pilots(folder / session)
        awaited = {
            name: old
            for name, old in awaited.items()
            if name not in joined and not has_sent(events_of(old, name), PilotBye)
        }
        if awaited and questions.is_due():
            questions.wait()
            if queue.ask_now():
                awaited = {
                    name: old
                    for name, old in awaited.items()
                    if queue.state(parsed_name(name).task) in (*PRESENT, "COMPLETING")
                }
    if not awaited:
        return []
    text = f"pilots of the run before do not answer, and are given up: {listed(sorted(awaited), SHOWN)}"
    return [f"{text}. Their jobs resume from their last checkpoints."]


def _earlier(folder: Path, session: str, before: Session) -> list[Path]:
    """The folders of earlier sessions. That of the session ``before`` is one of them even where a
    file system lists new names late.
    """
    found = {path for path in folder.iterdir() if path.is_dir() and path.name != session}
    return sorted({folder / before.session, *found})
