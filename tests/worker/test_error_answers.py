"""The messages that docs/errors.md answers are those of the installed packages."""

from __future__ import annotations

import importlib.util
import mmap
import multiprocessing.spawn
import re
from pathlib import Path

import mujoco
import pytest

DOCUMENT = Path(__file__).parents[2] / "docs/errors.md"
HEADINGS = re.findall(r"^## (.*)$", DOCUMENT.read_text(), re.MULTILINE)
OF_NO_PACKAGE = {
    "Training gets slower with every process",
    "EOFError or BrokenPipeError in SubprocVecEnv",
}
IN_SOURCES = {
    "You are trying to run PPO on the GPU, but it is primarily intended to run on the CPU": (
        "stable_baselines3.common.on_policy_algorithm",
        "but it is primarily intended to run on the CPU",
    ),
    "Cannot re-initialize CUDA in forked subprocess": (
        "torch.cuda",
        "Cannot re-initialize CUDA in forked subprocess",
    ),
    "ValueError: Expected parameter loc of distribution Normal to satisfy the constraint, but found invalid values": (
        "torch.distributions.distribution",
        "but found invalid values",
    ),
    "ValueError: Error: Unexpected observation shape for Box environment": (
        "stable_baselines3.common.utils",
        "Error: Unexpected observation shape",
    ),
    "ValueError: Observation spaces do not match": (
        "stable_baselines3.common.utils",
        "Observation spaces do not match",
    ),
    "Could not deserialize object clip_range. Consider using custom_objects argument": (
        "stable_baselines3.common.save_util",
        "Could not deserialize object",
    ),
    "Evaluation environment is not wrapped with a Monitor wrapper": (
        "stable_baselines3.common.evaluation",
        "Evaluation environment is not wrapped with a",
    ),
}
"""Heading → module, and text in its source."""
OF_MUJOCO = {
    "XML Error: Schema violation: unrecognized attribute": '<worldbody><geom foo="1"/></worldbody>',
    "Error: mass and inertia of moving bodies must be larger than mjMINVAL": (
        "<worldbody><body><freejoint/></body></worldbody>"
    ),
    "Error: inertia must satisfy A + B >= C; use 'balanceinertia' to fix": (
        '<worldbody><body><freejoint/><inertial pos="0 0 0" mass="1" diaginertia="1 1 9"/></body></worldbody>'
    ),
    "Error opening file 'arm.stl'": '<asset><mesh name="a" file="arm.stl"/></asset>',
}
"""Heading → an MJCF with that fault."""
IN_LIBRARY = {
    "Nan, Inf or huge value in QACC. The simulation is unstable": b"Nan, Inf or huge value in QACC",
    "STL file has wrong size; perhaps this is an ASCII file?": b"has wrong size; perhaps this is an ASCII file?",
    "An OpenGL platform library has not been loaded into this process": (
        b"OpenGL platform library has not been loaded into this process"
    ),
}
IN_RAY = "Workers (tasks / actors) killed due to memory pressure (OOM)"
IN_PYTHON = (
    "An attempt has been made to start a new process before the current process has finished its "
    "bootstrapping phase"
)


def test_every_heading_is_compared_with_its_package() -> None:
    compared = {*IN_SOURCES, *OF_MUJOCO, *IN_LIBRARY, IN_RAY, IN_PYTHON, *OF_NO_PACKAGE}
    assert compared == {*HEADINGS}
    assert len(HEADINGS) >= 15


@pytest.mark.parametrize("heading", IN_SOURCES)
def test_a_message_is_in_the_source_of_its_package(heading: str) -> None:
    module, text = IN_SOURCES[heading]
    found = importlib.util.find_spec(module)
    assert found is not None
    assert text in Path(str(found.origin)).read_text()


@pytest.mark.parametrize("heading", OF_MUJOCO)
def test_a_message_is_that_of_mujoco(heading: str) -> None:
    with pytest.raises(ValueError, match=re.escape(heading)):
        mujoco.MjModel.from_xml_string(f"<mujoco>{OF_MUJOCO[heading]}</mujoco>")


def test_messages_while_mujoco_runs_are_in_its_library() -> None:
    [library] = Path(mujoco.__file__).parent.glob("libmujoco.so*")
    content = library.read_bytes()
    assert [heading for heading, text in IN_LIBRARY.items() if text not in content] == []


def test_the_message_of_python_is_in_its_source() -> None:
    source = " ".join(Path(multiprocessing.spawn.__file__).read_text().split())
    assert IN_PYTHON in source


def test_the_message_of_ray_is_in_its_daemon() -> None:
    ray = importlib.util.find_spec("ray")
    if ray is None or ray.origin is None:
        pytest.skip("needs the extra ray")
    daemon = Path(ray.origin).parent / "core/src/ray/raylet/raylet"
    with daemon.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        assert content.find(IN_RAY.encode()) >= 0
