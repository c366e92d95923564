"""Robots of MuJoCo Menagerie by name: ``menagerie:unitree_go1``, or ``menagerie:unitree_go1/go1``
for another file.

The package ``mujoco-menagerie`` knows where the robots lie: in the checkout that its variable
``MENAGERIE_ROOT`` names, otherwise in its cache. A job file is read without a network, so nothing
is fetched here.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.robot_sources import NamedRobot, RobotCollection
from orchestrator.core.text import install_extra

PREFIX = "menagerie:"
ROOT = "MENAGERIE_ROOT"


def _find(wanted: str) -> NamedRobot:
    """The MJCF of a robot, by default its scene with a floor.

    :param wanted: what the job file says after :data:`PREFIX`.
    :raises UsageError: the package is not installed, knows no such robot or file, or has not
        fetched it.
    """
    # Here, because workers ask for collections, too.
    from orchestrator.keys.problems import quoted, suggestion

    try:
        import mujoco_menagerie
    except ImportError:
        install = install_extra("menagerie")
        raise UsageError(
            f"{quoted(PREFIX + wanted)} needs the package mujoco-menagerie: {install}"
        ) from None
    name, _, entry = wanted.partition("/")
    names = mujoco_menagerie.names()
    if name not in names:
        near = suggestion(name, names)
        advice = (
            f"did you mean {quoted(PREFIX + near)}?"
            if near
            else "`mujoco-menagerie names` lists them"
        )
        raise UsageError(f"MuJoCo Menagerie has no robot {quoted(name)}; {advice}")
    robot = mujoco_menagerie.get(name)
    cache = mujoco_menagerie.Cache()
    if entry and entry not in robot.entry_names:
        known = ", ".join(robot.entry_names)
        raise UsageError(
            f"{quoted(name)} of MuJoCo Menagerie has no file {quoted(entry)}; it has {known}"
        )
    if cache.root is None and not cache.is_cached(robot):
        advice = f"`mujoco-menagerie prefetch {name}` fetches them, or {ROOT} names a checkout of mujoco_menagerie"
        raise UsageError(
            f"the files of {quoted(name)} of MuJoCo Menagerie are not on this machine; {advice}"
        )
    folder = cache.model_path(robot) if cache.root is None else cache.root / name
    path = Path(os.path.abspath(folder)) / robot.entry(entry or None).file  # noqa: PTH100 - links are kept
    if not path.is_file():
        advice = (
            f"correct {ROOT} = {cache.root}"
            if cache.root is not None
            else f"remove {folder}, and `mujoco-menagerie prefetch {name}` fetches it again"
        )
        raise UsageError(f"{quoted(PREFIX + wanted)}: no such file: {path}; {advice}")
    return NamedRobot(name, path)


MENAGERIE = RobotCollection(
    name="menagerie",
    title="a robot of MuJoCo Menagerie",
    prefix=PREFIX,
    find=_find,
)
