"""Exported policies act as those that they were exported from, in every format and for every kind
of policy."""

from __future__ import annotations

import ctypes
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import worker_helpers as helpers
from compiled_header import compiled
from export_helpers import export, job
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecNormalize

from orchestrator.core.errors import UnfinishedPolicyWarning
from orchestrator.core.paths import JobPaths
from orchestrator.core.text import is_installed
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.export.formats import FORMATS, READABLE
from orchestrator.features.export.worker import (
    exported_check,
    job_export,
    numpy_policy,
    onnx_file,
    policy_files,
)
from orchestrator.features.export.worker.exported_policy import OF_MJLAB, ExportError
from orchestrator.features.export.worker.joint_drives import control_units
from orchestrator.worker.envs import env_factory
from orchestrator.worker.policies import job_policy
from orchestrator.worker.training import trained_policy

SQUASHED_SDE = {
    "hyperparameters": {"use_sde": True},
    "policy_kwargs": {"net_arch": [8], "squash_output": True},
}


MORE_ACTIVATIONS = ("relu", "elu", "leaky_relu", "silu")


KINDS: dict[str, dict[str, Any]] = {
    "ppo": {"policy_kwargs": {"net_arch": {"pi": [8, 6], "vf": [4]}}},
    "ppo-sde": SQUASHED_SDE,
    "sac": {"algo": "sac", "policy_kwargs": {"net_arch": [8]}},
    "sac-sde": {
        "algo": "sac",
        "policy_kwargs": {"net_arch": [8]},
        "hyperparameters": {"use_sde": True},
    },
    "td3": {"algo": "td3", "policy_kwargs": {"net_arch": [8]}},
    "clamped": {"task_options": {"action_scale": 3.0}, "policy_kwargs": {"net_arch": [8]}},
    "linear": {"algo": "a2c", "policy_kwargs": {"net_arch": []}, "normalize": False},
    **{
        name: {"policy_kwargs": {"net_arch": [8], "activation_fn": name}}
        for name in ("gelu", *MORE_ACTIVATIONS)
    },
}


ROWS = 64


HAS_ONNX = is_installed("onnx") and is_installed("onnxruntime")


HAS_COMPILER = shutil.which("cc") is not None


needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="needs the extra export")


needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler")


def usable(suffixes: Sequence[str]) -> list[str]:
    """Those whose files can be written and used here."""
    is_usable = {".onnx": HAS_ONNX, ".h": HAS_COMPILER}
    return [suffix for suffix in suffixes if is_usable.get(suffix, True)]


def observations_and_actions(
    paths: JobPaths,
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[Any]]:
    """Observations before normalisation, the policy's actions, and the controls that the task makes
    of them."""
    spec = WorkerSpec.from_json(paths.spec.read_text())
    venv: Any = env_factory.make(spec, paths.root, n_envs=ROWS, seed=0)
    model = trained_policy.load_model(spec, paths, venv, None)
    normalized: Any = trained_policy.normalized_env(spec, paths, venv, None)
    observations = (
        np.random.default_rng(1)
        .normal(0, 6, (ROWS, venv.observation_space.shape[0]))
        .astype(np.float32)
    )
    clipped = clipped_by_task(venv.simulation.task, observations)
    assert (clipped != observations).any(), "there must be something to clip"
    seen = normalized.normalize_obs(clipped) if spec.normalize else clipped
    actions, _ = model.predict(seen, deterministic=True)
    actions = np.clip(actions, venv.action_space.low, venv.action_space.high)
    mapping = venv.simulation.task.actions
    return observations, actions, mapping.ctrl(mapping.taken(actions))


def clipped_by_task(task: Any, observations: NDArray[np.float32]) -> NDArray[np.float32]:
    """``observations``, which may be those of several steps, as ``task`` would give them."""
    return np.clip(
        observations, *np.tile(task.policy_terms.limits, task.observed_steps).astype(np.float32)
    )


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.nightly) if kind in MORE_ACTIVATIONS else kind
        for kind in KINDS
    ],
)
def test_every_kind_of_policy_gives_its_actions_and_controls_in_every_format(
    kind: str, tmp_path: Path
) -> None:
    paths = job(tmp_path / kind, **KINDS[kind])
    observations, actions, controls = observations_and_actions(paths)
    assert np.ptp(actions, axis=0).min() > 0.01, "actions must depend on observations"
    assert (kind == "clamped") == (len(np.unique(controls[:, 0])) < len(np.unique(actions[:, 0])))
    for suffix in usable(READABLE):
        policy = policy_files.read(export(paths, suffix))
        assert (policy.observations, policy.actions) == (observations.shape[1], actions.shape[1])
        outputs = policy(observations)
        assert {array.dtype for array in outputs.values()} == {np.dtype(np.float32)}
        np.testing.assert_allclose(outputs["action"], actions, rtol=0, atol=1e-6, err_msg=suffix)
        np.testing.assert_allclose(outputs["ctrl"], controls, rtol=0, atol=2e-6, err_msg=suffix)


@needs_compiler
@pytest.mark.parametrize(
    "kind", ["ppo", "sac-sde", pytest.param("gelu", marks=pytest.mark.nightly)]
)
def test_a_c_header_compiles_without_a_warning_and_gives_the_actions(
    kind: str, tmp_path: Path
) -> None:
    paths = job(tmp_path / kind, **KINDS[kind])
    observations, actions, controls = observations_and_actions(paths)
    outputs = compiled(export(paths, ".h"), tmp_path)(observations)
    np.testing.assert_allclose(outputs["action"], actions, rtol=0, atol=1e-6)
    np.testing.assert_allclose(outputs["ctrl"], controls, rtol=0, atol=2e-6)


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("kind", sorted({*KINDS} - {"ppo", "sac-sde", "gelu"}))
def test_every_kind_of_policy_gives_its_actions_in_c(kind: str, tmp_path: Path) -> None:
    test_a_c_header_compiles_without_a_warning_and_gives_the_actions(kind, tmp_path)


def test_actions_of_gymnasiums_tasks_keep_their_bounds_and_are_the_controls(tmp_path: Path) -> None:
    paths = job(tmp_path / "hopper-s0", "hopper", task="gymnasium:Hopper-v5")
    observations, actions, _ = observations_and_actions(paths)
    outputs = policy_files.read(export(paths, ".npz"))(observations)
    np.testing.assert_allclose(outputs["action"], actions, rtol=0, atol=1e-6)
    assert np.array_equal(outputs["ctrl"], outputs["action"])


OWN = """
from collections import OrderedDict
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Own(gymnasium.Env):
    entries = OrderedDict(goal=Box(-9, 9, (2,), np.float32), arm=Box(-9, 9, (3,), np.float64))
    action_space = Box(-2, 2, (2,), np.float32)

    def __init__(self, xml, seed):
        self.observation_space = Dict(self.entries)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def observation(self):
        return {
            name: self.np_random.normal(0, 3, one.shape).astype(one.dtype)
            for name, one in self.entries.items()
        }

    def step(self, action):
        self.steps += 1
        return self.observation(), 0.0, False, self.steps == 20, {}


class OfAMatrix(Own):
    entries = {"grid": Box(-9, 9, (2, 3), np.float32)}


class OfOne(Own):
    entries = {"observation": Box(-9, 9, (2,), np.float32)}


class OfNamesLikeNodes(Own):
    entries = {
        name: Box(-9, 9, (1,), np.float32) for name in ("concat_0", "constant_0", "sub_2", "max_1")
    }


class OfAnAction(Own):
    entries = {"action": Box(-9, 9, (2,), np.float32)}
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A folder with environments whose observations are dictionaries."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/own_parts.py").write_text(OWN)
    path = list(sys.path)
    sys.path.insert(0, str(tmp_path / "code"))
    yield tmp_path / "code"
    sys.path[:] = path
    sys.modules.pop("own_parts", None)


def job_of_parts(directory: Path, own: Path, kind: str = "Own", **changes: Any) -> JobPaths:
    entry_point = {"entry_point": f"own_parts:{kind}", "search_path": str(own)}
    policy = {"policy": "MultiInputPolicy", "policy_kwargs": {"net_arch": [8]}}
    none = {"task": None, "xml": None}
    return job(directory, **{**entry_point, **policy, **none, **changes})


@pytest.mark.parametrize(
    ("changes", "suffixes"),
    [({}, FORMATS), ({"algo": "sac"}, [".npz"]), ({"normalize": False}, [".npz"])],
    ids=["ppo", "sac", "as they are"],
)
def test_entries_of_a_dictionary_are_inputs_of_every_format(
    changes: dict[str, Any],
    suffixes: Sequence[str],
    own: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = job_of_parts(tmp_path / "parts-s0", own, **changes)
    spec = WorkerSpec.from_json(paths.spec.read_text())
    venv: Any = env_factory.make(spec, paths.root, n_envs=1, seed=0)
    model = trained_policy.load_model(spec, paths, venv, None)
    rng = np.random.default_rng(2)
    observation = {"arm": rng.normal(0, 3, (ROWS, 3)), "goal": rng.normal(0, 3, (ROWS, 2))}
    env: Any = trained_policy.normalized_env(spec, paths, venv, None)
    seen = env.normalize_obs(observation) if spec.normalize else observation
    actions, _ = model.predict(seen, deterministic=True)
    assert np.ptp(actions, axis=0).min() > 0.01, "actions must depend on observations"
    for suffix in usable(suffixes):
        file = export(paths, suffix, check=suffix != ".h")
        said = capsys.readouterr().out
        assert "5 observations in the inputs goal and arm, 2 actions" in said
        assert ("over 20 steps of an episode" in said) == (suffix != ".h")
        act: Any = compiled(file, tmp_path) if suffix == ".h" else policy_files.read(file)
        np.testing.assert_allclose(act(observation)["action"], actions, rtol=0, atol=2e-6)
    facts = numpy_policy.load(paths.root / "parts-s0.npz").metadata
    assert facts["observation_names"] == ["goal 0", "goal 1", "arm 0", "arm 1", "arm 2"]
    assert (facts["input_names"], facts["input_sizes"]) == (["goal", "arm"], [2, 3])


@pytest.mark.parametrize(
    "kind",
    ["ppo", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("sac", "linear"))],
)
def test_a_file_is_checked_beside_the_policy_over_an_episode(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = job(tmp_path / kind, **KINDS[kind])
    for suffix in usable(READABLE):
        to = export(paths, suffix, check=True)
        said = capsys.readouterr().out.splitlines()[-1]
        found = re.fullmatch(
            rf"checked {re.escape(str(to))} beside the policy: over (\d+) steps of an episode they "
            r"differ by at most: action by (\S+) and ctrl by (\S+) \(of the largest value, .*\)",
            said,
        )
        assert found is not None, said
        assert int(found[1]) >= 100
        assert float(found[2]) <= 1e-6
        assert float(found[3]) <= 2e-6


def test_a_file_of_another_policy_does_not_pass(tmp_path: Path) -> None:
    paths = job(tmp_path / "arm-s0")
    other = export(job(tmp_path / "other", scale=0.3), ".npz")
    spec = WorkerSpec.from_json(paths.spec.read_text())
    with pytest.raises(
        ExportError, match=r"other\.npz does not act as the policy does: over \d+ steps"
    ):
        exported_check.check(other, spec, paths, None, {"action", "ctrl"})


def test_a_privileged_policy_and_one_with_a_history_are_checked(tmp_path: Path) -> None:
    options = {"observe": "proprioception", "history": 2}
    changes = {"task": "track", "asymmetric": True, "task_options": options}
    paths = job(tmp_path / "legs-s0", "quadruped", **changes)
    export(paths, ".onnx" if HAS_ONNX else ".npz", check=True)


TEXTS = {"job", "algo", "task", "robot_sha256"}
"""Fields that are no JSON in an ONNX file."""


def facts_of(file: Path) -> dict[str, Any]:
    """What a controller reads of a file. Numbers of a header are rounded to float32."""
    match file.suffix:
        case ".npz":
            return dict(numpy_policy.load(file).metadata)
        case ".onnx":
            import onnxruntime

            found = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
            return {name: read_as_text(name, text) for name, text in found.items()}
        case _:
            return facts_of_header(file.read_text(), file.stem.replace("-", "_"))


def read_as_text(name: str, text: str) -> Any:
    """A field of an ONNX file: text, lists with commas for controllers of mjlab, or JSON."""
    if name in TEXTS:
        return text
    if name not in OF_MJLAB:
        return json.loads(text)
    parts = text.split(",") if text else []
    return parts if name.endswith("names") else [float(part) for part in parts]


def facts_of_header(text: str, stem: str) -> dict[str, Any]:
    """The arrays of text and of numbers in a header."""
    arrays = re.findall(rf"static const (\S.*) {stem}_(\w+)\[\d+\] = {{([^}}]*)}};", text)
    facts: dict[str, Any] = {}
    for kind, name, content in arrays:
        if "char" in kind:
            facts[name] = re.findall(r'"([^"]*)"', content)
        else:
            numbers = content.replace("f,", ",").split(",")
            facts[name] = [float(np.float32(float(one))) for one in numbers if one.strip()]
    return facts


def test_names_units_and_period_are_in_every_format(tmp_path: Path) -> None:
    paths = job(tmp_path / "hopper-s0", "hopper", task="forward")
    npz = numpy_policy.load(export(paths, ".npz")).metadata
    assert npz["observation_names"][:3] == [
        "root_z position",
        "root_pitch position",
        "hip position",
    ]
    assert npz["observation_units"] == ["m", *["rad"] * 4, "m/s", "m/s", *["rad/s"] * 4]
    assert (npz["action_names"], npz["ctrl_units"]) == (
        ["hip", "knee", "ankle"],
        ["110 N m", "110 N m", "60 N m"],
    )
    assert (npz["job"], npz["robot_sha256"], npz["control_period_s"]) == (
        "hopper-s0",
        "c0ffee",
        0.04,
    )

    assert npz["joint_force_limit"] == [110.0, 110.0, 60.0]

    header = export(paths, ".h").read_text()
    for text in (
        "[1]: root_pitch position [rad]",
        "action[0]: hip\n",
        "ctrl[0]: hip [110 N m]",
        "static const char *const hopper_s0_joint_names[3] = {",
        "HOPPER_S0_CONTROL_PERIOD_S 0.04",
        '"ankle",',
    ):
        assert text in header


@pytest.mark.parametrize("suffix", [".npz", pytest.param(".onnx", marks=needs_onnx), ".h"])
def test_a_controller_learns_how_the_joints_were_driven(suffix: str, tmp_path: Path) -> None:
    """``target = default_joint_pos + action_scale · action`` is what the servos were given."""
    options = {"observe": "proprioception", "history": 2}
    paths = job(tmp_path / "legs-s0", "quadruped", task="track", task_options=options)
    facts = facts_of(export(paths, suffix))

    def held(value: float) -> float:
        """``value`` as the file can hold it."""
        return float(np.float32(value)) if suffix == ".h" else float(value)

    model = mujoco.MjModel.from_xml_path(str(paths.robot / "quadruped.xml"))
    names = facts["observation_names"]
    joints = [model.joint(name) for name in facts["joint_names"]]
    assert facts["command_names"][0] == "command forward"
    assert facts["default_joint_pos"] == [held(model.qpos0[one.qposadr[0]]) for one in joints]
    assert names[len(names) // 2 :] == [f"{name} 1 step ago" for name in names[: len(names) // 2]]
    servos = {int(model.actuator(number).trnid[0]): number for number in range(model.nu)}
    assert len(servos) == len(joints)
    for place, joint in enumerate(joints):
        servo = servos[joint.id]
        assert facts["joint_stiffness"][place] == held(model.actuator_gainprm[servo, 0]) > 0
        assert facts["joint_damping"][place] == held(-model.actuator_biasprm[servo, 2])
        limit = abs(model.actuator_forcerange[servo]).max() * model.actuator_gear[servo, 0]
        assert facts["joint_force_limit"][place] == held(limit) > 0
    _, actions, controls = observations_and_actions(paths)
    default = dict(zip(facts["joint_names"], facts["default_joint_pos"], strict=True))
    scales = facts["action_scale"]
    for number in range(model.nu):
        name = model.joint(int(model.actuator(number).trnid[0])).name
        target = default[name] + scales[number] * actions[:, number]
        low, high = model.actuator_ctrlrange[number]
        np.testing.assert_allclose(controls[:, number], np.clip(target, low, high), atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_c_function_reports_what_is_not_finite_and_changes_nothing(
    value: float, tmp_path: Path
) -> None:
    paths = job(tmp_path / "arm-s0")
    header = export(paths, ".h")
    (name,) = re.findall(r"int (\w+)_act\(", header.read_text())
    size = len(numpy_policy.load(export(paths, ".npz")).metadata["observation_names"])
    source = tmp_path / "act.c"
    source.write_text(
        f'#include "{header}"\nint act(const float *in, float *action, float *ctrl) '
        f"{{ return {name}_act(in, action, ctrl); }}\n"
    )
    library = tmp_path / "act.so"
    flags = ["-std=c99", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, str(source), "-o", str(library), "-lm"], check=True)
    act = ctypes.CDLL(str(library)).act
    observation = np.zeros(size, np.float32)
    outputs = np.full((2, 16), 7.0, np.float32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (observation, *outputs)]
    observation[2] = value
    assert act(*pointers) == 3
    assert (outputs == 7.0).all()
    observation[2] = 0.0
    assert act(*pointers) == 0
    assert (outputs[:, 0] != 7.0).all()


ACTUATORS = """<mujoco><worldbody>
  <body><joint name="turn"/><geom size="1"/><body><joint name="slide" type="slide"/><geom size="1"/></body></body>
</worldbody><actuator>
  <motor joint="turn" gear="18"/><motor joint="slide"/><position joint="turn" kp="3"/><position joint="slide" gear="2"/>
  <velocity joint="turn" kv="2"/><muscle joint="turn" lengthrange="0 1"/><adhesion body="world" ctrlrange="0 1"/>
</actuator></mujoco>"""


def test_units_of_controls_follow_from_the_actuators() -> None:
    text = ACTUATORS.replace('<adhesion body="world" ctrlrange="0 1"/>', "")
    model = mujoco.MjModel.from_xml_string(text)
    assert control_units(model) == ["18 N m", "N", "rad", "0.5 m", "rad/s", "1"]


BARE = """
import sys
for name in ("torch", "stable_baselines3", "gymnasium", "mujoco", "orchestrator"):
    sys.modules[name] = None
import numpy as np
{example}
np.save("actions.npy", act(np.load("observations.npy"))["action"])
"""


def test_the_example_of_the_document_runs_with_numpy_alone(tmp_path: Path) -> None:
    paths = job(tmp_path / "hopper", "hopper", task="forward")
    observations, actions, _ = observations_and_actions(paths)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copyfile(export(paths, ".npz"), elsewhere / "hopper.npz")
    shutil.copyfile(str(numpy_policy.__file__), elsewhere / "numpy_policy.py")
    np.save(elsewhere / "observations.npy", observations)
    document = (helpers.REPOSITORY / "docs/export.md").read_text()
    [example] = re.findall(r"```python\n(import numpy.*?)```", document, re.S)
    code = BARE.format(example=example)
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, '.')\n{code}"]
    subprocess.run(command, cwd=elsewhere, check=True)
    np.testing.assert_allclose(np.load(elsewhere / "actions.npy"), actions, rtol=0, atol=1e-6)


def test_what_cannot_be_exported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cart = job(tmp_path / "cart-s0", task=None, xml=None, env="CartPole-v1", normalize=False)
    with pytest.raises(
        ExportError,
        match=r"cart-s0 cannot be exported: its actions are Discrete\(2\); .*orchestrator\.load",
    ):
        export(cart, ".npz")
    of_a_class = job(tmp_path / "tqc-s0", algo="sb3_contrib:TQC")
    with pytest.raises(ExportError, match="TQC"):
        export(of_a_class, ".npz")
    with pytest.raises(
        ExportError, match=r"policy.json: expected a name that ends in .onnx, .npz or .h"
    ):
        export(cart, ".npz", to=Path("policy.json"))
    arm = job(tmp_path / "arm-s0")
    for name in ("onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ExportError, match=r"needs the package onnx, which is not installed .*\.\[export\]"
    ):
        export(arm, ".onnx")
    with pytest.raises(ExportError, match="onnxruntime, which is not installed"):
        onnx_file.OnnxPolicy(tmp_path / "policy.onnx")


def test_an_environment_that_maps_actions_itself_gives_no_controls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = job(tmp_path / "pendulum-s0", scale=1.0, task=None, xml=None, env="Pendulum-v1")
    for suffix in usable(FORMATS):
        path = export(paths, suffix)
        assert (
            "1 action, an action every 0.05 s; without ctrl (see docs/export.md)"
            in capsys.readouterr().out
        )
        if suffix != ".h":
            outputs = policy_files.read(path)(np.full((2, 3), 5.0))
            assert outputs.keys() == {"action"}
            assert np.abs(outputs["action"]).max() > 1, "its actions go from -2 to 2"
    assert "float action[PENDULUM_S0_ACTIONS])" in export(paths, ".h").read_text()


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_the_privileged_observations_of_an_asymmetric_job_are_not_in_the_file(
    kind: str, tmp_path: Path
) -> None:
    randomize = {"body.trunk.mass": "scale(0.7, 1.3)", "action.delay": "choice(0, 1, 2)"}
    task = {"task": "forward", "randomize": randomize, "asymmetric": True}
    paths = job(tmp_path / "quadruped-s0", "quadruped", **KINDS[kind] | task)
    spec = WorkerSpec.from_json(paths.spec.read_text())
    venv: Any = env_factory.make(spec, paths.root, n_envs=1, seed=0)
    seen = venv.observation_space.shape[0] - len(venv.simulation.privileged_names)
    policy = job_export.policy_of(spec, paths, None)
    paths.robot_hash.unlink()  # which is not that of the robot
    with pytest.warns(UnfinishedPolicyWarning):
        _, env = job_policy.load(paths.root, n_envs=3)
    assert isinstance(env, VecNormalize)
    env.reset()
    assert env.get_original_obs().shape[1] == seen + 2
    assert len(policy.metadata.observation_names) == seen
    assert policy.normalization is not None
    assert len(policy.normalization.mean) == seen
    assert policy.layers[0].weight.shape[1] == seen
    act = trained_policy.exported_policy(policy_files.read(export(paths, ".npz")), venv)
    observation, _ = act(None)
    assert act(observation)[0].shape == (1, seen + 2)
