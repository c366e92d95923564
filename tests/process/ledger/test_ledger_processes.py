"""The ledger between processes that are killed, and on disks that are full or read-only."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_helpers import filled, ledgers_closed, make_job, make_spec  # noqa: F401 - a fixture

from orchestrator.core.errors import DiskFullError, LedgerError
from orchestrator.core.job import Cancelled, Pending
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob

REPOSITORY = Path(__file__).parents[3]


def in_another_process(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}
    )


WRITER = """
import sys
from pathlib import Path
from orchestrator.core.job import Pending
from orchestrator.ledger import Ledger
ledger = Ledger.open(Path(sys.argv[1]))
for number in range(1, 10**9):
    for job in range(20):
        ledger.set_state(f"j{job}", Pending(failures=number))
    ledger.commit()
    print(number, flush=True)
"""


def test_a_writer_killed_at_any_instant_leaves_everything_it_committed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    filled(path, 20).close()
    for lines in (1, 7, 23, 58):
        with in_another_process(WRITER, path) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline() for _ in range(lines)]
            writer.send_signal(signal.SIGKILL)
            said += writer.stdout.readlines()
        told = int([line for line in said if line.endswith(b"\n")][-1])
        failures = {
            row.state.failures for row in Ledger.open(path).jobs() if isinstance(row.state, Pending)
        }
        assert len(failures) == 1, "a turn is committed whole or not at all"
        assert failures.pop() >= told


CREATOR = """
import sys
from pathlib import Path
from orchestrator.ledger import Ledger
print("begun", flush=True)
Ledger.create(Path(sys.argv[1])).abandon()
"""


def test_whoever_is_killed_while_making_a_ledger_leaves_a_whole_one_or_none(tmp_path: Path) -> None:
    for number, wait_s in enumerate((0.0, 0.001, 0.002, 0.003, 0.004)):
        path = tmp_path / str(number) / "ledger.sqlite3"
        path.parent.mkdir()
        with in_another_process(CREATOR, path) as creator:
            assert creator.stdout is not None
            creator.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                creator.wait(wait_s)
            creator.send_signal(signal.SIGKILL)
        if path.exists():
            Ledger.open(path).abandon()
        else:
            Ledger.create(path).close()
            assert os.listdir(path.parent) == ["ledger.sqlite3"]


@contextlib.contextmanager
def mounted(at: Path, options: str) -> Iterator[Path]:
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system of our own needs root")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def remount(at: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(at)], check=True)


def test_a_ledger_in_a_read_only_directory_can_be_read_but_not_opened_to_write(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "m", "size=8m") as root:
        filled(root / "ledger.sqlite3").close()
        remount(root, "ro")
        reader = Ledger.open(root / "ledger.sqlite3", read_only=True)
        assert len(reader.summary()) == 3
        reader.abandon()
        with pytest.raises(LedgerError):
            Ledger.open(root / "ledger.sqlite3")
        with pytest.raises(LedgerError):
            Ledger.create(root / "other.sqlite3")


def write_without_end(ledger: Ledger) -> None:
    for number in itertools.count():
        ledger.put_jobs([DeclaredJob(position=number, job=make_job(f"more{number}"))])
        ledger.commit()


def test_a_full_disk_is_told_as_such_and_costs_only_what_was_not_committed(tmp_path: Path) -> None:
    with mounted(tmp_path / "m", "size=1m") as root:
        ledger = filled(root / "ledger.sqlite3", 20)
        ledger.set_state("j0", Cancelled())
        ledger.commit()
        with pytest.raises(DiskFullError):
            write_without_end(ledger)
        ledger.abandon()
        remount(root, "size=8m")
        again = Ledger.open(root / "ledger.sqlite3")
        assert again.jobs()[0].state == Cancelled()
        again.put_jobs([DeclaredJob(position=99, job=make_job("more"))])
        again.close()


LIMITED = """
import resource, sys
from pathlib import Path
from orchestrator.core.errors import FileLimitError
from orchestrator.core.job import Cancelled
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
ledger = Ledger.open(Path(sys.argv[1]))
ledger.set_state("j0", Cancelled())
ledger.commit()
bytes_ = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))
jobs = ledger.jobs()
try:
    for position in range(10**9):
        ledger.put_jobs([DeclaredJob(position=position, job=row.job) for row in jobs])
        ledger.commit()
except FileLimitError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "kib",
    [
        16,
    ],
)
def test_a_limit_on_the_size_of_files_is_told_as_such_and_costs_only_what_was_not_committed(
    tmp_path: Path, kib: int
) -> None:
    path = tmp_path / "ledger.sqlite3"
    filled(path, 20).close()
    with in_another_process(LIMITED, path, kib << 10) as other:
        assert other.stdout is not None
        message = other.stdout.read().decode()
    assert other.returncode == 0
    assert "ulimit -f" in message
    assert "Move it away" not in message
    again = Ledger.open(path)
    assert len(again.jobs()) == 20
    again.put_jobs([DeclaredJob(position=99, job=make_job("more"))])
    again.close()
