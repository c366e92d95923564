"""What the page of `serve --all-users` shows: the experiments of all users of this machine, as far as
who has started the server may read them.
"""

from __future__ import annotations

import os
import shlex
import socket
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.experiment.from_outside.machine_runs import MachineRun
from orchestrator.features.live_page.board import Changes, to_json
from orchestrator.features.live_page.folder_source import key_of
from orchestrator.features.live_page.job_row import brief, safe_text
from orchestrator.features.live_page.machine_reader import MachineReader
from orchestrator.features.live_page.run_source import LONGEST_TEXT
from orchestrator.machine.topology import MIB
from orchestrator.machine.users import ask_user, sudo_name, user_who_decides

LOOKS = Pace(every_s=5.0, share=0.02, longest_s=60.0)
"""How often the experiments are looked at while somebody has the page open; the share is of one
core."""
OF_OTHERS = "Experiments of others are shown in full to their owners"
AS_OWNER = "sudo -u USER orchestrator serve RUN_DIR"


class MachineSource:
    """Looks at the experiments of all users in a process of its own. Used by several threads."""

    def __init__(self) -> None:
        self._reader = MachineReader()
        self._lock = threading.Lock()
        self._pacer = Pacer(LOOKS)
        self._runs: Mapping[str, MachineRun] = {}
        """By the names in addresses. Replaced as a whole, never changed, as are the pieces."""
        self._pieces: Mapping[str, str] = {}
        self._shown: set[str] = set()

    def run_dir(self, key: str) -> Path | None:
        """The run directory that a page names ``key``.

        :raises UsageError: this process may not read it, or is root's and does not: another user
            decides what lies there.
        """
        if key not in self._runs:
            self._look()
        run = self._runs.get(key)
        if run is None:
            return None
        if not _may_open(run):
            raise UsageError(_why_closed(run))
        return Path(run.facts.run_dir)

    def read(self) -> Changes:
        self._look()
        pieces = self._pieces
        changes = Changes(put=dict(pieces), drop=list(self._shown - pieces.keys()))
        self._shown = set(pieces)
        return changes

    def close(self) -> None:
        """May be called while another thread looks."""
        self._reader.close()

    def _look(self) -> None:
        """Look at all experiments, unless that was done not long ago."""
        with self._lock:
            if not self._pacer.is_due():
                return
            try:
                look = self._reader.look()
            except OrchestratorError as error:
                self._pacer.wait(LOOKS.every_s)
                self._pieces = {**self._pieces, "head": _head(self._runs.values(), [f"{error}."])}
                return
            self._pacer.wait(LOOKS.pause_s(look.cpu_s))
            runs = {_key(run): run for run in look.found.runs}
            pieces = {f"run:{key}": to_json(_facts(key, run)) for key, run in runs.items()}
            pieces["head"] = _head(runs.values(), look.found.problems)
            self._runs, self._pieces = runs, pieces


def _may_open(run: MachineRun) -> bool:
    """Whether this process may read the run directory itself. With the rights of root it may not
    where another user decides what lies there.
    """
    run_dir = Path(run.facts.run_dir)
    if not run_dir.is_absolute():
        return False
    if os.geteuid() == 0:
        return run.uid == 0 and user_who_decides(run_dir) is None
    return os.access(run_dir, os.R_OK | os.X_OK)


def _why_closed(run: MachineRun) -> str:
    """Why this server does not open the experiment, and what to do."""
    run_dir = Path(run.facts.run_dir)
    if not run_dir.is_absolute():
        return (
            f"{run.facts.name}: has no run directory on this machine, so there is nothing to open"
        )
    if os.geteuid() != 0:
        return f"{run_dir}: you may not read it; {ask_user(run.user)}"
    closed = "a server of root neither shows nor changes what is in it"
    if run.uid == 0:
        decides = "others than root may change what is in it, or in a folder above it"
        return f"{run_dir}: {decides}; {closed}. `status {run_dir}` reads it"
    as_owner = f"sudo -u {sudo_name(run.uid)} orchestrator serve"
    if str(run_dir).isprintable():
        as_owner += f" {shlex.quote(str(run_dir))}"
    else:  # it is shown otherwise than it is
        as_owner += " RUN_DIR"
    return f"{run_dir}: belongs to {run.user}; {closed}. As {run.user}: {as_owner}"


def _key(run: MachineRun) -> str:
    """Names the experiment in addresses. What one user says is not taken for what another one does."""
    run_dir = run.facts.run_dir
    if not run_dir.startswith("/"):  # of a process that holds CPUs without one
        return key_of(f"{run_dir} {run.uid} {run.facts.pid}")
    return key_of(run_dir, "" if run.uid == os.geteuid() else f" {run.uid}")


def _facts(key: str, run: MachineRun) -> dict[str, Any]:
    found = run.facts
    return {
        "key": key,
        "name": safe_text(found.name, LONGEST_TEXT),
        "root": safe_text(found.run_dir, LONGEST_TEXT),
        "state": found.state,
        "counts": dict(found.jobs),
        "supervisor": "" if found.pid is None else f"pid {found.pid}",
        "noted": None,
        "problem": safe_text(found.problem, LONGEST_TEXT),
        "may_open": _may_open(run),
        "user": run.user,
        "cpus": run.cpus,
        "load": None if run.load is None else round(run.load, 1),
        "memory_mib": brief(run.memory_mib),
        "disk_mib": brief(found.disk_mib),
        "eta_s": None if found.eta_s is None else round(found.eta_s),
    }


def _head(runs: Collection[MachineRun], problems: Iterable[str]) -> str:
    """Of the machine."""
    memory = psutil.virtual_memory()
    notes = [safe_text(problem, LONGEST_TEXT) for problem in problems]
    if any(run.facts.run_dir.startswith("/") and not _may_open(run) for run in runs):
        notes.append(f"{OF_OTHERS}: {AS_OWNER}" if os.geteuid() == 0 else f"{OF_OTHERS}.")
    held = {cpu for run in runs for cpu in run.cpus}
    return to_json(
        {
            "name": f"all users of {socket.gethostname()}",
            "runs": len(runs),
            "kind": "folder",
            "note": " ".join(notes),
            "machine": {
                "cpus": os.cpu_count(),
                "held": len(held.intersection(range(os.cpu_count() or 1))),
                "load": round(os.getloadavg()[0], 1),
                "memory_mib": (memory.total - memory.available) // MIB,
                "memory_total_mib": memory.total // MIB,
            },
        }
    )
