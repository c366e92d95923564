"""Values that a table of a job gives for joints, by name or by pattern."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from orchestrator.worker.mjspec.spec_elements import is_pattern, suggestion

JointValues = Mapping[str, float] | float | None
"""By joint or pattern; one for all; or none."""


class JointValueError(Exception):
    """The values do not fit the robot; the message names the key and what would fit."""


def values_of_joints(values: JointValues, joints: Sequence[str], key: str) -> dict[str, float]:
    """The value of each joint that has one. A name is stronger than a pattern.

    :param joints: names of those that may have one.
    :param key: of the table, for messages: ``urdf.kp``.
    :raises JointValueError: a name or pattern matches no joint, or two patterns match one.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        return dict.fromkeys(joints, values)
    found: dict[str, float] = {}
    pattern_of: dict[str, str] = {}
    for name, value in values.items():
        if name in joints:
            continue
        matches = fnmatch.filter(joints, name)
        if not matches:
            what = "matches" if is_pattern(name) else "is called"
            raise JointValueError(
                f"{key}: no joint that it may be set for {what} {name!r}{suggestion(name, joints)}"
            )
        for joint in matches:
            other = pattern_of.setdefault(joint, name)
            if other != name and joint not in values:
                raise JointValueError(
                    f"{key}: {other!r} and {name!r} both match the joint {joint!r}; leave one of them out, "
                    "or name the joint"
                )
            found[joint] = value
    return found | {name: values[name] for name in joints if name in values}
