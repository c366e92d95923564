"""URDFs: what they lack is added, MuJoCo reads the rest, and what is wrong is named with line and
element."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import urdf_helpers as parts
from urdf_helpers import GOOD, LIMIT, TETRAHEDRON, URDFS, examiner, inertial, joint, link, robot

from orchestrator.core.messages import ExaminationAnswer
from orchestrator.features.urdf.worker.urdf_tree import parse

BALL = "<collision><geometry><sphere radius='0.1'/></geometry></collision>"
PENDULUM = robot(link("pivot"), link("rod", inertial(0.5, 0.02)), joint("swing", "pivot", "rod"))


def mesh(name: str) -> str:
    return f'<geometry><mesh filename="{name}"/></geometry>'


def staged(folder: Path, answer: ExaminationAnswer) -> mujoco.MjModel:
    assert answer.problem is None, answer.problem
    return mujoco.MjModel.from_xml_path(str(folder / "staged" / str(answer.xml)))


def with_mesh(name: str, extension: str = "") -> str:
    return robot(
        extension,
        link("trunk", inertial(), f"<collision>{mesh(name)}</collision>"),
        *GOOD.split("\n")[2:-1],
    )


BAD: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "torn": ("<robot>\n<link", {}, ("line 2", "not well-formed XML")),
    "unquoted": (robot("<link name=a/>"), {}, ("line 2", "not well-formed XML")),
    "empty": ("", {}, ("not well-formed XML",)),
    "mjcf": ("<mujoco/>", {}, ("the root element is <mujoco>, expected <robot>",)),
    "xacro": (robot('<xacro:property name="a"/>'), {}, ("line 2", "xacro FILE.xacro > FILE.urdf")),
    "crossed tags": ("<robot>\n<link></robot></link>", {}, ("line 2", "</robot> closes another")),
    "deep": ("<robot>" + "<a>" * 9000, {}, ("nested more than",)),
    "no links": (robot(), {}, ("has no <link>",)),
    "nameless": (robot("<link/>"), {}, ("line 2", "<link> without a name")),
    "same name": (
        robot(link("a"), link("a")),
        {},
        ("line 3", '<link> "a"', "line 2", "rename one"),
    ),
    "no such link": (
        robot(link("trunk"), joint("j", "trnk", "trunk")),
        {},
        ("line 3", 'did you mean "trunk"?'),
    ),
    "no child": (
        robot(link("a"), '<joint name="j" type="fixed"><parent link="a"/></joint>'),
        {},
        ("has no <child",),
    ),
    "bad type": (
        GOOD.replace("revolute", "revolut"),
        {},
        ("line 4", 'did you mean "revolute"?', "prismatic"),
    ),
    "no limit": (
        GOOD.replace(LIMIT, ""),
        {},
        ("line 4", '"shoulder" (revolute) has no <limit>', 'type="continuous"'),
    ),
    "no range": (
        GOOD.replace('lower="-1" upper="1"', ""),
        {},
        ("line 4", "lower=0 and upper=0, expected lower below upper, in radians"),
    ),
    "crossed": (GOOD.replace('lower="-1"', 'lower="2"'), {}, ("lower=2 and upper=1",)),
    "no effort": (
        GOOD.replace('effort="6"', ""),
        {},
        ("line 4", '("shoulder")', "urdf.effort", "urdf.passive"),
    ),
    "words": (
        GOOD.replace('effort="6"', 'effort="six"'),
        {},
        ('effort="six"> of <joint> "shoulder"', "finite number"),
    ),
    "nan": (
        GOOD.replace('value="1.0"', 'value="nan"', 1),
        {},
        ("line 2", 'value="nan"> of <link> "trunk"'),
    ),
    "several": (
        GOOD.replace('value="1.0"', 'value="inf"', 1).replace('lower="-1"', 'lower="nan"'),
        {},
        ("line 2: <mass", "line 4: <limit lower"),
    ),
    "infinite effort": (GOOD.replace('"6"', '"inf"'), {}, ('("shoulder")', "urdf.effort")),
    "two parents": (
        robot(*map(link, "abc"), joint("1", "a", "b"), joint("2", "a", "c"), joint("3", "b", "c")),
        {},
        (
            "line 7",
            '<link> "c" is the child of the joints "2" and "3", so they close a loop',
            "<equality>",
        ),
    ),
    "ring": (
        robot(*map(link, "abc"), joint("1", "a", "b"), joint("2", "b", "c"), joint("3", "c", "a")),
        {},
        ("the joints '3', '1', '2' form a loop",),
    ),
    "two roots": (
        robot(*map(link, "abc"), joint("1", "a", "b")),
        {},
        ("line 4", "2 links", "(a, c), expected one"),
    ),
    "mimics nothing": (
        GOOD.replace(LIMIT, LIMIT + '<mimic joint="elbow"/>'),
        {},
        ('<joint> "shoulder" mimics "elbow"',),
    ),
    "no mesh": (
        with_mesh("hand.stl"),
        {},
        ("line 3", '<link> "trunk"', "'hand.stl': no such file", "add the file"),
    ),
    "no package": (
        with_mesh("package://hand_description/a.stl"),
        {},
        ("line 3", "urdf.asset_paths", "hand_description"),
    ),
    "collada": (with_mesh("a.dae"), {}, ("a.dae", ".stl, .obj, .msh", "convert")),
    "faulty mesh": (with_mesh("faulty.stl"), {}, ("line 3", "faulty")),
    "nameless mesh": (with_mesh(""), {}, ("line 3", "has no filename")),
    "weightless": (
        robot(link("trunk"), link("arm", "<visual/>"), joint("j", "trunk", "arm")),
        {},
        ("line 3", "'arm'"),
    ),
    "thin inertia": (
        GOOD.replace('ixx="0.01"', 'ixx="1"'),
        {},
        ("line 2", "A + B >= C", "urdf.balance_inertia = true"),
    ),
    "no shape": (GOOD.replace("box", "torus"), {}, ("line 2", "MuJoCo cannot compile it")),
    "wrong passive": (
        GOOD,
        {"passive": ["elbow"]},
        ('urdf.passive = "elbow" matches no joint', "shoulder"),
    ),
    "all passive": (GOOD, {"passive": ["*"]}, ("has no actuators",)),
    "floating world": (
        GOOD.replace('"trunk"', '"world"'),
        {"base": "floating"},
        ("line 2", 'urdf.base = "fixed"'),
    ),
    "long chain": (
        robot(
            *(link(f"l{i}") for i in range(1000)),
            *(joint(f"j{i}", f"l{i}", f"l{i + 1}") for i in range(999)),
        ),
        {},
        ("line 1001", '"l999" is the last of a chain of 1,000 links', "at most 480"),
    ),
}


ODD_TEXT = {
    "rulers in comments": ("<robot", "<!-- --- --><robot"),
    "a blank line before the declaration": ("<robot", '\n<?xml version="1.0"?><robot'),
    "a DOCTYPE": ("<robot", "<!DOCTYPE robot><robot"),
    "an ampersand": ('name="r"', 'name="r & s"'),
    "no space between attributes": ('" type', '"type'),
    "another root element": ("</robot>", "</robot><notes/>"),
    "Latin-1": ("<link", "<!-- Gerät --><link"),
}


@pytest.mark.parametrize("case", ODD_TEXT)
def test_text_that_mujoco_reads_is_read(case: str, tmp_path: Path) -> None:
    text = GOOD.replace(*ODD_TEXT[case], 1)
    assert text != GOOD
    encoding = "latin-1" if case == "Latin-1" else "utf-8"
    (tmp_path / "r.urdf").write_bytes(text.encode(encoding))
    mujoco.MjModel.from_xml_path(str(tmp_path / "r.urdf"))
    root = parse((tmp_path / "r.urdf").read_bytes())
    assert [(node.tag, node.attributes["name"]) for node in root.children] == [
        ("link", "trunk"),
        ("link", "arm"),
        ("joint", "shoulder"),
    ]


@pytest.mark.parametrize(
    ("kind", "limit", "limits"),
    [
        ("continuous", 'lower="-inf" upper="inf" effort="6" velocity="inf"', None),
        ("revolute", 'lower="-inf" upper="inf" effort="6"', None),
        ("prismatic", 'lower="-1e308" upper="1.8e308" effort="6" velocity="1e308"', None),
        ("revolute", 'lower="-1" upper="inf" effort="6"', [-1, -1 + 2 * math.pi]),
    ],
)
def test_infinite_limits_mean_none(
    kind: str, limit: str, limits: list[float] | None, tmp_path: Path
) -> None:
    text = GOOD.replace(LIMIT, f"<limit {limit}/>").replace("revolute", kind)
    for actuators in ("motor", "position"):
        model = staged(tmp_path, examiner(tmp_path)(text, actuators=actuators))
        assert bool(model.jnt_limited[0]) == (limits is not None)
        assert model.jnt_range[0].tolist() == pytest.approx(limits or [0, 0])


def test_effort_of_the_job_takes_the_place_of_an_infinite_one(tmp_path: Path) -> None:
    text = GOOD.replace('effort="6"', 'effort="inf"')
    model = staged(tmp_path, examiner(tmp_path)(text, effort=8))
    assert model.actuator_ctrlrange.tolist() == [[-8, 8]]


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named_with_line_and_element_and_what_to_do(
    case: str, tmp_path: Path
) -> None:
    (tmp_path / "a.dae").write_text("<COLLADA/>")
    (tmp_path / "faulty.stl").write_text("solid of words")
    text, settings, fragments = BAD[case]
    problem = examiner(tmp_path)(text, **settings).problem
    assert problem is not None
    assert problem.startswith(str(tmp_path / "r.urdf"))
    assert [fragment for fragment in fragments if fragment not in problem] == [], problem


def test_servo_is_critically_damped_at_the_given_frequency(tmp_path: Path) -> None:
    model = staged(tmp_path, examiner(tmp_path)(PENDULUM, actuators="position", frequency=4.0))
    omega = 2 * math.pi * 4
    assert model.actuator_gainprm[0, 0] == pytest.approx(0.02 * omega**2, rel=1e-3)
    assert model.actuator_biasprm[0, :3] == pytest.approx(
        [0, -0.02 * omega**2, -2 * 0.02 * omega], rel=1e-3
    )
    assert model.actuator_ctrlrange.tolist() == [[-1, 1]]
    assert model.actuator_forcerange.tolist() == [[-6, 6]]
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    data = mujoco.MjData(model)
    model.opt.gravity[:] = 0
    data.ctrl[:] = 0.1
    positions = []
    for _ in range(500):
        mujoco.mj_step(model, data)
        positions.append(float(data.qpos[0]))
    assert max(positions) < 0.1001, "overshoots"
    assert positions[-1] == pytest.approx(0.1, abs=1e-3)


def test_servo_of_a_floating_robot_can_move_the_rest_of_it(tmp_path: Path) -> None:
    """About the shoulder, the trunk has 1 kg at 0.3 m; the arm has far less."""
    text = robot(
        link("trunk"), link("arm", inertial(0.1, 0.001)), joint("shoulder", "trunk", "arm")
    )
    fixed = staged(tmp_path, examiner(tmp_path)(text, actuators="position"))
    floating = staged(tmp_path, examiner(tmp_path)(text, actuators="position", base="floating"))
    omega2 = (2 * math.pi * 5) ** 2
    assert fixed.actuator_gainprm[0, 0] == pytest.approx(0.001 * omega2, rel=1e-3)
    assert floating.actuator_gainprm[0, 0] == pytest.approx((0.01 + 0.3**2) * omega2, rel=1e-3)


def test_motor_has_the_effort_as_its_range(tmp_path: Path) -> None:
    text = GOOD.replace('effort="6"', 'effort="0"')
    for motor, effort in ((GOOD, 6), (text, 2.5)):
        model = staged(tmp_path, examiner(tmp_path)(motor, effort=2.5))
        assert model.actuator_ctrlrange.tolist() == [[-effort, effort]]
        assert model.actuator_gear[0, 0] == 1


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_robot_starts_within_its_limits_and_above_the_floor(base: str, tmp_path: Path) -> None:
    text = GOOD.replace('lower="-1"', 'lower="0.5"')
    answer = examiner(tmp_path)(text, base=base, floor=True, actuators="position")
    model = staged(tmp_path, answer)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    assert (model.key(0).name, data.qpos[-1], data.ctrl[0]) == ("home", 0.75, 0.75)
    assert data.ncon == 0 or base == "fixed"
    assert model.jnt_type[0] == (
        mujoco.mjtJoint.mjJNT_FREE if base == "floating" else mujoco.mjtJoint.mjJNT_HINGE
    )
    if base == "floating":
        assert data.qpos[2] == pytest.approx(0.101)  # half of the trunk's height and a millimetre
        assert answer.task == "forward"
    assert any("middle of limits without 0: shoulder" in note for note in answer.notes)


def test_links_that_overlap_at_the_start_do_not_collide(tmp_path: Path) -> None:
    fingers = [link(name, inertial(), BALL) for name in ("left", "right")]
    text = robot(
        *(link("trunk", inertial(), BALL), *fingers),
        *(joint("l", "trunk", "left", at="0.05 0 0"), joint("r", "trunk", "right", at="-0.05 0 0")),
    )
    for base in ("fixed", "floating"):
        answer = examiner(tmp_path)(text, base=base, floor=False)
        model = staged(tmp_path, answer)
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        assert data.ncon == 0
        assert (
            "added: no contact between links that overlap at the start: left and right"
            in answer.notes
        )


def test_mimics_frames_and_passive_joints_are_kept_without_actuators(tmp_path: Path) -> None:
    lines = [*map(link, "abc"), '<link name="tip"/>', link("d", inertial())]
    joints = [
        joint("first", "a", "b"),
        joint("second", "b", "c", LIMIT, '<mimic joint="first" multiplier="-0.5" offset="0.1"/>'),
        joint("frame", "c", "tip", kind="fixed"),
        joint("caster", "a", "d", "", kind="spherical", at="0 1 0"),
    ]
    answer = examiner(tmp_path)(robot(*lines, *joints))
    model = staged(tmp_path, answer)
    assert [model.actuator(number).name for number in range(model.nu)] == ["first"]
    assert (model.nsite, model.site(0).name, model.neq) == (1, "tip", 1)
    assert model.key_qpos[0].tolist() == [0, 0.1, 1, 0, 0, 0]
    assert "added: joints that no actuator moves: caster" in answer.notes


def test_mujocos_own_extension_works(tmp_path: Path) -> None:
    visual = link(
        "trunk", inertial(), BALL, '<visual><geometry><box size="1 1 1"/></geometry></visual>'
    )
    text = robot(
        "{}",
        visual,
        *GOOD.split("\n")[2:-1],
        '<link name="end"/>',
        joint("e", "arm", "end", kind="fixed"),
    )
    extension = '<mujoco><compiler discardvisual="false" fusestatic="false"/><option timestep="0.004"/></mujoco>'
    plain = staged(tmp_path, examiner(tmp_path)(text.format("")))
    extended = staged(tmp_path, examiner(tmp_path)(text.format(extension)))
    assert (plain.ngeom, plain.opt.timestep) == (2, 0.002)
    assert (extended.ngeom, extended.opt.timestep, extended.nbody) == (3, 0.004, 4)
    euler = extension.replace("timestep", 'integrator="Euler" timestep')
    answer = examiner(tmp_path)(text.format(euler), actuators="position")
    assert staged(tmp_path, answer).opt.integrator == mujoco.mjtIntegrator.mjINT_EULER


def test_visual_geometry_collides_where_it_is_told_to(tmp_path: Path) -> None:
    text = GOOD.replace("collision>", "visual>")
    bare = examiner(tmp_path)(text)
    assert any('urdf.collision = "visual"' in warning for warning in bare.warnings)
    model = staged(tmp_path, examiner(tmp_path)(text, collision="visual"))
    assert (model.ngeom, model.geom_contype.tolist()) == (2, [1, 1])
    both = GOOD.replace("<collision>", f"<visual>{mesh('a.obj')}</visual><collision>", 1)
    (tmp_path / "a.obj").write_text(TETRAHEDRON.format(size=0.2))
    model = staged(tmp_path, examiner(tmp_path)(both, collision="visual"))
    assert [mujoco.mjtGeom(kind).name for kind in model.geom_type] == ["mjGEOM_MESH"]


def test_mesh_of_a_package_is_found(tmp_path: Path) -> None:
    own, package = tmp_path / "robots" / "hand" / "urdf", tmp_path / "robots" / "hand" / "meshes"
    own.mkdir(parents=True)
    package.mkdir()
    (package / "a.obj").write_text(TETRAHEDRON.format(size=0.2))
    text, ask = with_mesh("package://hand/meshes/a.obj"), examiner(own)
    of_job = {"job_folder": str(tmp_path)}
    for asset_paths in ([], [tmp_path / "robots"], [tmp_path / "robots" / "hand"]):
        settings: dict[str, Any] = {"base": "floating", "asset_paths": [*map(str, asset_paths)]}
        assert ask(text, task="forward", request=of_job, **settings).problem is None
        assert (ask(text, task="forward", **settings).problem is None) == bool(asset_paths)
    strip = '<mujoco><compiler meshdir="../meshes" strippath="true"/></mujoco>'
    stripped = with_mesh("C:\\cad\\a.obj", strip)
    assert ask(stripped, task="forward", base="floating", request=of_job).problem is None


def test_a_mesh_elsewhere_needs_permission(tmp_path: Path) -> None:
    own = tmp_path / "urdf"
    own.mkdir()
    (tmp_path / "a.obj").write_text(TETRAHEDRON.format(size=0.2))
    text = with_mesh("../a.obj")
    job = {"task": "forward", "base": "floating"}
    assert "allow_outside" in str(examiner(own)(text, **job).problem)
    allowed = examiner(own)(text, request={"allow_outside": True}, **job)
    assert (allowed.problem, allowed.outside) == (None, None)
    alone = examiner(own)(text, base="floating")
    assert alone.problem is None
    assert "allow_outside" in str(alone.outside)
    assert alone.outside in alone.warnings


def test_meshes_of_one_name_in_two_folders_stay_two(tmp_path: Path) -> None:
    for folder, size in (("left", 0.1), ("right", 0.3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.obj").write_text(TETRAHEDRON.format(size=size))
    ends = [
        link(name, f"<collision>{mesh(f'{name}/a.obj')}</collision>") for name in ("left", "right")
    ]
    answer = examiner(tmp_path)(robot(*ends, joint("j", "left", "right")), base="floating")
    model = staged(tmp_path, answer)
    assert model.body_mass[2] / model.body_mass[1] == pytest.approx(27)


def test_missing_mesh_of_a_visual_that_is_not_read_is_no_problem(tmp_path: Path) -> None:
    text = GOOD.replace(
        "<collision>", f"<visual>{mesh('package://gone/a.dae')}</visual><collision>"
    )
    assert examiner(tmp_path)(text).problem is None


def test_bundle_has_the_same_hash_in_another_folder_and_is_edited_as_any_robot(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / "one", tmp_path / "two" / "three"]
    for folder in folders:
        folder.mkdir(parents=True)
    settings = {"base": "floating", "actuators": "position"}
    first, second = (examiner(folder)(GOOD, task="auto", **settings) for folder in folders)
    assert first.hash == second.hash != examiner(folders[0])(GOOD, task="auto").hash
    edits = {"body.arm.pos": [0, 0, 0.4], "actuator.shoulder.forcerange": "*0.5"}
    edited = examiner(folders[0])(GOOD, task="auto", request={"model_edits": edits}, **settings)
    model = staged(folders[0], edited)
    assert (model.body("arm").pos[2], model.actuator_forcerange.tolist()) == (0.4, [[-3, 3]])
    wrong = examiner(folders[0])(
        GOOD, task="auto", request={"model_edits": {"joint.sholder.range": [0, 1]}}
    )
    assert str(wrong.problem).startswith(f"{folders[0] / 'r.urdf'}: model.joint.sholder.range")
    assert "did you mean 'shoulder'" in str(wrong.problem)


@pytest.mark.nightly
def test_a_thousand_links_are_a_robot(tmp_path: Path) -> None:
    spokes = [
        (link(f"l{i}"), joint(f"j{i}", "hub", f"l{i}", kind="fixed", at=f"{i} 0 0.3"))
        for i in range(998)
    ]
    text = robot(
        link("hub"),
        link("arm"),
        joint("j", "hub", "arm"),
        *(line for spoke in spokes for line in spoke),
    )
    answer = examiner(tmp_path)(text)
    model = staged(tmp_path, answer)
    assert (model.nbody, model.nu, model.ngeom) == (3, 1, 1000)
    assert any("l4 and 993 more" in note for note in answer.notes)


@pytest.mark.parametrize(
    "name", ["pony", "trolley", "courier", "inchworm", "bench_arm/urdf/bench_arm"]
)
def test_robots_that_are_shipped_as_urdf_have_finite_masses_and_their_own_names(
    name: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"effort": 2.0, "passive": ["pole"] if name == "trolley" else []}
    request = parts.ExaminationRequest(
        xml=str(URDFS / f"{name}.urdf"),
        robot_settings=settings,
        alone=True,
        stage_to=str(tmp_path / "staged"),
        simulate_s=0.02,
    )
    model = staged(tmp_path, parts.check(request))
    assert np.isfinite(model.body_mass).all()
    assert model.nu >= 1
    assert {model.actuator(number).name for number in range(model.nu)} <= {
        model.joint(number).name for number in range(model.njnt)
    }
