"""Contention that a test plants is diagnosed from a real run."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest

from orchestrator.analysis.contention import ContentionFinding, find
from orchestrator.machine import topology

pytestmark = pytest.mark.nightly

CPUS = sorted(os.sched_getaffinity(0))
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
BURN = "while True: pass"
two_cpus = pytest.mark.skipif(topology.largest_job(topology.detect()) < 2, reason="needs two CPUs")
no_quota = pytest.mark.skipif(
    topology.detect().quota is not None, reason="under a CPU quota that causes contention"
)


@contextlib.contextmanager
def burning(cpu: int, count: int) -> Iterator[None]:
    """Processes that do nothing but use ``cpu``."""
    hogs = [
        subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        for hog in hogs:
            os.sched_setaffinity(hog.pid, {cpu})
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of half a CPU (version 1), removed in the end."""
    folder = CPU_GROUPS / f"orchestrator-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text("50000")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield folder
    finally:
        # Whatever was started in it has been waited for; the kernel may need a moment to see it.
        commands.wait_until(
            lambda: not (folder / "cgroup.procs").read_text(), "processes leave the group"
        )
        folder.rmdir()


def train(tmp_path: Path, *jobs: dict[str, Any], **given: Any) -> list[ContentionFinding]:
    """Run a tiny experiment under whatever contention; what was found."""
    given_jobs = [{"xml": commands.HOPPER, **job} for job in jobs]
    path = commands.write_experiment(tmp_path, *given_jobs, head="max_parallel = 2")
    done = commands.give("run", path, "--run-dir", "run", cwd=tmp_path, **given)
    assert done.returncode == 0, done.stderr
    return find(tmp_path / "run")


class TestPlanted:
    @two_cpus
    def test_a_job_with_eight_threads_on_two_cores(self, tmp_path: Path) -> None:
        found = train(tmp_path, {"name": "greedy", "resources": {"cores": 2, "threads": 8}})
        (one,) = (finding for finding in found if finding.kind == "threads")
        assert one.job_ids == ("greedy-s0",)
        assert one.what.startswith("threads = 8 on 2 cores")
        assert "threads were running" in one.evidence

    @two_cpus
    @no_quota
    def test_a_hog_on_one_slots_core(self, tmp_path: Path) -> None:
        with burning(CPUS[0], 3):
            slots = {"before": lambda: os.sched_setaffinity(0, set(CPUS[:2]))}
            found = train(tmp_path, {"name": "a"}, {"name": "b"}, **slots)
        rows = commands.summary(tmp_path / "run")
        (delayed,) = (job_id for job_id, row in rows.items() if row["cpus"] == [CPUS[0]])
        (one,) = (finding for finding in found if delayed in finding.job_ids)
        assert one.kind == "hog"
        assert re.search(rf" used CPUs? {CPUS[0]}\b", one.what), one.what

    def test_a_limit_of_a_cgroup_from_outside(self, tmp_path: Path, group: Path) -> None:
        entry = group / "cgroup.procs"
        found = train(tmp_path, {"name": "a"}, before=lambda: (entry.write_text("0"), None)[1])
        (one,) = (finding for finding in found if finding.kind == "throttled")
        assert "cgroup limit" in one.what
