"""Where is the robot in the pictures? Run as a program, as MuJoCo chooses its OpenGL library when
it is imported.

``python picture_helpers.py XML…`` prints for each robot a JSON object: whether its own camera was
used, and for each of some moments under random actions the share of pixels that are the robot, and
whether it touches the picture's border; and how many pixels are green without and with a goal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MOMENTS, EVERY_S = 3, 0.6


def look(xml: Path) -> dict[str, Any]:
    import mujoco
    import numpy as np

    from orchestrator.worker.envs.poses import Pose, pose_of_data
    from orchestrator.worker.rendering import camera, offscreen, scenery

    model = scenery.add_scenery(xml)
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    frames = []
    rng = np.random.default_rng(0)
    for number in range(MOMENTS):
        mujoco.mj_forward(model, data)
        frames.append(offscreen.Frame(0, data.time, pose_of_data(model, data)))
        while data.time < (number + 1) * EVERY_S:
            data.ctrl[:] = rng.uniform(*model.actuator_ctrlrange.T)
            mujoco.mj_step(model, data)
    robot = camera.robot_geoms(model)
    geom = int(mujoco.mjtObj.mjOBJ_GEOM)
    found = []
    with offscreen.PoseRenderer(model) as renderer:
        ours = renderer.cameras(frames)[0].fixedcamid < 0
        for _ in renderer.render(frames):
            renderer.renderer.enable_segmentation_rendering()
            kinds = renderer.renderer.render()
            renderer.renderer.disable_segmentation_rendering()
            mask = (kinds[:, :, 1] == geom) & np.isin(kinds[:, :, 0], robot)
            border = mask[0].any() or mask[-1].any() or mask[:, 0].any() or mask[:, -1].any()
            found.append({"share": float(mask.mean()), "touches_border": bool(border)})
        bare = next(renderer.render(frames[:1]))
        mujoco.mj_setState(
            model, data, frames[0].content.state, mujoco.mjtState.mjSTATE_INTEGRATION
        )
        mujoco.mj_forward(model, data)
        top = camera.corners(model, data, robot).max(axis=0)
        goal = offscreen.Frame(0, 0.0, Pose(frames[0].content.state, tuple(top + 0.1)))
        marked = next(renderer.render([goal]))
    return {"own_camera": not ours, "moments": found, "green": [greens(bare), greens(marked)]}


def greens(picture: Any) -> int:
    """How many pixels are strongly green."""
    red, green, blue = picture.astype(int).transpose(2, 0, 1)
    return int(((green > red + 60) & (green > blue + 60)).sum())


if __name__ == "__main__":
    from orchestrator.worker.rendering import gl_library, offscreen

    gl_library.choose_gl()
    offscreen.WIDTH, offscreen.HEIGHT = 320, 240
    for argument in sys.argv[1:]:
        print(json.dumps(look(Path(argument))), flush=True)
