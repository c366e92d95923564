"""The controllers of docs/deploy.md, and a simulated robot for them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.envs.model_loading import load_model

DOCUMENT = Path(__file__).parents[4] / "docs/deploy.md"
ROBOT_IN_C = """
#include <stdio.h>
#include <stdlib.h>
#include "walker.h"
struct sensors {
    float angular_velocity[3], gravity[3];
    float position[WALKER_JOINTS], velocity[WALKER_JOINTS];
};
static void take(float *values, size_t count)
{
    if (fread(values, sizeof *values, count, stdin) != count) exit(0);
}
void read_sensors(struct sensors *sensors)
{
    take(sensors->angular_velocity, 3);
    take(sensors->gravity, 3);
    take(sensors->position, WALKER_JOINTS);
    take(sensors->velocity, WALKER_JOINTS);
}
void read_command(float *command) { take(command, WALKER_COMMANDS); }
void write_ctrl(const float *ctrl)
{
    fwrite(ctrl, sizeof *ctrl, WALKER_ACTIONS, stdout);
    fflush(stdout);
}
void stop_robot(void) { fputs("stopped", stderr); }
"""
"""What the document leaves to the robot: here sensors come from standard input, and ``ctrl`` goes to
standard output, as float32."""


class Sensors(NamedTuple):
    """As in the document."""

    angular_velocity: NDArray[Any]
    gravity: NDArray[Any]
    position: NDArray[Any]
    velocity: NDArray[Any]


class Robot:
    """A robot with a free root in plain MuJoCo, with the sensors of the document."""

    def __init__(self, xml: Path, qpos: NDArray[Any], qvel: NDArray[Any], steps: int) -> None:
        self.model = load_model(xml)
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = qpos
        self.data.qvel[:] = qvel
        self._steps = steps

    def read(self) -> Sensors:
        axes = np.zeros(9)
        mujoco.mju_quat2Mat(axes, self.data.qpos[3:7])
        return Sensors(
            angular_velocity=self.data.qvel[3:6].copy(),
            gravity=axes.reshape(3, 3).T @ [0.0, 0.0, -1.0],
            position=self.data.qpos[7:].copy(),
            velocity=self.data.qvel[6:].copy(),
        )

    def write(self, ctrl: NDArray[Any]) -> None:
        self.data.ctrl[:] = ctrl
        mujoco.mj_step(self.model, self.data, nstep=self._steps)


def compiled_controller(header: Path, folder: Path) -> Path:
    """The loop in C of the document, with ``header``, which is that of a policy ``walker``."""
    [code] = re.findall(r"```c\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (folder / "walker.h").write_bytes(header.read_bytes())
    (folder / "controller.c").write_text(code)
    (folder / "robot.c").write_text(ROBOT_IN_C)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"]
    command = ["cc", *flags, "controller.c", "robot.c", "-o", "controller", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "controller"
