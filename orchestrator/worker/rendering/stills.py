"""``python -m orchestrator.worker.rendering.stills JOB_DIR …``: draw the still of each job.

It is drawn from the pose that the job's evaluation has kept
(:func:`orchestrator.worker.training.evaluation.pose_file`), which is removed then. Neither torch nor the
policy is loaded, so that a still costs little.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.numbers.terrain import terrain_of
from orchestrator.core.paths import JobPaths
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.episode_conditions import TerrainPlace
from orchestrator.worker.envs.poses import Pose
from orchestrator.worker.rendering import gl_library, offscreen, scenery
from orchestrator.worker.runtime import child_command, failures

SIZE = (480, 360)
"""Width and height in pixels."""
SHOWN = 3


def draw(paths: JobPaths) -> None:
    """Write ``preview.png`` and remove the pose that it shows.

    :raises OSError: a file cannot be read or written.
    :raises ValueError: the pose is damaged, or the robot is another one.
    """
    import mujoco
    from PIL import Image

    try:
        with np.load(paths.moment, allow_pickle=False) as arrays:
            kept = {name: arrays[name] for name in ("state", "marker", "ground")}
    except (EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{paths.moment} is damaged: {error}") from error
    ground = None
    if kept["ground"].size:
        geom, x_m, y_m = kept["ground"].tolist()
        ground = TerrainPlace(geom=int(geom), x_m=x_m, y_m=y_m)
    marker = tuple(kept["marker"].tolist()) or None
    spec = WorkerSpec.from_json(paths.spec.read_text(encoding="utf-8"))
    terrain = None if ground is None else terrain_of(spec.randomize)
    model = scenery.add_scenery(paths.root / str(spec.xml), terrain)
    if mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION) != kept["state"].size:
        raise ValueError("the robot in the job directory is not the one that was trained")
    with offscreen.PoseRenderer(model, *SIZE) as renderer:
        picture = renderer.picture(Pose(state=kept["state"], marker=marker, ground=ground))
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "PNG")
    write_whole(paths.preview, content.getvalue(), durable=False)
    paths.moment.unlink(missing_ok=True)


def main(job_dirs: Sequence[str]) -> None:
    """Draw the still of each job.

    :raises gl_library.CannotRender: nothing can be drawn here.
    :raises OrchestratorError: some could not be drawn, and the others have been.
    """
    gl_library.choose_gl()
    problems: dict[str, str] = {}
    jobs = [Path(job_dir).absolute() for job_dir in job_dirs]
    with TemporaryFolder() as folder:
        os.chdir(folder)  # MuJoCo writes MUJOCO_LOG.TXT where it works
        for path in jobs:
            try:
                draw(JobPaths(path))
            except Exception as error:  # such as a full disk: a later run may draw it
                problems[path.name] = failures.describe(error)
                if isinstance(error, ValueError):  # the robot was changed: it cannot be drawn later
                    JobPaths(path).moment.unlink(missing_ok=True)
    if problems:
        [first, *_] = problems.values()
        raise OrchestratorError(f"{listed(list(problems), SHOWN)}: {first}")


if __name__ == "__main__":
    child_command.run(lambda: main(sys.argv[1:]))
