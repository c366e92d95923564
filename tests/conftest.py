"""Lets tests import the helper modules beside them (pytest's importlib mode does not), and fixtures
shared by files."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "helpers"))
sys.path.extend(map(str, Path(__file__).parent.glob("features/*/helpers")))

# A training in the test's process has the bits of a worker's only if numpy's BLAS has as many
# threads as there: one.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("OPENBLAS_NUM_THREADS", "1")
    import numpy  # noqa: F401  # reads it now; processes that tests start do not inherit it

import command_helpers as commands
import hypothesis
from command_helpers import Experiment

pytest.register_assert_rewrite("executor_conformance", "server_executor_conformance")

# Tests assert no times: an example of Hypothesis may wait for the processor, too.
hypothesis.settings.register_profile("without deadline", deadline=None)
hypothesis.settings.load_profile("without deadline")

# A script's background job has SIGINT ignored, `nohup` SIGHUP: the commands under test would
# respect that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The index of experiments: that of the user is none of the tests' business. Workers of pytest-xdist
# inherit it.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="state-of-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# A supervisor commits thousands of times in the tests, and each commit waits for the disk. Whether
# what is committed would survive a power cut is shown in the simulated world (tests/simulation).
MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 4 << 30
"""For what the tests leave: some hundred MiB, and more in the nightly tests."""


def has_room_in_memory() -> bool:
    """Whether files of tests can be in memory, where programs that tests write can be started."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return False
    facts = os.statvfs(MEMORY)
    is_for_programs = not facts.f_flag & os.ST_NOEXEC
    return is_for_programs and facts.f_bavail * facts.f_frsize >= ENOUGH_MEMORY


if not {"PYTEST_XDIST_WORKER", "TMPDIR"} & os.environ.keys() and has_room_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# The CPUs that runs of tests hold are none of other runs' business, and the other way round.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["ORCHESTRATOR_CPU_LOCKS"] = f"{os.environ['XDG_STATE_HOME']}/cpu-locks"

# No feature of others that happens to be installed takes part, but where a test names it.
os.environ["ORCHESTRATOR_FEATURES"] = ""

# Otherwise every `learn()` of stock Stable-Baselines3 in a test leaves a folder in the temporary
# directory.
os.environ.setdefault("SB3_LOGDIR", tempfile.gettempdir())

__all__ = [
    "finished",
    "finished_once",
    "small_disk",
]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than cores, because some tests wait."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Two robots trained by the command; not to be changed. The workers of pytest-xdist share
    it."""
    base = tmp_path_factory.getbasetemp()
    cwd = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished-once"
    cwd.mkdir(exist_ok=True)
    with (cwd / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cwd / ".trained").exists():
            jobs = commands.write_experiment(
                cwd,
                {"name": "hopper", "xml": commands.HOPPER, "eval_episodes": 1},
                {
                    "name": "balancer",
                    "xml": commands.BALANCER,
                    "task": "balance",
                    "eval_episodes": 1,
                },
                defaults=commands.FORKED,
            )
            done = commands.give("run", jobs, "--run-dir", "run", cwd=cwd)
            assert done.returncode == 0, done.stderr
            (cwd / ".trained").touch()
    return Experiment(cwd, cwd / "jobs.toml", cwd / "run")


@pytest.fixture
def finished(finished_once: Experiment, tmp_path: Path) -> Experiment:
    """A copy of it to do anything with."""
    cwd = tmp_path / "finished"
    shutil.copytree(finished_once.cwd, cwd)
    return Experiment(cwd, cwd / "jobs.toml", cwd / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
