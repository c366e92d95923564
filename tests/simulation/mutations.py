"""Faults that are planted in the program, to show that the simulation finds such ones.

Each replaces a piece of the source of one function, in memory and for a while.
"""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.core.files import atomic_files
from orchestrator.executors.local_backend import LocalCpuMoves
from orchestrator.experiment.from_outside.run_follower import RunFollower
from orchestrator.experiment.resuming import reconcile, recovery
from orchestrator.ledger import Ledger, database_file, rows
from orchestrator.ledger.requests import RequestFiles
from orchestrator.ledger.summary import SummaryFiles
from orchestrator.machine.neighbours import Neighbours
from orchestrator.machine.slots import SlotPool
from orchestrator.supervisor import job_directory, retry_policy
from orchestrator.supervisor.active_attempts import ActiveAttempts
from orchestrator.supervisor.cpu_mover import CpuMover
from orchestrator.supervisor.job_queue import JobQueue
from orchestrator.supervisor.job_table import JobTable
from orchestrator.supervisor.recorder import Recorder
from orchestrator.supervisor.request_handler import RequestHandler
from orchestrator.supervisor.supervisor import Supervisor
from orchestrator.supervisor.termination import Termination

ANNOTATIONS = "from __future__ import annotations"
"""As the modules of the program begin, so that annotations are not evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    name: str
    function: Callable[..., Any]
    before: str
    """Occurs once in the source of the function."""
    after: str


MUTATIONS = (
    Mutation(
        name="a file is renamed into place before it is on the disk",
        function=atomic_files.writing_whole,
        before="os.fsync(file.fileno())",
        after="pass",
    ),
    Mutation(
        name="the name of a new file is not on the disk",
        function=atomic_files.writing_whole,
        before="sync_directory(path.parent)",
        after="pass",
    ),
    Mutation(
        name="a request that was acted on stays in the ledger",
        function=Ledger.mark_handled,
        before='self._keep("DELETE FROM requests WHERE id = ?", (row,))',
        after="pass",
    ),
    Mutation(
        name="a request in a file is acted on again by the next supervisor",
        function=RequestFiles.take,
        before="acted_on = self._acted_on()",
        after="acted_on = set()",
    ),
    Mutation(
        name="a file of requests is removed before what it led to is recorded",
        function=Ledger.take_requests,
        before="self._data_version = version",
        after="self._data_version = version; self._request_files._waiting.clear(); "
        "self._request_files.remove_handled()",
    ),
    Mutation(
        name="the removal of a file of requests is not on the disk",
        function=RequestFiles.remove_handled,
        before="sync_directory(self._folder)",
        after="pass",
    ),
    Mutation(
        name="a file system that fails once counts as a damaged ledger",
        function=database_file._error_class,
        before="LedgerFailingError if code in OF_FILE_SYSTEM else LedgerError",
        after="LedgerError",
    ),
    Mutation(
        name="a page that has shown a passing error shows it when all is as before",
        function=RunFollower.look,
        before="self._marks = None if may_pass(error) else found",
        after="self._marks = self._marks if may_pass(error) else found",
    ),
    Mutation(
        name="what is kept for a locked ledger is lost",
        function=Ledger.commit,
        before="self._connection.rollback()",
        after="self._kept.clear(); self._connection.rollback()",
    ),
    Mutation(
        name="a slot is not given back",
        function=Supervisor._end,
        before="self.slots.release(attempt.slot)",
        after="pass",
    ),
    Mutation(
        name="one retry too many",
        function=retry_policy.next_state,
        before="if cause in RETRYABLE and failures < max_retries",
        after="if cause in RETRYABLE and failures <= max_retries",
    ),
    Mutation(
        name="a pause forgets the failures",
        function=retry_policy.next_state,
        before="return Paused(failures=failures)\n",
        after="return Paused()\n",
    ),
    Mutation(
        name="no wait before a retry",
        function=retry_policy.backoff_s,
        before="return min(BACKOFF_FIRST_S * 2.0**doublings, BACKOFF_LIMIT_S)",
        after="return 0.0 * doublings",
    ),
    Mutation(
        name="an attempt that was asked to end counts as failed",
        function=Supervisor._take_exited,
        before="end_reason=attempt.end_reason",
        after="end_reason=None",
    ),
    Mutation(
        name="exit code 0 without a record counts as success",
        function=Supervisor._take_exited,
        before="silent=record is None and self.exit_record_expected",
        after="silent=False",
    ),
    Mutation(
        name="a worker that does not exit is not killed",
        function=Termination.enforce_limits,
        before="now >= attempt.kill_at:",
        after="now >= attempt.kill_at + 1e6:",
    ),
    Mutation(
        name="a second stop does not kill",
        function=Termination.apply_stops,
        before="grace_s = self.grace_s if self.stage == 1 else 0.0",
        after="grace_s = self.grace_s",
    ),
    Mutation(
        name="one that is killed has no time to save a checkpoint",
        function=Termination.cancel,
        before="self._ask_to_end(attempt, reason, self.now() + self.grace_s)",
        after="self._ask_to_end(attempt, reason, self.now())",
    ),
    Mutation(
        name="a hung attempt is not noticed",
        function=retry_policy.next_limit_at,
        before="min(usage.started + limits.timeout_s, usage.last_progress + limits.stall_timeout_s)",
        after="usage.started + limits.timeout_s",
    ),
    Mutation(
        name="growth beyond the memory limit is not noticed",
        function=ActiveAttempts.note_memory,
        before="if rss_mib > attempt.job.resources.all_memory_mib:",
        after="if rss_mib > 2 * attempt.job.resources.all_memory_mib:",
    ),
    Mutation(
        name="growth beyond the memory limit is not noticed in the grace time",
        function=Termination.enforce_limits,
        before="(attempt.kill_at is None or exceeded.cause is Cause.MEMORY)",
        after="attempt.kill_at is None",
    ),
    Mutation(
        name="promised memory is given twice",
        function=retry_policy.memory_admits,
        before="available_mib - promised_mib >= needed_mib",
        after="available_mib >= needed_mib",
    ),
    Mutation(
        name="a CPU that is held is given again",
        function=SlotPool._own,
        before="own = Counter(cpu for slot in self._held.values() for cpu in slot.cpus)",
        after="own = Counter()",
    ),
    Mutation(
        name="the last job that came is launched first",
        function=JobQueue.add,
        before="setdefault(entry.group, deque()).append(entry)",
        after="setdefault(entry.group, deque()).appendleft(entry)",
    ),
    Mutation(
        name="what has begun has no precedence",
        function=JobQueue.add,
        before="position = 1 if has_begun else 2, next(self._arrivals)",
        after="position = 1, next(self._arrivals)",
    ),
    Mutation(
        name="a job that was refused is forgotten",
        function=JobQueue.offers,
        before="shortage=offer.shortage))\n                waiting.appendleft(entry)",
        after="shortage=offer.shortage))",
    ),
    Mutation(
        name="jobs that wait for a job are not released",
        function=JobTable.move,
        before="self._release_children(job_id)",
        after="pass",
    ),
    Mutation(
        name="a worker that has outlived its supervisor is not killed",
        function=recovery.settle,
        before="_kill_leftover_of(attempt)",
        after="pass",
    ),
    Mutation(
        name="a cancellation is forgotten when the supervisor dies",
        function=RequestHandler.cancel,
        before='self.recorder.ledger.note("cancel", job_id)',
        after="pass",
    ),
    Mutation(
        name="a pause that was withdrawn comes back when the supervisor dies",
        function=RequestHandler.resume,
        before="self.recorder.ledger.withdraw_notes(job_id)",
        after="pass",
    ),
    Mutation(
        name="requests that nobody has read are dropped by the next supervisor",
        function=recovery.apply_late_requests,
        before="for request in [*late, *requests]:",
        after="for request in late:",
    ),
    Mutation(
        name="a job that is paused before its launch runs in the next run",
        function=reconcile._is_held,
        before="return isinstance(row.state, Paused)",
        after="return False",
    ),
    Mutation(
        name="the exit record of an earlier attempt of the same number stays",
        function=job_directory.prepare,
        before="removed = [path for path in possible if _remove(path)]",
        after="removed = []",
    ),
    Mutation(
        name="the removal of a stale exit record is not on the disk",
        function=job_directory.prepare,
        before="sync_directory(attempt.root)",
        after="pass",
    ),
    Mutation(
        name="directories of attempts that the ledger has lost are not seen",
        function=job_directory.free_number,
        before="while paths.attempt(number + 1).root.exists():",
        after="while False:",
    ),
    Mutation(
        name="summary files keep a page of which a job has moved",
        function=SummaryFiles.writing,
        before="if page in kept and moved.isdisjoint(job_ids):",
        after="if page in kept:",
    ),
    Mutation(
        name="summary files are not written at the end",
        function=Recorder._write,
        before="if final:\n        self._start_summary_anew",
        after="if False:\n        self._start_summary_anew",
    ),
    Mutation(
        name="failures are not read from the ledger",
        function=rows._state,
        before='return Pending(failures=row["failures"])',
        after="return Pending()",
    ),
    Mutation(
        name="workers stay when the supervisor ends",
        function=Supervisor.run,
        before="self.executor.close()",
        after="pass",
    ),
    Mutation(
        name="late requests are handled and not recorded as such",
        function=recovery.apply_late_requests,
        before="ledger.mark_handled(request)",
        after="pass",
    ),
    Mutation(
        name="other runs are not seen",
        function=Neighbours.look,
        before="competitors = [_competing_run(run) for run in runs]",
        after="competitors = []",
    ),
    Mutation(
        name="other programs are not seen",
        function=Neighbours.look,
        before="competitors += self._programs(held)",
        after="pass",
    ),
    Mutation(
        name="an attempt that has moved may move again at once",
        function=CpuMover._settle,
        before="min(REST_S * 2**watched.n_moves, LONGEST_REST_S)",
        after="0.0",
    ),
    Mutation(
        name="an attempt moves to its reserved CPUs whoever has come there",
        function=CpuMover._settle,
        before="not self.moves.is_still_idle(reservation)",
        after="False",
    ),
    Mutation(
        name="a move that the kernel refuses is recorded",
        function=LocalCpuMoves.move,
        before="if not self.executor.move(handle, reservation.to):",
        after="if self.executor.move(handle, reservation.to) is None:",
    ),
    Mutation(
        name="CPUs stay reserved when a move is given up",
        function=SlotPool.give_up,
        before="self._reserved.pop(reservation.slot.index, None)",
        after="pass",
    ),
    Mutation(
        name="other runs are not told of reserved CPUs that are used",
        function=SlotPool.move,
        before="self._publish()",
        after="pass",
    ),
)


@contextlib.contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """The fault is in the program within the block, wherever the function is known already."""
    function = inspect.unwrap(mutation.function)
    source = textwrap.dedent(inspect.getsource(function))
    found = source.count(mutation.before)
    if found != 1:
        raise ValueError(f"{mutation.name}: its place is found {found} times, not once")
    code = _compiled(source.replace(mutation.before, mutation.after), function)
    before = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before


def _compiled(source: str, function: Callable[..., Any]) -> Any:
    """The code of the one function in ``source``, without its decorators."""
    lines = source.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("def "))
    text = "\n".join([ANNOTATIONS, *lines[begin:]])
    compiled = compile(text, function.__code__.co_filename, "exec", dont_inherit=True)
    scope: dict[str, Any] = {}
    exec(compiled, function.__globals__, scope)
    return scope[function.__name__].__code__
