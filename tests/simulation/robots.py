"""Robots of simulated jobs: files of the user, which change, and the copies that are trained."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.core.errors import DiskFullError, Problem
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_hash import robot_hash
from orchestrator.experiment.examination.preflight import JobVerdict
from tests.simulation.scenario import SimulatedJob, Trouble
from tests.simulation.worker import GIVEN, Worker
from tests.simulation.world import Violation, World

MAIN = "body.xml"
MESH = "meshes/foot.stl"
REFUSED = "a robot that cannot be trained"
MOST_CONTENTS = 12
"""Of one robot."""


@dataclass(slots=True, kw_only=True)
class Robots:
    """The files of robots, and their copies in the directories of jobs."""

    world: World
    paths: RunPaths
    _changed_in: dict[str, int] = field(default_factory=dict)
    """During which supervisor the copy of a job was changed by others since it was compared, by
    ``job_id``."""
    _compared_in: dict[str, int] = field(default_factory=dict)
    """By which supervisor the copy of a job was compared last."""

    def job_of(
        self, made: Callable[[SimulatedJob, int], Job]
    ) -> Callable[[SimulatedJob, int], Job]:
        """``made`` with robots, whose files are as they are declared."""

        def with_robot(simulated: SimulatedJob, number: int) -> Job:
            job = made(simulated, number)
            if not simulated.robot:
                return job
            folder = self.world.root / "robots" / simulated.name
            with self.world.own_work():
                for name, content in _files(simulated).items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_text(content)
            return replace(job.with_spec(xml=f"robot/{MAIN}"), xml_source=folder / MAIN)

        return with_robot

    def entered(self, job: SimulatedJob, found: str | None) -> int:
        """Which contents the robot has whose hash is entered with ``job``; 0: it has none."""
        if found is None:
            return 0
        for number in range(1, MOST_CONTENTS):
            one = {name: text.encode() for name, text in _files(replace(job, robot=number)).items()}
            if robot_hash(MAIN, one) == found:
                return number
        raise Violation(f"{job.job_id} is entered with a robot that there was never")

    # -- copies in the directories of jobs

    def change(self, trouble: Trouble) -> None:
        """Others change a file of a copy, or remove the copy; after a power cut it may be gone."""
        copy = self.paths.job(trouble.job).robot
        file = copy / (MESH if trouble.choice % 2 else MAIN)
        if not (copy if trouble.what == "remove" else file).exists():
            return
        self._changed_in[trouble.job] = self.world.counts["lives"]
        with self.world.own_work():
            if trouble.what == "remove":
                self.world.disk.others_change()
                shutil.rmtree(copy)
            else:
                file.write_text("another robot")

    def compared(self, job_id: str) -> None:
        """The supervisor has found the copy intact, or has put it back. It does so once, before the
        first attempt that it launches, also where that cannot be started then.
        """
        lives = self.world.counts["lives"]
        if self._compared_in.get(job_id) != lives:
            self._compared_in[job_id] = lives
            self._changed_in.pop(job_id, None)

    def launched(self, worker: Worker, job: SimulatedJob) -> None:
        """The copy that is trained is the one that was examined, as far as the supervisor has had an
        occasion to see that.
        """
        lives, job_id = self.world.counts["lives"], job.job_id
        was_compared = self._compared_in.get(job_id) == lives
        is_excused = was_compared and self._changed_in.get(job_id) == lives
        expected = _files(job) if job.robot else {}
        if _contents(worker.paths.robot) != expected and not is_excused:
            raise Violation(f"{job_id} is trained with another robot than {job.robot}")


def staged(job: Job, staging: Path, world: World) -> JobVerdict:
    """A copy in ``staging`` of the robot of ``job``, made by the process that examines it."""
    if job.xml_source is None:
        return JobVerdict()
    origin, copy = job.xml_source.parent, staging / job.job_id
    with world.other_process(world.new_pid()):
        try:
            for name in (MAIN, MESH):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (copy / name).write_bytes((origin / name).read_bytes())
        except OSError as error:
            raise DiskFullError(f"{copy}: {error}") from error
        found = robot_hash(MAIN, {name: copy / name for name in (MAIN, MESH)})
    return JobVerdict(bundle=copy, xml=MAIN, robot_hash=found)


def refused(job: Job, staging: Path, world: World) -> JobVerdict:
    """Of a robot that cannot be trained. One that is no file of its user is kept in ``staging``."""
    problem = Problem(where=job.where, message="cannot be trained")
    if not job.spec.env_kwargs.get(GIVEN, False):
        return JobVerdict(problem=problem)
    given = staging / f"{job.job_id}.given.xml"
    with world.other_process(world.new_pid()):
        try:
            write_whole(given, REFUSED)
        except OSError as error:
            raise DiskFullError(f"{given}: {error}") from error
    return JobVerdict(problem=problem, given=given)


def _files(job: SimulatedJob) -> Mapping[str, str]:
    return {MAIN: f"robot of {job.name}, {job.robot}", MESH: f"foot of {job.name}"}


def _contents(folder: Path) -> Mapping[str, str]:
    paths = folder.rglob("*") if folder.exists() else ()
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in paths if path.is_file()
    }
