"""All messages about errors in job files are in ``problems.txt``, which this test compares.

``UPDATE_SNAPSHOTS=1 python -m pytest tests/unit/jobfile/test_problems.py`` rewrites the file: read
the difference before you commit it. The head of the file says what its lines mean.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from jobfile_helpers import HOPPER

from orchestrator.core.errors import SpecError
from orchestrator.jobfile import from_mapping

SNAPSHOT = Path(__file__).with_name("problems.txt")
SEARCH = {
    "space": {"ppo.learning_rate": {"low": 1e-4, "high": 1e-3, "log": True}},
    "trials": 20,
    "sampler": "random",
}


def job_file(case: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the job file that a case declares."""
    job = {**HOPPER} | ({"task": "forward"} if "search" in case else {})
    tables = {"job": job, "search": {**SEARCH}, "file": {"name": "robots", "jobs": [job]}}
    for dotted in case.pop("without", []):
        table, key = dotted.split(".")
        del tables[table][key]
    job |= case.pop("job", {})
    if "search" in case:
        case["search"] = tables["search"] | case["search"]
    return tables["file"] | case


def problems_of(snippet: str, place: Path) -> list[str]:
    """Return a line for each problem of a case: the class of the error, the key, and the text."""
    case = tomllib.loads(snippet)
    overrides = case.pop("set", {})
    try:
        from_mapping(job_file(case), source="robots.toml", base=place, overrides=overrides)
    except SpecError as error:
        kind = type(error).__name__
        found = [f"> {kind} {problem.where}: {problem.message}" for problem in error.problems]
        return [line.replace(str(place.parent), "/project") for line in found]
    return ["> no error"]


def test_errors_in_job_files_have_the_messages_of_the_snapshot(place: Path) -> None:
    before = SNAPSHOT.read_text()
    head, *cases = re.split(r"\n{2,}", before.rstrip("\n"))
    found = [head]
    for case in cases:
        snippet = [line for line in case.splitlines() if not line.startswith(">")]
        is_case = any(not line.startswith("#") for line in snippet)
        lines = problems_of("\n".join(snippet), place) if is_case else []
        found.append("\n".join([*snippet, *lines]))
    now = "\n\n".join(found) + "\n"
    assert "> no error" not in now
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(now)
    else:
        assert now == before
