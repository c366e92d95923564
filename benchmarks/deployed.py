"""A policy on a simulated robot: the controller in C of docs/deploy.md drives it at the real rate.

    python -m benchmarks.deployed JOB_DIR [--seconds 20] [--json FILE]

The job's task is ``track`` with ``observe = "proprioception"``, on a robot with a free root. Its
policy is exported as a C header, compiled with the loop of the document, and run as a process that
reads sensors and writes ``ctrl`` once a control period. The robot is that of the job, and one that
is changed: a heavier root, less friction, softer servos. Beside it, the policy itself drives the
same robot in the job's environment, from the same start and by the same commands. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

import orchestrator
from benchmarks.harness import ROOT
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.export.worker import job_export
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.robots.bundle import collect
from orchestrator.worker.robots.model_edits import RobotVariants

DOCUMENT = ROOT / "docs/deploy.md"
WEIGHT = 1.2
"""Of the changed robot's root, as a factor, as is the next but one."""
FRICTION = 0.6
"""Of all geoms of the changed robot, along the surface."""
GAINS = 0.9
POLICY = "the policy in its environment"
CONTROLLER = "the controller in C"
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


class Motion(NamedTuple):
    """One row for each control step, the first one before any."""

    qpos: NDArray[Any]
    qvel: NDArray[Any]
    commands: NDArray[Any]
    """``(steps, 3)``"""
    late: int = 0
    """Control periods that took longer than they should."""


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


def in_environment(job_dir: Path, xml: Path, steps: int, checkpoint: str | None) -> Motion:
    """The policy itself, up to the end of the episode."""
    model, env = orchestrator.load(
        job_dir, checkpoint=checkpoint, n_envs=None, randomize=False, xml=xml
    )
    simulation = env.unwrapped._simulation  # type: ignore[attr-defined]
    observation, _ = env.reset(seed=0)
    poses, velocities, commands = [], [], []
    for _ in range(steps):
        poses.append(simulation.states.qpos[0].copy())
        velocities.append(simulation.states.qvel[0].copy())
        commands.append(simulation.states.goals[0].copy())
        action, _ = model.predict(observation, deterministic=True)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    poses.append(simulation.states.qpos[0].copy())
    velocities.append(simulation.states.qvel[0].copy())
    return Motion(np.array(poses), np.array(velocities), np.array(commands))


def by_controller(
    controller: Path, xml: Path, expected: Motion, physics_steps: int, period_s: float
) -> Motion:
    """The controller's process, from the start and by the commands of ``expected``."""
    robot = Robot(xml, expected.qpos[0], expected.qvel[0], physics_steps)
    poses, velocities = [expected.qpos[0]], [expected.qvel[0]]
    late = 0
    with subprocess.Popen([controller], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        begun = time.monotonic()
        for number, command in enumerate(expected.commands):
            process.stdin.write(
                np.concatenate([*robot.read(), command]).astype(np.float32).tobytes()
            )
            process.stdin.flush()
            given = process.stdout.read(4 * robot.model.nu)
            if len(given) < 4 * robot.model.nu:
                raise UsageError(f"the controller has stopped after {number} steps")
            ctrl = np.frombuffer(given, np.float32)
            late += time.monotonic() - begun > (number + 1) * period_s
            robot.write(ctrl)
            poses.append(robot.data.qpos.copy())
            velocities.append(robot.data.qvel.copy())
        process.stdin.close()
    return Motion(np.array(poses), np.array(velocities), expected.commands, late)


def changed_robot(xml: Path, model: mujoco.MjModel, folder: Path) -> Path:
    """Write the robot with another root, friction and gains, as ``model`` of a job would.

    :param model: the compiled ``xml``.
    """
    root = int(model.jnt_bodyid[0])
    name = model.body(root).name
    edits: dict[str, Any] = {"geom.*.friction": [FRICTION, 0.005, 0.0001]}
    if mujoco.MjSpec.from_file(str(xml)).body(name).explicitinertial:
        edits[f"body.{name}.mass"] = float(model.body_mass[root]) * WEIGHT
    else:  # its geoms have the mass
        edits["option.gravity"] = (model.opt.gravity * WEIGHT).tolist()
    for actuator in range(model.nactuator):
        name = model.actuator(actuator).name
        edits[f"actuator.{name}.kp"] = float(model.actuator_gainprm[actuator, 0]) * GAINS
    with RobotVariants(collect(xml)) as variants:
        return variants.edited_robot(edits).bundle.write(folder)


class Figures(NamedTuple):
    path_m: float
    """Length of the root's way in the horizontal plane, sampled once a second, so that trembling is
    none."""
    velocity_error: float
    """Mean distance of the velocity from the command's, in m/s, in the root's own heading."""
    seconds: float


def figures(motion: Motion, period_s: float) -> Figures:
    w, x, y, z = motion.qpos[1:, 3:7].T
    heading = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y**2 + z**2))
    velocity = np.diff(motion.qpos[:, :2], axis=0) / period_s
    forward = np.cos(heading) * velocity[:, 0] + np.sin(heading) * velocity[:, 1]
    left = np.cos(heading) * velocity[:, 1] - np.sin(heading) * velocity[:, 0]
    commanded = motion.commands[: len(forward)]
    error = np.hypot(forward - commanded[:, 0], left - commanded[:, 1]).mean()
    places = motion.qpos[:: max(1, round(1 / period_s)), :2]
    steps = np.linalg.norm(np.diff([*places, motion.qpos[-1, :2]], axis=0), axis=1)
    return Figures(float(steps.sum()), float(error), len(forward) * period_s)


def measure(job_dir: Path, seconds: float, checkpoint: str | None = None) -> list[dict[str, Any]]:
    """:param checkpoint: as for ``export``. :raises UsageError: the job is no such job."""
    spec = WorkerSpec.from_json((job_dir / "spec.json").read_text())
    if spec.task != "track" or spec.task_options.get("observe") != "proprioception":
        raise UsageError(
            f'{job_dir}: expected a job with task = "track" and observe = "proprioception"'
        )
    own = job_dir / str(spec.xml)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        header = folder / "walker.h"
        job_export.export(
            argparse.Namespace(job_dir=job_dir, to=header, checkpoint=checkpoint, check=False)
        )
        controller = compiled_controller(header, folder)
        env: Any = orchestrator.make_env(job_dir, None, randomize=False, normalize=False)
        simulation = env.unwrapped._simulation
        period_s = simulation.control_period_s
        physics_steps = simulation.task.frame_skip
        changed = changed_robot(own, simulation.model, folder / "robot")
        for robot, xml in (("of the job", own), ("changed", changed)):
            played = in_environment(job_dir, xml, round(seconds / period_s), checkpoint)
            driven = by_controller(controller, xml, played, physics_steps, period_s)
            rows += [
                {"robot": robot, "driven by": by, "late": motion.late}
                | figures(motion, period_s)._asdict()
                for by, motion in ((POLICY, played), (CONTROLLER, driven))
            ]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--checkpoint", help="of a job that has not ended, such as latest")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    try:
        rows = measure(given.job_dir, given.seconds, given.checkpoint)
    except (OrchestratorError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    print("| robot | driven by | seconds | way, m | velocity error, m/s | late periods |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['robot']} | {row['driven by']} | {row['seconds']:.1f} | {row['path_m']:.2f} "
            f"| {row['velocity_error']:.3f} | {row['late']} |"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
