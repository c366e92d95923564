"""A controller that knows mjlab's metadata, and nothing of this program, drives exported policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from export_helpers import export, job
from numpy.typing import NDArray

from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.training import trained_policy

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnx", reason="needs the extra export")

STEPS = 20


class MjlabReader:
    """Reads metadata as ``list_to_csv_str`` of mjlab writes it, and measures what its terms say."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        self.joints = self.texts("joint_names")
        self.default = self.numbers("default_joint_pos")
        self.scale = self.numbers("action_scale")
        self.stiffness = self.numbers("joint_stiffness")
        self.damping = self.numbers("joint_damping")
        self.action = np.zeros(len(self.scale), np.float32)

    def texts(self, name: str) -> list[str]:
        return [text for text in self.metadata[name].split(",") if text]

    def numbers(self, name: str) -> NDArray[Any]:
        return np.array([float(text) for text in self.texts(name)])

    def term(self, name: str, data: mujoco.MjData, command: NDArray[Any]) -> NDArray[Any]:
        axes = np.zeros(9)
        mujoco.mju_quat2Mat(axes, data.qpos[3:7])
        return {
            "base_ang_vel": lambda: data.qvel[3:6],
            "projected_gravity": lambda: axes.reshape(3, 3).T @ [0.0, 0.0, -1.0],
            "joint_pos": lambda: self.of_joints(data, data.qpos, "jnt_qposadr") - self.default,
            "joint_vel": lambda: self.of_joints(data, data.qvel, "jnt_dofadr"),
            "actions": lambda: self.action,
            "command": lambda: command,
        }[name]()

    def of_joints(self, data: mujoco.MjData, values: NDArray[Any], address: str) -> NDArray[Any]:
        addresses = getattr(data.model, address)
        return np.array([values[addresses[data.model.joint(name).id]] for name in self.joints])

    def act(self, data: mujoco.MjData, command: NDArray[Any]) -> NDArray[Any]:
        """Targets of the joints' servos."""
        parts = []
        for name, scale, clip in zip(
            self.texts("observation_names"),
            self.numbers("observation_terms_scale"),
            self.texts("observation_terms_clip"),
            strict=True,
        ):
            low, high = map(float, clip.split(";"))
            parts.append(np.clip(self.term(name, data, command), low, high) * scale)
        observation = np.concatenate(parts).astype(np.float32)[None]
        given = self.session.get_inputs()[0].name
        self.action = self.session.run(None, {given: observation})[0][0]
        return self.default + self.scale * self.action


@pytest.mark.parametrize("task", ["track", "forward"])
def test_a_reader_of_mjlabs_metadata_gives_the_policys_actions(task: str, tmp_path: Path) -> None:
    options = {"observe": "proprioception"}
    paths = job(tmp_path / "walker", "quadruped", task=task, task_options=options, scale=0.1)
    reader = MjlabReader(export(paths, ".onnx"))
    assert reader.texts("command_names") == (["twist"] if task == "track" else [])
    spec = WorkerSpec.from_json(paths.spec.read_text())
    venv: Any = env_factory.make(spec, paths.root, n_envs=1, seed=0)
    model = trained_policy.load_model(spec, paths, venv, None)
    env: Any = trained_policy.normalized_env(spec, paths, venv, None)
    simulation = venv.simulation
    data = mujoco.MjData(simulation.model)
    servos = simulation.model.actuator_gainprm[:, 0]
    np.testing.assert_allclose(reader.stiffness, servos, rtol=1e-12)
    np.testing.assert_allclose(reader.damping, -simulation.model.actuator_biasprm[:, 2], rtol=1e-12)
    observation = env.reset()
    for _ in range(STEPS):
        data.qpos[:] = simulation.states.qpos[0]
        data.qvel[:] = simulation.states.qvel[0]
        targets = reader.act(data, simulation.states.goals[0])
        actions, _ = model.predict(observation, deterministic=True)
        np.testing.assert_allclose(reader.action, actions[0], rtol=0, atol=1e-6)
        mapping = simulation.task.actions
        [expected] = mapping.ctrl(mapping.taken(actions))
        low, high = simulation.model.actuator_ctrlrange.T
        is_inside = (low < targets) & (targets < high)  # beyond, the servo itself clips
        assert is_inside.any()
        np.testing.assert_allclose(targets[is_inside], expected[is_inside], rtol=0, atol=1e-6)
        observation, *_ = env.step(actions)


@pytest.mark.parametrize(
    "changes",
    [
        {"task_options": {}},
        {"task_options": {"observe": "proprioception", "history": 2}},
        {"task_options": {"observe": "proprioception"}, "robot": "hopper", "task": "forward"},
    ],
    ids=["full", "history", "motors"],
)
def test_what_such_a_reader_could_not_drive_has_the_names_of_this_program(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    paths: JobPaths = job(tmp_path / "walker", **{"robot": "quadruped", "task": "track", **changes})
    metadata = MjlabReader(export(paths, ".onnx")).metadata
    assert metadata["observation_names"] == metadata["observation_elements"]
    assert "observation_terms_clip" not in metadata
