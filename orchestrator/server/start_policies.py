"""Where the supervisor gets the policies from that jobs start from, when the jobs that trained them
have succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from orchestrator.core.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPolicy:
    """The policy for a job is in its directory."""

    job_id: str
    sha256: str
    env_steps: int | None = None
    """See :attr:`~orchestrator.core.worker_spec.WorkerSpec.init_env_steps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitPolicy:
    """The policy cannot be the start of the training of a job."""

    job_id: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFetch:
    """The policy for a job could not be examined or copied. It may be, if it is requested again."""

    job_id: str
    problem: str


Fetch: TypeAlias = FetchedPolicy | UnfitPolicy | FailedFetch


class StartPolicies(Protocol):
    """Fetches policies one after the other, without letting its caller wait."""

    @property
    def is_busy(self) -> bool:
        """Whether a policy that was requested has not been taken yet."""
        ...

    def needs(self, job: Job) -> bool:
        """Whether ``job``, which starts from another one, has no policy yet that its next attempt
        may begin with.
        """
        ...

    def request(self, job: Job) -> None:
        """Fetch the policy for ``job``, whose source has succeeded; nothing if that is under
        way.
        """
        ...

    def take(self) -> Sequence[Fetch]:
        """What has become of requests since the last call.

        :raises DiskFullError: there is no space for a policy.
        """
        ...


class NoPolicies:
    """For supervisors whose jobs start from no other job: those that would start with random
    weights.
    """

    is_busy = False

    def needs(self, job: Job) -> bool:
        return False

    def request(self, job: Job) -> None:
        raise AssertionError("no job needs a policy")

    def take(self) -> Sequence[Fetch]:
        return ()
