"""Tests of this folder start no process (and import no training library, see
``test_imports.py``)."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Generator
from typing import Any

import pytest
from jobfile_helpers import place, write
from report_helpers import undrawn

__all__ = ["place", "undrawn", "write"]

platform.platform()  # Python asks a command for a part of it, once in a process


_start = subprocess.Popen.__init__


def refuse(*arguments: Any, **options: Any) -> None:
    """Of a process that a test starts. Where matplotlib has no list of fonts yet, as on a new
    machine, whoever imports it first asks ``fc-list`` for them.
    """
    if arguments[1:] and "fc-list" in arguments[1]:
        _start(*arguments, **options)
        return
    pytest.fail(f"a test in tests/unit starts a process; move it to tests/process: {arguments[1:]}")


def _without_processes() -> Generator[None, Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refuse)
        patch.setattr(os, "fork", refuse)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _without_processes())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _without_processes())
