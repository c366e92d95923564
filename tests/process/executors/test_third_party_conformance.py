"""The conformance suite of executors, run by the executor in ``examples/third_party_feature``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_conformance import *  # noqa: F403 - the tests
from executor_conformance import LocalStage, Stage
from executor_helpers import PUPPET

from orchestrator.executors.base import BackendSettings
from orchestrator.machine import topology

EXAMPLE = Path(__file__).parents[3] / "examples/third_party_feature"
pytestmark = pytest.mark.nightly


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Its backend, with puppets in the place of workers."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from prefixed import executor, settings

    monkeypatch.setattr(executor, "WORKER_COMMAND", PUPPET)
    made = executor.PrefixedBackend(
        BackendSettings(
            machine=topology.detect(),
            options={"prefix": "env COLOUR=blue"},
            tables={"prefixed": settings.Prefixed()},
        )
    )
    yield LocalStage(tmp_path, made.executor)
    made.executor.close()
    made.close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "prefixed"]:
        del sys.modules[name]
