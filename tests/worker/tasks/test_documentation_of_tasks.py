"""docs/tasks.md says what the tasks do, and what is observed of them."""

import dataclasses
import re
from pathlib import Path

import mujoco
import pytest

from orchestrator.core.task_names import TASKS
from orchestrator.worker.tasks import find_task, make_task
from orchestrator.worker.tasks.observations import proprioception

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs/tasks.md").read_text()
OBSERVED = TEXT.partition("### What the policy observes")[2].partition("\n### ")[0]
"""The section on ``observe`` and ``history``."""
PLACEHOLDERS = {"JOINT": ".+", "ACTUATOR": ".+"}


@pytest.mark.parametrize("task", TASKS)
def test_documentation_has_a_row_for_every_option_of_a_task_and_its_default(task: str) -> None:
    rows = {}
    for line in TEXT.splitlines():
        if line.startswith("| `"):
            option, tasks, default, _ = (cell.strip() for cell in line.strip("|").split("|"))
            rows[option.strip("`")] = (tasks, default)
    for field in dataclasses.fields(find_task(task).Options):
        tasks, default = rows[field.name]
        assert f"`{task}`" in tasks or tasks in ("all", "all but `balance`"), field.name
        if isinstance(field.default, float):
            assert str(field.default).removesuffix(".0") in default, field.name


@pytest.mark.parametrize("task", TASKS)
def test_documentation_names_the_measures_of_a_task(task: str) -> None:
    (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| [`{task}`]"))
    assert re.findall("`([^`]+)`", row.split("|")[6]) == [*TASKS[task].measures]


def pattern_of(name: str) -> str:
    """A regular expression for names that stand in the document as ``name``: ``gravity x`` for all
    axes."""
    escaped = re.escape(name)
    for word, any_name in PLACEHOLDERS.items():
        escaped = escaped.replace(word, any_name)
    return re.sub(r"(\\ )x$", r"\1[xyz]", escaped)


def test_documentation_lists_what_proprioception_observes_in_its_order_and_units() -> None:
    head, _, rest = OBSERVED.partition("in this order and within ±10:\n\n")
    assert head != OBSERVED
    lines = [line for line in rest.partition("\n\n")[0].splitlines() if line.startswith("- ")]
    patterns = [
        "|".join(pattern_of(name) for name in re.findall("`([^`]+)`", line)) for line in lines
    ]
    found = set()
    for task, robot in (("track", "quadruped"), ("reach", "arm"), ("balance", "balancer")):
        model = mujoco.MjModel.from_xml_path(str(ROOT / f"mjcf/{robot}.xml"))
        places = []
        for term in proprioception(make_task(task, model, {})):
            assert term.limit == 10
            for name, unit in zip(term.names, term.units, strict=True):
                (place,) = (
                    number for number, pattern in enumerate(patterns) if re.fullmatch(pattern, name)
                )
                assert re.search(rf"(?<![\w/]){re.escape(unit)}(?![\w/])", lines[place]), name
                places.append(place)
        assert places == sorted(places)
        found.update(places)
    assert found == set(range(len(lines)))
