"""Ways in which the rows of a search are damaged, and what is said of each."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import pytest
from trial_helpers import Told

from orchestrator.core.paths import RunPaths

TRIALS = [
    Told(values=[3.0], reached=[1.0, 2.0]),
    Told(reached=[0.5]),
    Told(why="no legs"),
    Told(values=[2.0], reevaluates=0),
    Told(reached=[2.0], is_promoted=True),
]
DAMAGES: dict[str, tuple[str, str]] = {
    "a trial that is not there": (
        "UPDATE search SET trial = 7 WHERE kind = 'over'",
        "there is no trial 7",
    ),
    "a negative trial": (
        "UPDATE search SET trial = -1 WHERE kind = 'reached'",
        "expected the number of a trial",
    ),
    "no trial": (
        "UPDATE search SET trial = NULL WHERE kind = 'promoted'",
        "expected the number of a trial",
    ),
    "a trial that was never made": (
        "DELETE FROM search WHERE kind = 'asked'",
        "there is no trial 0",
    ),
    "no value": (
        "UPDATE search SET content = '{\"env_steps\": 1}' WHERE kind = 'reached'",
        "value: missing",
    ),
    "two values": (
        "UPDATE search SET content = json_set(content, '$.values', json('[1, 2]')) WHERE kind = 'over' AND trial = 0",
        "values: expected 1",
    ),
    "a value that is text": (
        "UPDATE search SET content = json_set(content, '$.values', json('[\"x\"]')) WHERE kind = 'over' AND trial = 0",
        "values: expected numbers",
    ),
    "no jobs": (
        "UPDATE search SET content = json_remove(content, '$.jobs') WHERE kind = 'asked'",
        "jobs: missing",
    ),
    "a point without a key": (
        "UPDATE search SET content = json_set(content, '$.point', json('{}')) WHERE kind = 'asked'",
        "ppo.learning_rate: missing",
    ),
    "a parent that comes later": (
        "UPDATE search SET content = json_set(content, '$.parent', 4) WHERE kind = 'asked'",
        "there is no trial 4",
    ),
    "a rung after the end": ("UPDATE search SET id = 90 WHERE id = 3", "trial 0 is over before it"),
    "no number of jobs at once": (
        "UPDATE search SET content = '{}' WHERE kind = 'began'",
        "lanes: missing",
    ),
    "no object": ("UPDATE search SET content = '[1]' WHERE kind = 'ended'", "expected an object"),
    "no JSON": ("UPDATE search SET content = '{' WHERE kind = 'asked' AND id = 2", "row 2"),
    "two contents in one": ("UPDATE search SET content = '{}, {}' WHERE id = 2", "row 2"),
    "no text": ("UPDATE search SET content = x'ff' WHERE id = 2", "row 2"),
    "no time": ("UPDATE search SET at = 'noon' WHERE kind = 'over'", "at: expected a time"),
}
each_damage = pytest.mark.parametrize(("statement", "fact"), DAMAGES.values(), ids=DAMAGES)


def damage(paths: RunPaths, statement: str, values: tuple[Any, ...] = ()) -> None:
    with contextlib.closing(sqlite3.connect(paths.ledger)) as connection:
        connection.execute(statement, values)
        connection.commit()
