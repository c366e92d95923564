"""``init``: a new job starts from a trained policy, whose inputs and outputs are carried over by
name."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import time
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import worker_helpers as helpers
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.examination.examination_requests import requests_of
from orchestrator.jobfile import from_mapping
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.robots.preflight_child import check
from orchestrator.worker.tasks import gymnasium_tasks
from orchestrator.worker.tasks.base import States
from orchestrator.worker.training import learners, start_policy, weights
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.start_policy import StartPolicy

slow = pytest.mark.nightly
MJCF = helpers.REPOSITORY / "mjcf"
NET = {"net_arch": [8]}

BODY = """<mujoco><worldbody><geom type="plane" size="9 9 1"/><body name="trunk" pos="0 0 1">
<joint name="x" type="slide" axis="1 0 0"/><geom size="0.1"/>{joints}</body></worldbody><actuator>{motors}</actuator>
</mujoco>"""
JOINT = '<body name="{0}_link" pos="0 {1} 0"><joint name="{0}" axis="0 1 0"/><geom size="0.05" pos="0 0 -0.2"/></body>'


def body(path: Path, *joints: str) -> Path:
    """A robot on a rail, with a motor on each of ``joints``; motors have no names."""
    links = "".join(JOINT.format(name, 0.3 * (number + 1)) for number, name in enumerate(joints))
    motors = "".join(f'<motor joint="{name}"/>' for name in joints)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(BODY.format(joints=links, motors=motors))
    return path


def spec_of(job_id: str, **changes: Any) -> WorkerSpec:
    if "env" not in changes:
        changes = {"task": "forward", "xml": "robot/body.xml", **changes}
    return helpers.spec(
        **{
            "job_id": job_id,
            "policy_kwargs": NET,
            "normalize": True,
            "total_timesteps": 256,
            **changes,
        }
    )


def trained(directory: Path, *joints: str, **changes: Any) -> JobPaths:
    body(directory / "robot/body.xml", *joints)
    paths = helpers.job(directory, spec_of(directory.name, checkpoint_every=128, **changes))
    helpers.train_to_its_end(paths)
    return paths


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> JobPaths:
    """Not to be changed."""
    return trained(tmp_path_factory.mktemp("run") / "jobs/parent-s3", "hip", "knee")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``model.zip`` with nothing beside it."""
    path = tmp_path_factory.mktemp("stock") / "model.zip"
    PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, n_steps=64, device="cpu").save(
        path
    )
    return path


def answer(source: Path, robot: Path | None = None, **changes: Any) -> ExaminationAnswer:
    """The examination of a job that starts from ``source``; the policy is written beside
    ``robot``."""
    job = {
        "path": str(source),
        "algo": "ppo",
        "policy": "MlpPolicy",
        "policy_kwargs": NET,
        "normalize": True,
        "use_sde": False,
    }
    where: dict[str, Any] = {"env": changes.pop("env")} if "env" in changes else {"task": "forward"}
    xml = None if robot is None else str(robot)
    staged = None if robot is None else str(robot.parent / "staged")
    return check(
        ExaminationRequest(xml=xml, stage_to=staged, simulate_s=0.01, init=job | changes, **where)
    )


def started(directory: Path, source: JobPaths, *joints: str, **changes: Any) -> tuple[Model, str]:
    """The model of a new job at its first step, and what was copied."""
    robot = body(directory / "robot/body.xml", *joints)
    examined = answer(source.root, robot)
    assert examined.problem is None
    spec = spec_of("child-s3", init_sha256=examined.init_sha256, **changes)
    venv = env_factory.make(spec, directory, n_envs=2, seed=1)
    model = learners.build(spec, env_factory.normalized_env(spec, venv)).model
    initial = StartPolicy.from_file(robot.parent / "staged.init", str(examined.init_sha256))
    return model, start_policy.start(model, initial)


# -- names


def built_in() -> list[Any]:
    robots = {
        "forward": "hopper",
        "stand": "quadruped",
        "track": "quadruped",
        "balance": "balancer",
        "reach": "arm",
    }
    own = [pytest.param(task, MJCF / f"{robot}.xml", id=task) for task, robot in robots.items()]
    names = (
        "Ant",
        "HalfCheetah",
        "Hopper",
        "Humanoid",
        "InvertedDoublePendulum",
        "InvertedPendulum",
        "Swimmer",
    )
    return own + [
        pytest.param(f"gymnasium:{name}-v5", None, id=name) for name in (*names, "Walker2d")
    ]


@pytest.mark.parametrize(("task", "xml"), built_in())
def test_each_observation_has_the_name_of_the_joint_that_it_depends_on(
    task: str, xml: Path | None
) -> None:
    simulation = Simulation.from_xml(
        xml or gymnasium_tasks.default_xml(task), task, n_envs=1, seed=0
    )
    names, model = start_policy.names_of(simulation), simulation.model
    assert names is not None
    assert (len(names["observations"]), len(set(names["actions"]))) == (
        simulation.observation_size,
        model.nu,
    )
    qpos, qvel = simulation.task.pose[None], np.zeros((1, model.nv))
    fields = {name: np.zeros_like(field) for name, field in simulation.states.fields.items()}
    goals = np.zeros((1, simulation.task.goal_size))

    def observed(position: int, velocity: int) -> np.ndarray:
        moved, faster = qpos.copy(), qvel.copy()
        moved[0, position] += 0.1
        faster[0, velocity] += 0.1
        return simulation.task.observe(States(moved, faster, goals, fields))[0]

    def changed(now: np.ndarray) -> set[str]:
        before = simulation.task.observe(States(qpos, qvel, goals, fields))[0]
        return {names["observations"][column] for column in np.flatnonzero(now != before)}

    seen = 0
    for joint in np.flatnonzero(model.jnt_type == 3).tolist():
        name = model.joint(joint).name
        found = changed(observed(model.jnt_qposadr[joint], model.jnt_dofadr[joint]))
        own = {other for other in found if other.split(" ")[-2] == name}
        seen += len(own) >= 2
        others = {model.joint(number).name for number in range(model.njnt)} - {name}
        assert not [other for other in found - own if set(other.split(" ")) & others]
    assert seen >= (model.jnt_type == 3).sum() - 1, (
        "a root's hinge may be observed as the robot's spin"
    )


# -- what is copied


@pytest.mark.parametrize("learner", ["fast", "sb3"])
def test_the_same_robot_starts_with_the_weights_and_statistics_of_the_source(
    learner: str, parent: JobPaths, tmp_path: Path
) -> None:
    model, copied = started(tmp_path, parent, "hip", "knee", learner=learner)
    assert "exact copy" in copied
    assert weights.sha256(model, optimizers=False) == weights.sha256(
        loaded(parent), optimizers=False
    )
    assert model.num_timesteps == 0
    assert not model.policy.optimizer.state, "the optimiser starts anew"


def loaded(paths: JobPaths) -> Model:
    """The finished policy with its statistics, by stock Stable-Baselines3."""
    from stable_baselines3.common.vec_env import VecNormalize

    spec = WorkerSpec.from_json(paths.spec.read_text())
    venv = VecNormalize.load(
        str(paths.vecnormalize), env_factory.make(spec, paths.root, n_envs=2, seed=0)
    )
    return PPO.load(paths.model, venv, device="cpu")


def test_a_body_with_one_joint_more_acts_as_before_on_what_it_had_before(
    parent: JobPaths, tmp_path: Path
) -> None:
    model, copied = started(tmp_path, parent, "knee", "tail", "hip")
    assert "new observations: tail position, tail velocity" in copied
    assert "new actions: actuator of tail" in copied
    before = loaded(parent)
    # parent: positions of hip and knee, velocities of x, hip and knee
    rng, [hip, knee, x, to_hip, to_knee] = np.random.default_rng(0), [2, 0, 3, 6, 4]
    observation = rng.normal(size=(5, 7)).astype(np.float32)
    same = observation[:, [hip, knee, x, to_hip, to_knee]]
    actions, _ = model.predict(
        model.get_vec_normalize_env().normalize_obs(observation), deterministic=True
    )
    expected, _ = before.predict(
        before.get_vec_normalize_env().normalize_obs(same), deterministic=True
    )
    np.testing.assert_allclose(actions[:, [2, 0]], expected, rtol=0, atol=1e-6)
    assert (actions[:, 1] == 0).all(), "the new joint's motor is at its mean"
    own, given = model.policy.state_dict(), before.policy.state_dict()
    assert not own["mlp_extractor.value_net.0.weight"][:, [1, 5]].any()
    assert torch.equal(own["log_std"][[2, 0]], given["log_std"])
    assert own["log_std"][1] == 0
    statistics = model.get_vec_normalize_env().obs_rms
    assert statistics.count == before.get_vec_normalize_env().obs_rms.count
    assert statistics.mean[[1, 5]].tolist() == [0, 0]
    assert statistics.var[[1, 5]].tolist() == [1, 1]


def test_a_finished_job_that_is_trained_further_gives_its_newest_checkpoint(tmp_path: Path) -> None:
    extended = trained(tmp_path / "longer-s3", "hip", "knee")
    assert start_policy.read(extended.root).label == "model.zip with normalisation"
    extended.spec.write_text(spec_of(extended.root.name, total_timesteps=1024).to_json())
    assert "checkpoint at 256 env_steps" in start_policy.read(extended.root).label


@slow
def test_sac_starts_with_an_exact_copy_and_only_with_the_same_names(tmp_path: Path) -> None:
    algo, kind = "sac", {"algo": "sac", "hyperparameters": helpers.SMALL["sac"]}
    source = trained(tmp_path / "parent-s3", "hip", **kind)
    robot = body(tmp_path / "robot/body.xml", "hip")
    examined = answer(source.root, robot, algo=algo)
    assert examined.problem is None
    assert "exact copy" in str(examined.init)
    other = answer(source.root, body(tmp_path / "other/body.xml", "hip", "knee"), algo=algo)
    assert "only ppo and a2c" in str(other.problem)
    child = spec_of("child-s3", init="there", init_sha256=examined.init_sha256, **kind)
    paths = helpers.job(tmp_path, child)
    (robot.parent / "staged.init").rename(paths.init)
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.SUCCEEDED, log
    assert "starts from there (model.zip with normalisation): all observations" in log


def test_a_model_zip_of_an_environment_starts_one_with_equal_shapes(stock: Path) -> None:
    examined = answer(stock, env="CartPole-v1", normalize=False)
    assert examined.problem is None
    assert "exact copy" in str(examined.init)


def test_nothing_of_a_model_zip_is_unpickled(tmp_path: Path) -> None:
    path, foreign = tmp_path / "model.zip", tmp_path / "foreign.zip"
    network = {"net_arch": [8], "activation_fn": torch.nn.ELU}
    PPO("MlpPolicy", "CartPole-v1", policy_kwargs=network, n_steps=64, device="cpu").save(path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(foreign, "w") as other:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "data":
                assert b'":serialized:": "gA' in content
                content = content.replace(b'":serialized:": "gA', b'":serialized:": "no pickle')
            other.writestr(name, content)
    read = start_policy.read(foreign)
    assert (read.activation, read.statistics) == ("elu", None)
    assert read.sha256() == start_policy.read(path).sha256()


@pytest.mark.parametrize(
    ("network", "hyperparameters"),
    [({"net_arch": []}, {}), ({**NET, "full_std": False}, {"use_sde": True})],
    ids=["no hidden layers", "one deviation for all actions"],
)
def test_a_network_of_another_form_is_copied_by_name(
    network: dict[str, Any], hyperparameters: dict[str, Any], tmp_path: Path
) -> None:
    def built(*joints: str) -> Model:
        body(tmp_path / "robot/body.xml", *joints)
        changes = {"policy_kwargs": network, "hyperparameters": hyperparameters}
        spec = spec_of("child-s3", learner="sb3", normalize=False, **changes)
        return learners.build(spec, env_factory.make(spec, tmp_path, n_envs=2, seed=1)).model

    def column(model: Model, names: start_policy.Names, name: str) -> torch.Tensor:
        weight = model.policy.state_dict()[first]
        return weight[:, names["observations"].index(name)]

    def names(model: Model) -> start_policy.Names:
        found = start_policy.names_of(model.env.unwrapped.simulation)
        assert found is not None
        return found

    first = "mlp_extractor.value_net.0.weight" if network["net_arch"] else "value_net.weight"
    source, model = built("hip", "knee"), built("knee", "tail", "hip")
    there, here = names(source), names(model)
    given = source.policy.state_dict()
    text = start_policy.start(
        model, StartPolicy(label="", activation=None, names=there, policy=given, statistics=None)
    )
    assert "new actions: actuator of tail" in text
    for name in there["observations"]:
        assert torch.equal(column(model, here, name), column(source, there, name))
    assert not column(model, here, "tail velocity").any()
    own = model.policy.state_dict()
    assert torch.equal(own["action_net.bias"][[2, 0]], given["action_net.bias"])
    if hyperparameters:
        assert torch.equal(own["log_std"], given["log_std"])


# -- what is refused


def refusals() -> dict[str, tuple[dict[str, Any], list[str]]]:
    """By name: changes of the job, and what the message says. ``source`` is relative to the
    parent's directory."""
    return {
        "missing": (
            {"source": "nowhere"},
            ["nowhere: no such file or directory", "RUN_DIR/jobs/JOB_ID"],
        ),
        "a run directory": (
            {"source": "../.."},
            ["this is a run directory, with the jobs parent-s3"],
        ),
        "a folder": ({"source": "robot"}, ["spec.json"]),
        "no model": (
            {"source": "robot/body.xml"},
            ["cannot be read", "expected a job's directory"],
        ),
        "another algorithm": ({"algo": "sac"}, ['algo = "ppo"', '"sac"']),
        "other layers": (
            {"policy_kwargs": {"net_arch": [9]}},
            ["policy_net.0.weight is (8, 5) there, and (9, 5) here"],
        ),
        "more layers": (
            {"policy_kwargs": {"net_arch": [8, 8]}},
            ["policy_net.2.weight is None there, and (8, 8) here"],
        ),
        "another activation": (
            {"policy_kwargs": {**NET, "activation_fn": "relu"}},
            ['activation_fn = "tanh"', '"relu"'],
        ),
        "no normalisation": ({"normalize": False}, ["normalize = true", "false"]),
        "other shapes": ({"env": "Pendulum-v1"}, ["log_std is (2,) there, and (1,) here"]),
        "no name in common": (
            {"joints": ["a", "b"]},
            ["no actions have the same names", "there actuator of hip"],
        ),
    }


@pytest.mark.parametrize("name", refusals())
def test_a_policy_that_does_not_fit_is_refused_before_the_launch(
    name: str, parent: JobPaths, tmp_path: Path
) -> None:
    changes, words = refusals()[name]
    source = parent.root / changes.pop("source", "")
    robot = (
        None
        if "env" in changes
        else body(tmp_path / "body.xml", *changes.pop("joints", ["hip", "knee"]))
    )
    problem = str(answer(source, robot, **changes).problem)
    assert "init: " in problem
    assert [word for word in words if word not in problem] == []


def test_a_job_has_the_settings_of_one_that_is_still_to_be_trained(tmp_path: Path) -> None:
    robot = body(tmp_path / "body.xml", "hip", "knee")
    own = {"xml": str(robot), "task": "forward", "policy_kwargs": NET, "normalize": True}
    for of_source, words in (
        ({}, "None"),
        ({"policy_kwargs": {**NET, "log_std_init": -1.0}}, "None"),
        ({"algo": "sac"}, 'algo = "sac"'),
        ({"normalize": False}, "normalize = false"),
        ({"policy_kwargs": {"activation_fn": "relu"}}, "activation_fn"),
        ({"policy_kwargs": {"net_arch": [9]}}, "policy_net.0.weight is (9, 5) there, and (8, 5)"),
        ({"ppo": {"use_sde": True}}, "log_std is (8, 2) there, and (2,) here"),
    ):
        jobs = [{**own, **of_source, "name": "a"}, {**own, "name": "b", "init": "job:a"}]
        declared = from_mapping({"name": "test", "jobs": jobs}, source="jobs.toml", base=tmp_path)
        requests, key_of = requests_of(declared.jobs)
        request, _ = requests[key_of["b-s0"]]
        assert words in str(check(dataclasses.replace(request, simulate_s=0.01)).problem)


def test_a_job_without_a_checkpoint_is_refused_with_what_became_of_it(
    parent: JobPaths, tmp_path: Path
) -> None:
    helpers.job(tmp_path / "jobs/new-s0", WorkerSpec.from_json(parent.spec.read_text()))
    body(tmp_path / "jobs/new-s0/robot/body.xml", "hip", "knee")
    problem = str(
        answer(tmp_path / "jobs/new-s0", body(tmp_path / "body.xml", "hip", "knee")).problem
    )
    assert "neither a policy nor a checkpoint" in problem
    assert "running, or it was killed" in problem


@pytest.mark.parametrize(
    ("norm_obs", "normalize", "message"),
    [
        (True, False, "normalize = true"),
        (True, True, "None"),
        (False, False, "None"),
        (False, True, "normalize = false"),
    ],
)
def test_a_model_zip_starts_a_job_that_sees_the_same_observations(
    norm_obs: bool, normalize: bool, message: str, stock: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copy(stock, tmp_path))
    venv = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    VecNormalize(venv, norm_obs=norm_obs).save(str(tmp_path / "vecnormalize.pkl"))
    assert message in str(answer(source, env="CartPole-v1", normalize=normalize).problem)


def test_a_copy_that_was_changed_in_the_job_directory_is_refused(
    parent: JobPaths, tmp_path: Path
) -> None:
    robot = body(tmp_path / "robot/body.xml", "hip", "knee")
    examined = answer(parent.root, robot)
    changed = dataclasses.replace(start_policy.read(parent.root), policy={})
    (robot.parent / "staged.init").write_bytes(changed.to_bytes())
    with pytest.raises(ValueError, match="was changed in the job directory"):
        StartPolicy.from_file(robot.parent / "staged.init", str(examined.init_sha256))
    (robot.parent / "staged.init").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"cannot be read: .*; run the job file again"):
        StartPolicy.from_file(robot.parent / "staged.init", str(examined.init_sha256))


# -- resuming


@slow
def test_a_killed_worker_resumes_to_the_weights_of_an_undisturbed_one(
    parent: JobPaths, tmp_path: Path
) -> None:
    robot = body(tmp_path / "staging/body.xml", "hip", "knee", "tail")
    examined = answer(parent.root, robot)
    reached = start_policy.read(parent.root).env_steps
    assert (
        examined.init_env_steps == reached == int(helpers.rows(parent.timings_csv)[-1]["env_steps"])
    )
    jobs = []
    for name in ("whole", "killed"):
        body(tmp_path / name / "robot/body.xml", "hip", "knee", "tail")
        spec = spec_of(
            name,
            init=str(parent.root),
            init_sha256=examined.init_sha256,
            init_env_steps=examined.init_env_steps,
            total_timesteps=2048,
        )
        jobs.append(
            helpers.job(
                tmp_path / name, dataclasses.replace(spec, job_id="child-s3", checkpoint_every=128)
            )
        )
        jobs[-1].init.write_bytes((robot.parent / "staged.init").read_bytes())
    whole, log = helpers.train_here(jobs[0])
    assert log.count("starts from") == 1
    with helpers.Worker(jobs[1]) as worker:
        while not list(jobs[1].checkpoints.glob("*.pt")):
            assert worker.process.poll() is None, worker.log
            time.sleep(0.005)
        worker.process.send_signal(signal.SIGKILL)
        worker.wait()
    (begun, *_) = sorted(jobs[1].checkpoints_by_steps(), reverse=True)
    assert start_policy.read(jobs[1].root).env_steps == reached + begun
    resumed, log = helpers.train_here(jobs[1], 1)
    assert resumed.resumed_from
    assert "starts from" not in log
    assert resumed.weights_sha256 == whole.weights_sha256
    assert start_policy.read(jobs[0].root).env_steps == reached + whole.env_steps
    assert json.loads(jobs[1].spec.read_text())["init"] == str(parent.root)
