"""The commands of users, given to a simulated run directory at any moment: the real ones."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.errors import DiskFullError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import control, run_snapshot
from tests.simulation import job_files
from tests.simulation.added_jobs import Searcher
from tests.simulation.job_files import JobFiles
from tests.simulation.monitor import Monitor
from tests.simulation.scenario import Trouble
from tests.simulation.world import HOST, GaveUpError, World

ELSEWHERE = "elsewhere"


@dataclass(slots=True, kw_only=True)
class Commands:
    world: World
    monitor: Monitor
    files: JobFiles
    searcher: Searcher

    def give(self, trouble: Trouble) -> None:
        world = self.world
        if trouble.kind in job_files.KINDS:
            self.files.happens(trouble)
            return
        if trouble.kind == "examiner":  # it has been counted, which is all
            return
        if trouble.kind == "searcher":
            self.searcher.killed(trouble)
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
                return self.files.reload()
            case "clean":
                return self.files.clean()
            case "status":
                rows = run_snapshot.status(run_dir).rows
                return ", ".join(f"{row['job_id']} {row['state']}" for row in rows)
        raise AssertionError(trouble)
