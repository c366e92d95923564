"""The small experiment: a robot, a job file, and an environment whose error is no UTF-8."""

from __future__ import annotations

from pathlib import Path

JOB_FILE = "jobs.toml"
RUN_DIR = "run"
RANKS = 2
OF_ONE_PROCESS = ("ppo-s0", "sac-s0")
"""Ids of the jobs that one process trains."""
OF_RANKS = "ranks-s0"
"""Id of the job that several processes train together."""
FAILING = "failing-s0"
"""Id of the job that fails."""
EDITED = 'gear="40"'
"""What is edited in the robot so that the weights change."""
EDIT = 'gear="20"'
"""What takes its place."""

ROBOT = """<mujoco model="pole">
  <option timestep="0.01" integrator="implicitfast"/>
  <default><geom contype="0" conaffinity="0" density="600"/></default>
  <worldbody>
    <body name="cart">
      <joint name="cart" type="slide" axis="1 0 0" range="-1.5 1.5" damping="0.8"/>
      <geom type="box" size="0.14 0.09 0.06"/>
      <body name="pole" pos="0 0 0.06">
        <joint name="pole" type="hinge" axis="0 1 0" damping="0.01"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.75" size="0.03"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="cart" joint="cart" gear="40" ctrlrange="-1 1"/></actuator>
</mujoco>
"""
JOBS = """name = "soak"
[defaults]
total_timesteps = 4_096
n_envs = 2
checkpoint_every = 1
eval_episodes = 1
preview = false
ppo = { n_steps = 64, batch_size = 64, n_epochs = 20 }
resources = { memory = "1 GiB", min_free_disk = 0 }

[[jobs]]
name = "ppo"
xml = "pole.xml"

[[jobs]]
name = "sac"
xml = "pole.xml"
algo = "sac"
sac = { buffer_size = 5_000, learning_starts = 512, batch_size = 32, train_freq = 8, gradient_steps = 1 }
policy_kwargs = { net_arch = [32, 32] }
resources.start = "fork"
"""
JOB_OF_RANKS = f"""
[[jobs]]
name = "ranks"
xml = "pole.xml"
resources.ranks = {RANKS}
"""
FAILING_JOB = """
[[jobs]]
name = "failing"
entry_point = "failing:Failing"
"""
ENVIRONMENT = r"""import os

import gymnasium
import numpy as np


class Failing(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, xml=None, seed=0):
        self.steps = 0

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 100:  # bytes that are no UTF-8, and an escape sequence of terminals
            raise ValueError("cannot read " + os.fsdecode(b"/dM\xfcl") + "\x1b]52;c;ZXZpbA==\x07")
        return np.zeros(1, np.float32), 0.0, False, False, {}
"""


def write(folder: Path, *, ranks: bool, failing: bool) -> None:
    """Write job file, robot and environment into ``folder``.

    :param ranks: whether one job has several ranks.
    :param failing: whether there is a job that fails, too.
    """
    (folder / JOB_FILE).write_text(JOBS + JOB_OF_RANKS * ranks + FAILING_JOB * failing)
    (folder / "pole.xml").write_text(ROBOT)
    (folder / "failing.py").write_text(ENVIRONMENT)
