"""Where the lowest point of a robot is, by which it is placed above its floor."""

from __future__ import annotations

import mujoco
import pytest

from orchestrator.features.urdf.worker import start_pose

TILTED = """
<mujoco>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body pos="0 0 0.5" euler="20 45 10">
      <freejoint/>
      <geom type="{shape}" size="0.1 0.05 0.02"/>
    </body>
  </worldbody>
</mujoco>"""


@pytest.mark.parametrize("shape", ["sphere", "capsule", "cylinder", "ellipsoid", "box"])
def test_the_lowest_point_of_a_tilted_shape_is_as_far_from_the_ground_as_mujoco_says(
    shape: str,
) -> None:
    model = mujoco.MjModel.from_xml_string(TILTED.format(shape=shape))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    model.geom_contype[0] = model.geom_conaffinity[0] = 0  # the ground is no part of the robot
    expected = mujoco.mj_geomDistance(model, data, 0, 1, 10.0, None)
    assert start_pose.lowest_point(model, data) == pytest.approx(expected, abs=1e-9)
