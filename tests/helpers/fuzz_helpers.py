"""Arbitrary content for files and messages that other processes write."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FEATURES = Path(__file__).parents[2] / "orchestrator/features"

NUMBERS = st.one_of(
    st.integers(-2, 5),
    st.integers(),
    st.sampled_from([2**31, 2**53, 2**63 - 1, -(2**63), 2**63, 10**30, 10**400, -(10**400)]),
    st.floats(),
    st.sampled_from([1.7e308, -1.7e308, 5e-324, 1e305]),
)
TEXT = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(categories=["Cc", "Cs", "Cf", "Zl", "Zp", "Nd"]), max_size=5),
    st.sampled_from(
        [
            "",
            "\0",
            "..",
            "../..",
            "/",
            "\ud800",
            "\x1b[2J",
            "nan",
            "1e999",
            "x" * 5000,
            "[/]",
            "[red]",
        ]
    ),
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
DEEP = st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000, b"[" * 900 + b"]" * 900])
"""JSON nested too deeply for a parser that recurses, and for one that hardly does."""


def fuzz(examples: int) -> settings:
    """The same examples in every run, however slow the machine is."""
    return settings(
        derandomize=True,
        deadline=None,
        database=None,
        max_examples=examples,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )


def as_bytes(value: Any) -> bytes:
    """JSON, of which any value is possible."""
    return json.dumps(value).encode()


def changed(valid: bytes) -> st.SearchStrategy[bytes]:
    """``valid`` with a few bytes changed, removed or inserted, or cut off."""
    place = st.integers(0, len(valid))
    edit = st.tuples(place, st.integers(0, 8), st.binary(max_size=4))

    def apply(edits: list[tuple[int, int, bytes]], length: int) -> bytes:
        content = valid
        for begin, removed, put in edits:
            content = content[:begin] + put + content[begin + removed :]
        return content[:length]

    return st.builds(apply, st.lists(edit, max_size=3), place | st.just(1 << 30))


def objects_of(kind: Any, valid: Any) -> st.SearchStrategy[bytes]:
    """JSON objects with the fields of the dataclass ``kind``, some of them with any value;
    ``valid`` is an instance."""
    plain = dataclasses.asdict(valid)
    names = [field.name for field in dataclasses.fields(kind)]
    any_fields = st.dictionaries(st.sampled_from(names) | TEXT, VALUES, max_size=4)
    numbers = [name for name in names if type(plain[name]) in (int, float)]
    fitting = st.dictionaries(st.sampled_from(numbers or names), NUMBERS, min_size=1, max_size=2)
    return (fitting | any_fields).map(lambda wrong: as_bytes({**plain, **wrong}))


def mutated(valid: Any) -> st.SearchStrategy[bytes]:
    """JSON as ``valid``, but for one value somewhere in it that is missing or any other."""
    text = json.dumps(valid)

    def apply(path: list[int], value: Any, removed: bool) -> bytes:
        tree = [json.loads(text)]
        holder: Any = tree
        key: Any = 0
        for step in path:
            inside = holder[key]
            if not isinstance(inside, (dict, list)) or not inside:
                break
            holder = inside
            key = [*inside][step % len(inside)] if isinstance(inside, dict) else step % len(inside)
        if removed and holder is not tree:
            del holder[key]
        else:
            holder[key] = value
        return as_bytes(tree[0])

    path = st.lists(st.integers(0, 1000), min_size=1, max_size=6)
    return st.builds(apply, path, NUMBERS | VALUES, st.sampled_from([False, False, False, True]))


def contents(kind: Any, valid: Any) -> st.SearchStrategy[bytes]:
    """Whatever a file may hold that should hold ``valid`` as JSON."""
    return st.one_of(
        objects_of(kind, valid),
        objects_of(kind, valid),
        changed(as_bytes(dataclasses.asdict(valid))),
        VALUES.map(as_bytes),
        st.binary(max_size=50),
        DEEP,
    )


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


SPECIAL: list[Callable[[Path], object]] = [
    os.mkfifo,
    endless,
    Path.mkdir,
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/nowhere"),
]
"""Make something at a path that is no regular file."""
each_special = pytest.mark.parametrize(
    "make",
    SPECIAL,
    ids=["pipe", "link to endless device", "folder", "link to itself", "broken link"],
)


def emptied(folder: Path) -> Path:
    """``folder``, empty: hypothesis runs many examples in the temporary directory of one test."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def of_feature(module: str, read: Callable[[Any], object]) -> list[Callable[[], object]]:
    """A reader of a feature, which has its part in what all readers must bear; none where the
    feature has been taken away.
    """
    if not (FEATURES / module.partition(".")[0]).is_dir():
        return []
    return [lambda: read(importlib.import_module(f"orchestrator.features.{module}"))]
