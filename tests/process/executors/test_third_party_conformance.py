"""The conformance suite of executors, run by the executor in ``examples/third_party_feature``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import PUPPET
from launcher_conformance import *  # noqa: F403 - the tests
from launcher_conformance import LocalStage, Stage

from orchestrator.executors.executor import ExecutorSettings
from orchestrator.machine import topology

EXAMPLE = Path(__file__).parents[3] / "examples/third_party_feature"
pytestmark = pytest.mark.nightly


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """With puppets in the place of workers."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from prefixed import executor, settings

    monkeypatch.setattr(executor, "WORKER_COMMAND", PUPPET)
    made = executor.PrefixedExecutor(
        ExecutorSettings(
            machine=topology.detect(),
            options={"prefix": "env COLOUR=blue"},
            tables={"prefixed": settings.Prefixed()},
        )
    )
    yield LocalStage(tmp_path, made._launcher)
    made.close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "prefixed"]:
        del sys.modules[name]
