"""The real commands of users, given to a simulated run directory at any moment."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from orchestrator.core.errors import DiskFullError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import control, run_snapshot
from tests.simulation.job_files import JobFiles
from tests.simulation.monitor import Monitor
from tests.simulation.scenario import Trouble
from tests.simulation.world import HOST, GaveUpError, World

ELSEWHERE = "elsewhere"
ODD_REQUESTS = (
    ("set", "max_parallel=many"),
    ("set", f"max_parallel={'9' * 5000}"),
    ("set", "colour=red"),
    ("promote", "nobody=end"),
    ("promote", "j0-s0=soon"),
    ("retry", "nobody"),
    ("resume", None),
    ("stop", "somebody else"),
    ("add", "somebody else"),
    ("dance", "j0-s0"),
)
"""Requests that no version of this program makes."""


@dataclass(slots=True, kw_only=True)
class Commands:
    world: World
    monitor: Monitor
    files: JobFiles

    def give(self, trouble: Trouble) -> None:
        world = self.world
        if trouble.kind in ("edit", "begin"):
            self.files.happens(trouble)
            return
        if trouble.kind == "odd-requests":
            self._send_odd_requests()
            return
        pid = world.new_pid()
        host = ELSEWHERE if trouble.elsewhere else HOST
        self.monitor.asked(trouble)
        is_alone = self._is_alone()
        try:
            with world.users_process(pid, host), world.perhaps_alone(is_alone):
                said = self._give(trouble)
        except (UsageError, DiskFullError, OSError) as error:
            world.log(f"refused: {str(error).partition(chr(10))[0]}")
            world.counts["refused commands"] += 1
            self.monitor.refused(trouble)
            if is_alone or not world.is_supervised:  # it has written states itself
                world.fall_back()
        except GaveUpError:
            world.log("the command waits for ever")
        else:
            world.log(f"said: {said}")
            self.monitor.told(trouble, said)
        finally:
            world.lives.pop(pid, None)

    def _is_alone(self) -> bool:
        """Whether no supervisor has the run directory; one that is about to end may still live."""
        paths = RunPaths(self.world.disk.run_dir)
        with self.world.own_work():
            return not paths.root.exists() or run_directory.holder(paths) is None

    def _give(self, trouble: Trouble) -> str:
        run_dir = self.world.disk.run_dir
        match trouble.kind:
            case "stop":
                return control.stop(run_dir, [])
            case "stop-now":
                return control.stop(run_dir, [], now=True)
            case "cancel":
                return control.stop(run_dir, [trouble.job])
            case "pause" | "resume" | "retry":
                return control.ask(run_dir, [trouble.job], trouble.kind)
            case "set":
                return control.set_max_parallel(run_dir, trouble.number)
            case "reload":
                return self.files.reload(self.monitor.declared.by_id.keys())
            case "status":
                rows = run_snapshot.status(run_dir).rows
                return ", ".join(f"{row['job_id']} {row['state']}" for row in rows)
        raise AssertionError(trouble)

    def _send_odd_requests(self) -> None:
        """Put odd requests into the ledger, unless it is locked, and into a file."""
        paths = RunPaths(self.world.disk.run_dir)
        with self.world.own_work():
            if not paths.ledger.exists():
                return
            connection = sqlite3.connect(paths.ledger, timeout=0)
            try:
                sql = "INSERT INTO requests (verb, job_id) VALUES (?, ?)"
                connection.executemany(sql, ODD_REQUESTS)
                connection.commit()
            except sqlite3.DatabaseError:
                self.world.log("the ledger takes no odd requests")
            finally:
                connection.close()
            paths.requests.mkdir(exist_ok=True)
            (paths.requests / "9-odd.jsonl").write_bytes(b'{"verb": "dance"}\n{\n')
