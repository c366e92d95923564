"""docs/tasks.md says what the tasks do."""

import dataclasses
from pathlib import Path

import pytest

from orchestrator.core.task_names import TASKS
from orchestrator.worker.tasks import find_task

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("task", TASKS)
def test_documentation_has_a_row_for_every_option_of_a_task_and_its_default(task: str) -> None:
    rows = {}
    for line in (ROOT / "docs/tasks.md").read_text().splitlines():
        if line.startswith("| `"):
            option, tasks, default, _ = (cell.strip() for cell in line.strip("|").split("|"))
            rows[option.strip("`")] = (tasks, default)
    for field in dataclasses.fields(find_task(task).Options):
        tasks, default = rows[field.name]
        assert f"`{task}`" in tasks or tasks in ("all", "all but `balance`"), field.name
        if isinstance(field.default, float):
            assert str(field.default).removesuffix(".0") in default, field.name
