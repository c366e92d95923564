"""A worker that starts faster trains the same bits, in little memory, and without torch's
compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import worker_helpers as helpers

from orchestrator.core.paths import JobPaths
from orchestrator.worker.runtime import import_speed

MOST_RESIDENT_MIB = 300
AS_THE_LIBRARIES_ARE = """
import contextlib, sys
from orchestrator.worker import __main__ as worker
from orchestrator.worker.runtime import import_speed
from orchestrator.worker.runtime import sb3_internals
import_speed.fast_imports = contextlib.nullcontext
sb3_internals.keep_compiler_out = lambda: None
worker.main(sys.argv[1:])
"""
AS_WE_START = (
    "import sys; from orchestrator.worker import __main__ as worker; worker.main(sys.argv[1:])"
)


def trained(directory: Path, program: str) -> JobPaths:
    """A job of a built-in task with normalisation, trained by ``program``."""
    (directory / "robot").mkdir(parents=True)
    (directory / "robot/balancer.xml").write_bytes(
        (helpers.REPOSITORY / "mjcf/balancer.xml").read_bytes()
    )
    spec = helpers.spec(
        task="balance", xml="robot/balancer.xml", normalize=True, learner="sb3", eval_episodes=1
    )
    paths = helpers.job(directory, spec)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(helpers.REPOSITORY)}
    command = [sys.executable, "-c", program, str(paths.root), "0"]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return paths


@pytest.mark.nightly
def test_a_worker_trains_the_same_bits_as_the_libraries_alone_in_less_memory(
    tmp_path: Path,
) -> None:
    plain, lean = (
        trained(tmp_path / "plain", AS_THE_LIBRARIES_ARE),
        trained(tmp_path / "lean", AS_WE_START),
    )
    assert helpers.same_bits(helpers.parameters(lean.model), helpers.parameters(plain.model))
    assert helpers.normalization(lean.vecnormalize) == helpers.normalization(plain.vecnormalize)
    (of_plain, of_lean) = (
        float(helpers.rows(paths.timings_csv)[-1]["rss_mib"]) for paths in (plain, lean)
    )
    assert of_lean < min(of_plain, MOST_RESIDENT_MIB)


@pytest.mark.parametrize("name", import_speed.UNUSED)
def test_unused_packages_are_missing_only_while_packages_are_imported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    with import_speed.fast_imports(), pytest.raises(ImportError):
        __import__(name)
    assert name not in sys.modules
