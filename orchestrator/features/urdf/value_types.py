"""Types of values that both tables have: of actuators, and of joints, each by itself or all alike."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import MinLen
from pydantic import Field

from orchestrator.keys.value_types import MOST, AboveZero, Expected

_Joint = Annotated[str, MinLen(1)]
_FromZero = Annotated[float, Field(ge=0, le=MOST)]
_Position = Annotated[float, Field(ge=-MOST, le=MOST)]
_EXAMPLE = '{ "*_calf_joint" = 60, "*_hip_joint" = 40 }'

Actuators = Literal["motor", "position"]
Frequency = Annotated[float, Field(ge=0.1, le=100)]
"""In Hz."""
AboveZeroByJoint = Annotated[
    AboveZero | dict[_Joint, AboveZero] | None,
    Expected(f"a number above 0, or a table of them by joint or pattern, such as {_EXAMPLE}"),
]
FromZeroByJoint = Annotated[
    _FromZero | dict[_Joint, _FromZero] | None,
    Expected(f"a number, 0 or more, or a table of them by joint or pattern, such as {_EXAMPLE}"),
]
Pose = Annotated[
    dict[_Joint, _Position],
    Expected('a table of positions by joint or pattern, such as { "*_calf_joint" = -1.5 }'),
]
Folders = Annotated[
    list[Annotated[str, MinLen(1)]], Expected('a list of folders in quotes, such as ["../robots"]')
]
Patterns = Annotated[
    list[Annotated[str, MinLen(1)]], Expected('a list of names or patterns, such as ["caster_*"]')
]
