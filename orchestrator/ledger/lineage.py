"""Which job each job started from, and how many env_steps its policy had been trained for by then.

A job knows it itself (``init_env_steps`` of its spec) unless an earlier version of this program
entered it. Then its ancestors in the same ledger are asked, each with all its env_steps.
"""

from __future__ import annotations

import contextlib
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

    spec: Mapping[str, Any]
    env_steps: int


@dataclass(slots=True, kw_only=True)
class Lineages:
    """Of the jobs of one run directory. Damaged declarations are as if nothing were known."""

    run_dir: Path
    read: Callable[[str], tuple[object, object] | None]
    """The text of the declaration of a job, and its env_steps, as the ledger has them; None: there
    is no such job."""
    _folders: Sequence[str] = field(init=False)
    """Texts with which paths of jobs of this run directory begin."""
    _earlier: dict[str, int | None] = field(default_factory=dict, init=False)
    """By job: what :meth:`earlier_env_steps` has found."""

    def __post_init__(self) -> None:
        jobs = str(RunPaths(self.run_dir).jobs)
        self._folders = tuple({f"{os.path.abspath(jobs)}/", f"{os.path.realpath(jobs)}/"})  # noqa: PTH100

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

    def earlier_env_steps(self, job_id: str, spec: Mapping[str, Any]) -> int | None:
        """env_steps of the job that a job started from, up to then, of the one that this started
        from, and so on; 0 for random weights; None: not known.
        """
        chain: list[tuple[str, int]] = []
        """Ancestors that do not know it themselves, with their descendants: ``(job, env_steps of the
        one that it started from)``."""
        seen = {job_id}
        while True:
            if job_id in self._earlier:
                found = self._earlier[job_id]
                break
            is_known, found = _told(spec)
            if is_known:
                break
            parent = self.parent(spec)
            ancestor = None if parent is None or parent in seen else self._ancestor(parent)
            if parent is None or ancestor is None:
                self._earlier[job_id] = found = None
                break
            chain.append((job_id, ancestor.env_steps))
            seen.add(parent)
            job_id = parent
            spec = ancestor.spec
        for descendant, env_steps in reversed(chain):
            found = None if found is None else found + env_steps
            self._earlier[descendant] = found
        return found

    @staticmethod
    def is_told(spec: Mapping[str, Any]) -> bool:
        """Whether a declaration itself says what :meth:`earlier_env_steps` is about."""
        return _told(spec)[0]

    def _ancestor(self, job_id: str) -> Ancestor | None:
        match self.read(job_id):
            case (str(text), int(env_steps)) if env_steps >= 0:
                with contextlib.suppress(ValueError):
                    spec = parsed_json(text)
                    return Ancestor(spec=spec, env_steps=env_steps) if type(spec) is dict else None
        return None


def _told(spec: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Whether a declaration says itself what :meth:`Lineages.earlier_env_steps` is about; and what."""
    if spec.get("init") is None:
        return True, 0
    match spec.get("init_env_steps"):
        case bool():
            return False, None
        case int(told) if told >= 0:
            return True, told
    return False, None
