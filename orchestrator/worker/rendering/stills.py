"""``python -m orchestrator.worker.rendering.stills [--library L | --probe] JOB_DIR …``: draw the
still of each job.

It is drawn from the pose that the job's evaluation has kept
(:mod:`orchestrator.worker.training.best_moment`), which is removed then. Neither torch nor the
policy is loaded, so that a still costs little. With ``--probe``, which costs more, OpenGL libraries
are tried in processes of their own first, as they may crash, and the last line of standard error
names the one that works.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    import mujoco

SIZE = (480, 360)
"""Width and height in pixels."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class KeptMoment:
    """What the evaluation has kept."""

    pose: Pose
    model: bytes
    """Of an environment that is no task, in MuJoCo's binary format."""


def read(paths: JobPaths) -> KeptMoment:
    """What the job's evaluation has kept. :raises OSError, ValueError: it cannot be read."""
    try:
        with np.load(paths.moment, allow_pickle=False) as arrays:
            state = arrays["state"]
            marker = tuple(arrays["marker"].tolist())
            model = arrays["model"].tobytes()
            place: list[float] = arrays["ground"].tolist()
    except (KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{paths.moment} is damaged: {error}") from error
    ground: TerrainPlace | None = None
    if len(place) == 3:
        geom, x_m, y_m = place
        ground = TerrainPlace(geom=int(geom), x_m=x_m, y_m=y_m)
    pose = Pose(state=state, marker=marker if len(marker) == 3 else None, ground=ground)
    return KeptMoment(pose=pose, model=model)


def draw(paths: JobPaths) -> None:
    """Write ``preview.png`` and remove the pose that it shows. :raises OSError: a file cannot be
    read or written.
    """
    from PIL import Image

    kept = read(paths)
    frame = offscreen.Frame(0, 0.0, kept.pose)
    with offscreen.PoseRenderer(robot_as_drawn(paths, kept), SIZE) as renderer:
        [picture] = renderer.render([frame])
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "PNG")
    write_whole(paths.preview, content.getvalue(), durable=False)
    paths.moment.unlink(missing_ok=True)


def robot_as_drawn(paths: JobPaths, kept: KeptMoment) -> mujoco.MjModel:
    """The robot as it is drawn. :raises ValueError: it cannot be compiled, or the pose is not one
    of it.
    """
    import mujoco

    if kept.model:
        model = mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": kept.model})
    else:
        spec = WorkerSpec.from_json(paths.spec.read_text(encoding="utf-8"))
        # Where it is not known where the terrain lies, the robot is drawn on the flat floor.
        terrain = None if kept.pose.ground is None else terrain_of(spec.randomize)
        model = scenery.add_scenery(paths.root / str(spec.xml), terrain)
    if mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION) != kept.pose.state.size:
        raise ValueError("the robot in the job directory is not the one that was trained")
    return model


def main(options: argparse.Namespace) -> None:
    """Draw the still of each job.

    :raises OrchestratorError: nothing can be drawn here, or some could not be drawn, and the
        others have been.
    """
    if options.probe:
        gl_library.choose_gl()
    os.environ.setdefault("MUJOCO_GL", options.library)
    problems: dict[str, str] = {}
    jobs = [path.absolute() for path in options.job_dirs]
    with TemporaryFolder() as folder:
        os.chdir(folder)  # MuJoCo writes MUJOCO_LOG.TXT where it works
        for path in jobs:
            try:
                draw(JobPaths(path))
            # Of a robot, such as one whose file was changed, or of OpenGL.
            except Exception as error:
                _try_gl()
                problems[path.name] = failures.describe(error)
                # After an OSError, as of a full disk, a later run may draw it.
                if not isinstance(error, OSError):
                    JobPaths(path).moment.unlink(missing_ok=True)
    if problems:
        [first, *_] = problems.values()
        raise OrchestratorError(f"{listed(list(problems), SHOWN)}: {first}")
    if options.probe:
        print(os.environ["MUJOCO_GL"], file=sys.stderr)


def _try_gl() -> None:
    """Render anything. :raises gl_library.CannotRender: there is no OpenGL."""
    try:
        import mujoco

        with contextlib.closing(
            mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 16, 16)
        ):
            pass
    except Exception as error:  # of any kind: the driver's, or of the package that binds it
        raise gl_library.CannotRender(
            f"OpenGL does not work here: {failures.describe(error)}"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.worker.rendering.stills", allow_abbrev=False
    )
    parser.add_argument("--probe", action="store_true")
    parser.add_argument(
        "--library", default=gl_library.GL_LIBRARIES[0], choices=gl_library.GL_LIBRARIES
    )
    parser.add_argument("job_dirs", type=Path, nargs="+")
    return parser


if __name__ == "__main__":
    child_command.run(lambda: main(_parser().parse_args()))
