"""URDFs of tests, made of parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.worker.robots.preflight_child import check

ROOT = Path(__file__).parents[4]
URDFS = ROOT / "mjcf" / "urdf"
TETRAHEDRON = (
    "v 0 0 0\nv {size} 0 0\nv 0 {size} 0\nv 0 0 {size}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
)
BOX = '<geometry><box size="0.1 0.1 0.2"/></geometry>'
LIMIT = '<limit lower="-1" upper="1" effort="6" velocity="2"/>'


def inertial(mass: float = 1.0, inertia: float = 0.01) -> str:
    numbers = f'ixx="{inertia}" iyy="{inertia}" izz="{inertia}" ixy="0" ixz="0" iyz="0"'
    return f'<inertial><mass value="{mass}"/><inertia {numbers}/></inertial>'


def link(name: str, *parts: str) -> str:
    return f'<link name="{name}">{"".join(parts or (inertial(), f"<collision>{BOX}</collision>"))}</link>'


def joint(
    name: str, parent: str, child: str, *parts: str, kind: str = "revolute", at: str = "0 0 0.3"
) -> str:
    ends = (
        f'<parent link="{parent}"/><child link="{child}"/><origin xyz="{at}"/><axis xyz="0 1 0"/>'
    )
    return f'<joint name="{name}" type="{kind}">{ends}{"".join(parts or (LIMIT,))}</joint>'


def robot(*lines: str) -> str:
    """Each part in a line of its own, the first in line 2."""
    return "\n".join(['<robot name="r">', *lines, "</robot>"])


GOOD = robot(link("trunk"), link("arm"), joint("shoulder", "trunk", "arm"))


def examiner(folder: Path) -> Callable[..., ExaminationAnswer]:
    """Examines a URDF as a job does: ``ask(text, task=…, base="floating")``."""

    def ask(
        text: str, *, task: str | None = None, request: dict[str, Any] | None = None, **urdf: Any
    ) -> Any:
        (folder / "r.urdf").write_text(text)
        others: dict[str, Any] = {
            "stage_to": str(folder / "staged"),
            "memory_mib": 4096,
            **(request or {}),
        }
        alone = task is None and "alone" not in others
        xml = str(folder / "r.urdf")
        return check(
            ExaminationRequest(
                **{"alone": alone, **others},
                xml=xml,
                robot_settings=urdf,
                task=task,
                simulate_s=0.02,
            )
        )

    return ask
