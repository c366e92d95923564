"""Fetches the policies of jobs that have succeeded for those that start from them (``init =
"job:NAME"``).

A thread lets them be examined as a path as ``init`` is, one after the other, while the supervisor
goes on.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from orchestrator.core.errors import disk_full_explained
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.examination import examination_requests, preflight, side_by_side
from orchestrator.examination.examining_process import Child
from orchestrator.server import job_directory
from orchestrator.server.start_policies import (
    FailedFetch,
    Fetch,
    FetchedPolicy,
    UnfitPolicy,
)


class StartPolicyFetcher:
    """A :class:`~orchestrator.server.start_policies.StartPolicies`; a context manager, which ends
    what it has begun.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        # The processes are killed when the thread ends that has started them: it lives until exit.
        self._pool = ThreadPoolExecutor(1, "start policies")
        self._fetches: dict[str, Future[Fetch]] = {}
        """By id of a job whose policy is fetched."""
        self._ready: set[str] = set()
        """Jobs whose policies were fetched in this session."""
        self._children: list[Child] = []
        self._is_closing = threading.Event()

    def __enter__(self) -> StartPolicyFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing.set()
        self._pool.shutdown(cancel_futures=True)
        self._close_children()

    @property
    def is_busy(self) -> bool:
        return bool(self._fetches)

    def needs(self, job: Job) -> bool:
        if job.spec.init_job is None or job.job_id in self._ready:
            return False
        # With a checkpoint, it resumes from that.
        return not job_directory.checkpointed_steps(self._paths.job(job.job_id))

    def request(self, job: Job) -> None:
        if job.job_id not in self._fetches:
            self._fetches[job.job_id] = self._pool.submit(self._fetch_cleanly, job)

    def take(self) -> Sequence[Fetch]:
        ended = [job_id for job_id, fetch in self._fetches.items() if fetch.done()]
        fetched = [self._fetches.pop(job_id).result() for job_id in ended]
        self._ready.update(one.job_id for one in fetched if isinstance(one, FetchedPolicy))
        if ended and not self._fetches:
            self._close_children()
        return fetched

    def _close_children(self) -> None:
        for child in self._children:
            child.close()
        self._children.clear()

    def _fetch_cleanly(self, job: Job) -> Fetch:
        """As :meth:`_fetch`, with errors of this job alone as results. Nothing is left in the staging
        folder.
        """
        staging = self._paths.staging / f"start-{job.job_id}"
        try:
            return self._fetch(job, staging)
        except OSError as error:
            return FailedFetch(job_id=job.job_id, problem=_problem(job, str(error)))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            examination_requests.staged_policy(staging).unlink(missing_ok=True)

    def _fetch(self, job: Job, staging: Path) -> Fetch:
        """Examine the policy for a job, and put it into the directory of the job.

        :raises DiskFullError: there is no space to write the policy.
        :raises OSError: no process could be started, or the policy not be read or written.
        """
        request = examination_requests.request_for_source(job, self._paths, staging)
        (answer,) = side_by_side.ask(
            [request], processes=1, kept=self._children, watch=self._stop_if_closing
        )
        preflight.raise_if_disk_full(answer, self._paths.root)
        if answer.problem is not None:
            kind = FailedFetch if answer.cause == "process" else UnfitPolicy
            return kind(job_id=job.job_id, problem=_problem(job, answer.problem))
        assert answer.init_sha256 is not None
        with disk_full_explained(self._paths.root, repeat_call()):
            content = examination_requests.staged_policy(staging).read_bytes()
            init = self._paths.job(job.job_id).init
            # Should it be gone: what else is missing is found, and said, at the launch.
            init.parent.mkdir(parents=True, exist_ok=True)
            write_whole(init, content)
        return FetchedPolicy(
            job_id=job.job_id, sha256=answer.init_sha256, env_steps=answer.init_env_steps
        )

    def _stop_if_closing(self, *_: int) -> None:
        if self._is_closing.is_set():
            raise InterruptedError("the run stops")


def _problem(job: Job, why: str) -> str:
    return f"cannot start from job {job.spec.init_job}: {why}"
