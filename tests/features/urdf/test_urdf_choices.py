"""What is chosen for a URDF that is examined alone: a base for what stands on legs, servos where motors
diverge, the folders of its meshes. A job is told of what would help it."""

from __future__ import annotations

from pathlib import Path

import mujoco
import pytest
from urdf_helpers import GOOD, TETRAHEDRON, examiner, inertial, joint, link, robot

from orchestrator.core.messages import ExaminationAnswer

FEATHER = inertial(0.001, 1e-8)
STRONG = '<limit lower="-1" upper="1" effort="1000" velocity="9"/>'
NUMBERS = " ".join(f'{name}="1e-6"' for name in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz"))
DUMMY = f'<inertial><mass value="1e-6"/><inertia {NUMBERS}/></inertial>'


def ball(colliding: str = "collision") -> str:
    return f'<{colliding}><geometry><sphere radius="0.05"/></geometry></{colliding}>'


def legged(legs: int, joints: int, *, down: float = -0.3) -> str:
    """A base with chains of so many joints at its corners; each link is 0.3 m long.

    :param down: where the next link is.
    """
    box = '<collision><geometry><box size="0.4 0.3 0.1"/></geometry></collision>'
    lines = [link("trunk", inertial(5.0, 0.1), box)]
    places = [(0.2, 0.15), (0.2, -0.15), (-0.2, 0.15), (-0.2, -0.15), (0.0, 0.2), (0.0, -0.2)]
    for leg, (x, y) in enumerate(places[:legs]):
        above, place = "trunk", f"{x} {y} 0"
        for number in range(joints):
            name = f"leg{leg}_{number}"
            shape = f'<geometry><box size="0.04 0.04 {abs(down)}"/></geometry>'
            limb = f'<collision><origin xyz="0 0 {down / 2}"/>{shape}</collision>'
            lines += [link(name, inertial(0.5, 0.01), limb)]
            lines += [joint(f"{name}_joint", above, name, at=place)]
            above, place = name, f"0 0 {down}"
    return robot(*lines)


def chosen(answer: ExaminationAnswer) -> dict[str, object]:
    assert answer.problem is None, answer.problem
    return {one.key: one.value for one in answer.chosen_settings}


@pytest.mark.parametrize(("legs", "joints"), [(4, 2), (4, 3), (2, 3), (6, 2)])
def test_what_stands_on_legs_moves_freely_with_servos(
    legs: int, joints: int, tmp_path: Path
) -> None:
    answer = examiner(tmp_path)(legged(legs, joints))
    assert chosen(answer) == {"base": "floating", "actuators": "position"}
    assert f"{legs} legs of {joints} joints" in answer.chosen_settings[0].reason
    assert answer.task == "forward"


NO_LEGS = {
    "fingers that point up": legged(4, 3, down=0.3),
    "a gripper": legged(2, 2),
    "three legs": legged(3, 3),
    "a pedestal": legged(2, 3).replace('size="0.4 0.3 0.1"', 'size="0.4 0.3 2.4"'),
    "hanging from the world": robot(
        '<link name="world"/>',
        joint("mount", "world", "trunk", kind="fixed"),
        *legged(4, 2).split("\n")[1:-1],
    ),
    "an arm": GOOD,
    "legs with sliding feet": legged(4, 2).replace(
        '_1_joint" type="revolute"', '_1_joint" type="prismatic"'
    ),
}


@pytest.mark.parametrize("case", NO_LEGS)
def test_what_has_no_plain_legs_stays_fixed(case: str, tmp_path: Path) -> None:
    assert "base" not in chosen(examiner(tmp_path)(NO_LEGS[case]))


def test_a_job_is_as_it_says_and_its_robot_is_not_guessed(tmp_path: Path) -> None:
    answer = examiner(tmp_path)(legged(4, 2), task="reach")
    assert chosen(answer) == {}


def test_motors_that_diverge_are_servos_and_a_job_is_told_so(tmp_path: Path) -> None:
    text = robot(
        *(link("pivot"), link("rod", FEATHER), link("tip", FEATHER)),
        joint("swing", "pivot", "rod", STRONG),
        joint("bend", "rod", "tip", STRONG),
    )
    alone = examiner(tmp_path)(text)
    assert chosen(alone) == {"actuators": "position"}
    assert any('urdf.actuators = "position"' in note for note in alone.notes)
    for refused in (
        examiner(tmp_path)(text, task="reach", base="fixed", actuators="motor"),
        examiner(tmp_path)(text, actuators="motor"),
    ):
        assert "diverges" in str(refused.problem)
        assert 'try urdf.actuators = "position"' in str(refused.problem)


def test_motors_that_are_too_strong_for_what_they_move_are_servos(tmp_path: Path) -> None:
    """Physics is stable in the examination, and diverges in a training."""
    twig = inertial(0.01, 1e-5)

    def arm(effort: float) -> str:
        limit = f'<limit lower="-1" upper="1" effort="{effort}" velocity="9"/>'
        return robot(
            *(link("pivot"), link("rod"), link("tip", twig)),
            joint("swing", "pivot", "rod"),
            joint("bend", "rod", "tip", limit),
        )

    answer = examiner(tmp_path)(arm(10.0))
    assert chosen(answer) == {"actuators": "position"}
    assert "the effort of the joint bend" in answer.chosen_settings[0].reason
    assert chosen(examiner(tmp_path)(arm(0.1))) == {}


def test_meshes_are_looked_for_in_the_users_folder_too(tmp_path: Path) -> None:
    own = tmp_path / "arm" / "urdf"
    own.mkdir(parents=True)
    (tmp_path / "hand").mkdir()
    (tmp_path / "hand" / "a.obj").write_text(TETRAHEDRON.format(size=0.2))
    mesh = '<geometry><mesh filename="package://hand/a.obj"/></geometry>'
    text = robot(
        link("trunk", inertial(), f"<collision>{mesh}</collision>"), *GOOD.split("\n")[2:-1]
    )
    answer = examiner(own)(text, request={"user_folders": (str(tmp_path),)})
    assert chosen(answer) == {"asset_paths": [str(tmp_path)]}
    assert "urdf.asset_paths" in str(examiner(own)(text).problem)


def test_a_dummy_inertia_of_a_frame_is_removed_and_one_of_a_moving_link_is_not(
    tmp_path: Path,
) -> None:
    body = legged(4, 2).split("\n")[1:-1]
    text = robot(link("base", DUMMY), joint("root", "base", "trunk", kind="fixed"), *body)
    answer = examiner(tmp_path)(text)
    assert chosen(answer)["base"] == "floating"
    assert any("<inertial> removed" in note and "base" in note for note in answer.notes)
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "staged" / str(answer.xml)))
    assert model.body_mass.sum() == pytest.approx(5.0 + 8 * 0.5)
    moving = robot(link("pivot"), link("rod", DUMMY), joint("swing", "pivot", "rod"))
    assert "remove the <inertial>" in str(examiner(tmp_path)(moving).problem)


@pytest.mark.parametrize("dummy", ["rod", "foot"])
@pytest.mark.parametrize("colliding", ["collision", "visual"])
def test_geometry_with_a_dummy_inertia_adds_no_mass(
    tmp_path: Path, colliding: str, dummy: str
) -> None:
    """A ball of water of that size weighs half a kilogram."""
    parts = {"rod": (inertial(),), "foot": (inertial(),), dummy: (DUMMY, ball(colliding))}
    text = robot(
        *(link("pivot"), link("rod", *parts["rod"]), link("foot", *parts["foot"])),
        joint("swing", "pivot", "rod"),
        joint("weld", "rod", "foot", kind="fixed"),
    )
    answer = examiner(tmp_path)(text, collision=colliding)
    assert answer.problem is None, answer.problem
    assert any("moments of inertia removed" in note and dummy in note for note in answer.notes)
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "staged" / str(answer.xml)))
    assert model.body("rod").geomnum == 1
    assert model.body("rod").mass == pytest.approx(1.0, abs=1e-5)


def test_an_inertia_that_no_body_can_have_is_made_round_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    thin = GOOD.replace('ixx="0.01"', 'ixx="1"')
    assert "urdf.balance_inertia = true" in str(examiner(tmp_path)(thin).problem)
    answer = examiner(tmp_path)(thin, balance_inertia=True)
    assert answer.problem is None
