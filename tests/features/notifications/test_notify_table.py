"""The table [notify]: what is wrong in it is said at its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.jobfile import from_mapping

JOB = {"name": "p", "env": "Pendulum-v1"}


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        ({"notify": {"on_end": "mail me"}}, "notify.on_end", "expected a list of a program"),
        ({"notify": {"on_end": []}}, "notify.on_end", "expected a list of a program"),
        ({"notify": {"on_end": ["a", 3]}}, "notify.on_end", "found the list"),
        ({"notify": {"on_end": ["a\0"]}}, "notify.on_end", "found the list"),
        ({"notify": {"on_fail": ["a"]}}, "notify.on_fail", 'did you mean "on_failure"?'),
        ({"notify": ["mail"]}, "notify", "expected a table"),
        ({"on_end": ["mail"]}, "on_end", "belongs in the table notify"),
        ({"jobs": [JOB | {"notify": {}}]}, "jobs[0].notify", "belongs at the top of the file"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(
    changes: dict[str, Any], where: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as error:
        from_mapping({"name": "x", "jobs": [JOB]} | changes, source="jobs.toml", base=tmp_path)
    (problem,) = error.value.problems
    assert problem.where == where
    assert message in problem.message
