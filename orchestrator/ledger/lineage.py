"""Which job each job started from, and how many env_steps its policy had been trained for by then.

A job knows it itself (``init_env_steps`` of its spec) unless an earlier version of this program
entered it. Then its ancestors in the same ledger are asked, each with all its env_steps.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.decoding import parsed_json
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import INIT_JOB

ANCESTOR = """
SELECT d.spec, j.env_steps FROM declared d JOIN jobs j ON j.job_id = d.job_id WHERE d.job_id = ?
"""
"""What :class:`Lineages` reads of a job: its declaration, and how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """What a ledger says of a job that another one started from."""

    job_id: str
    spec: Mapping[str, Any]
    env_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earlier:
    """What is found of a job by :meth:`Lineages.earlier_env_steps`."""

    env_steps: int | None
    """None: not known."""

    def with_steps(self, env_steps: int) -> _Earlier:
        """Of a job that started after so many further env_steps."""
        return _Earlier(env_steps=None if self.env_steps is None else self.env_steps + env_steps)


@dataclass(kw_only=True)
class Lineages:
    """Of the jobs of one run directory. Damaged declarations are as if nothing were known."""

    run_dir: Path
    read: Callable[[str], tuple[object, object] | None]
    """The text of the declaration of a job, and its env_steps, as the ledger has them; None: there
    is no such job."""
    _found: dict[str, _Earlier] = field(default_factory=dict, init=False)
    """By job: what :meth:`earlier_env_steps` has found."""

    @functools.cached_property
    def _folders(self) -> Sequence[str]:
        """Texts with which paths of jobs of this run directory begin."""
        jobs = str(RunPaths(self.run_dir).jobs)
        return tuple({f"{os.path.abspath(jobs)}/", f"{os.path.realpath(jobs)}/"})  # noqa: PTH100

    def parent(self, spec: Mapping[str, Any]) -> str | None:
        """The job of this run directory whose policy a job started from; None: there is none.

        :param spec: the declaration of the job that started from it.
        """
        init = spec.get("init")
        if not isinstance(init, str):
            return None
        if init.startswith(INIT_JOB):
            return init.removeprefix(INIT_JOB) or None
        path = os.path.normpath(init)
        for folder in self._folders:
            if path.startswith(folder):
                job_id, _, file = path.removeprefix(folder).partition("/")
                return job_id if file in ("", "model.zip") else None
        return None

    def earlier_env_steps(self, job_id: str, spec: Mapping[str, Any], env_steps: int) -> int | None:
        """env_steps of the job that a job started from, up to then, of the one that this started
        from, and so on; 0 for random weights; None: not known.

        :param spec: the declaration of the job.
        :param env_steps: of the job itself. Before it has any, the one that it starts from may
            train on, and only its declaration says how far that is.
        """
        if not env_steps and _told(spec) is None:
            return None
        chain: list[tuple[str, int]] = []
        """Jobs that do not say it themselves, from the descendant to its ancestors: ``(job, env_steps
        of the one that it started from)``."""
        seen = {job_id}
        while (earlier := self._found.get(job_id) or _told(spec)) is None:
            ancestor = self._ancestor(spec)
            if ancestor is None or ancestor.job_id in seen:
                earlier = _Earlier(env_steps=None)
                self._found[job_id] = earlier
                break
            chain.append((job_id, ancestor.env_steps))
            seen.add(ancestor.job_id)
            job_id = ancestor.job_id
            spec = ancestor.spec
        for descendant, of_ancestor in reversed(chain):
            earlier = earlier.with_steps(of_ancestor)
            self._found[descendant] = earlier
        return earlier.env_steps

    def _ancestor(self, spec: Mapping[str, Any]) -> Ancestor | None:
        """The job that the one with this declaration started from; None where there is none that
        can be read.
        """
        job_id = self.parent(spec)
        if job_id is None:
            return None
        match self.read(job_id):
            case (str(text), int(env_steps)) if env_steps >= 0:
                with contextlib.suppress(ValueError):
                    declared = parsed_json(text)
                    if type(declared) is dict:
                        return Ancestor(job_id=job_id, spec=declared, env_steps=env_steps)
        return None


def env_steps_before(env_steps: int, lineage_env_steps: int | None) -> int | None:
    """env_steps for which a policy had been trained when its job started from it: 0 for random
    weights, None: not known. So it is true of jobs that are known to go on from another policy.

    :param env_steps: of the job, or of the jobs together.
    :param lineage_env_steps: as :attr:`.rows.SummaryRow.lineage_env_steps`.
    """
    return None if lineage_env_steps is None else lineage_env_steps - env_steps


def _told(spec: Mapping[str, Any]) -> _Earlier | None:
    """What a declaration itself says; None where it says nothing."""
    if spec.get("init") is None:
        return _Earlier(env_steps=0)
    match spec.get("init_env_steps"):
        case bool():
            return None
        case int(told) if told >= 0:
            return _Earlier(env_steps=told)
    return None
