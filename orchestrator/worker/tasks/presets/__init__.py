"""Gymnasium's MuJoCo v5 environments as tasks: ``gymnasium:Ant-v5`` and seven others.

Over the batched simulation each gives what gymnasium's own environment gives: the same observations,
rewards, terminations and truncations, and from a random generator in the same state the same starts.
``tests/test_presets.py`` holds them side by side. The formulas are those of gymnasium's documentation
(https://gymnasium.farama.org/environments/mujoco/).
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from orchestrator.worker.tasks.presets.base import Preset
from orchestrator.worker.tasks.presets.floating import Ant, Humanoid
from orchestrator.worker.tasks.presets.pendulums import InvertedDoublePendulum, InvertedPendulum
from orchestrator.worker.tasks.presets.planar import HalfCheetah, Hopper, Swimmer, Walker2d

PRESETS: Mapping[str, type[Preset]] = {
    "gymnasium:Ant-v5": Ant,
    "gymnasium:HalfCheetah-v5": HalfCheetah,
    "gymnasium:Hopper-v5": Hopper,
    "gymnasium:Humanoid-v5": Humanoid,
    "gymnasium:InvertedDoublePendulum-v5": InvertedDoublePendulum,
    "gymnasium:InvertedPendulum-v5": InvertedPendulum,
    "gymnasium:Swimmer-v5": Swimmer,
    "gymnasium:Walker2d-v5": Walker2d,
}


def find(name: str) -> type[Preset]:
    """:raises ValueError: there is no preset of this name; the message lists them."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    raise ValueError(f'unknown task "{name}"; {hint}of gymnasium\'s own there is: {", ".join(PRESETS)}')


def default_xml(name: str) -> Path:
    """The robot that gymnasium itself uses, in the installed package (which is not imported for it).

    :raises ValueError: there is no preset of this name, or gymnasium is not installed.
    """
    asset = find(name).asset
    package = importlib.util.find_spec("gymnasium")
    if package is None or not package.submodule_search_locations:
        raise ValueError(f'task "{name}": gymnasium, which brings its robot {asset}, is not installed')
    return Path(package.submodule_search_locations[0]) / "envs" / "mujoco" / "assets" / asset
