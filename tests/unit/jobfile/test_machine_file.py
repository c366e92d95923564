"""``/etc/orchestrator.toml``: defaults for all users of a machine, which a job file and options
override."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, resolve
from supervisor_helpers import make_machine

from orchestrator.core.errors import SpecError
from orchestrator.executors.base import BackendSettings
from orchestrator.keys import machine_file
from orchestrator.keys.machine_file import read_machine_file
from orchestrator.machine import doctor_checks
from orchestrator.machine.cpu_holders import CpuHolders
from orchestrator.machine.neighbours import Neighbours
from orchestrator.machine.slots import SlotPool


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "machine.toml"
    monkeypatch.setenv("ORCHESTRATOR_MACHINE_FILE", str(path))
    return path


def found(job: dict[str, Any], **given: Any) -> tuple[int, int]:
    """Niceness and free disk (MiB) of the job of a job file."""
    place = Path(__file__).parents[3] / "jobs"
    (one,) = resolve(place, HOPPER | job, **given).jobs
    return one.resources.nice, one.resources.min_free_disk_mib


def test_a_machine_gives_defaults_that_a_job_file_and_options_override(file: Path) -> None:
    assert found({}) == (0, 1024), "without a file"
    file.write_text('nice = 10\nmin_free_disk = "5 GiB"')
    assert found({}) == (10, 5 * 1024)
    assert found({"resources": {"nice": 3, "min_free_disk": 0}}) == (3, 0)
    assert found({}, **{"resources.nice": 0}) == (0, 5 * 1024)
    file.write_text("cores_per_user = 4")
    assert found({}) == (0, 1024)


def test_every_mistake_in_it_is_told_with_its_place(file: Path) -> None:
    file.write_text('nice = 25\ncore_per_user = 4\nmin_free_disk = "lots"\n')
    with pytest.raises(SpecError) as raised:
        found({})
    text = str(raised.value)
    assert f'{file}: core_per_user: unknown key; did you mean "cores_per_user"?' in text
    assert f"{file}: nice: expected a whole number from 0 to 19, found 25" in text
    assert f"{file}: min_free_disk: expected a size" in text
    assert "administrator" in text
    (finding,) = doctor_checks.defaults_of_machine()
    assert (finding.level, "did you mean" in finding.detail) == ("warning", True)


@pytest.mark.parametrize("content", ["nice = ", "cores_per_user = 0", "cores_per_user = 1.5"])
def test_what_is_no_such_file_is_refused(content: str, file: Path) -> None:
    file.write_text(content)
    with pytest.raises(SpecError, match=r"machine\.toml"):
        read_machine_file()


def test_nothing_is_waited_for_or_read_without_end(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(SpecError, match="not a regular file"):
        read_machine_file()
    file.unlink()
    file.write_text("#" * (machine_file.LARGEST_BYTES + 1))
    with pytest.raises(SpecError, match="larger than"):
        read_machine_file()


def test_doctor_shows_it(file: Path) -> None:
    (none,) = doctor_checks.defaults_of_machine()
    assert (none.level, str(file) in none.detail) == ("ok", True)
    file.write_text('nice = 10\nmin_free_disk = "5 GiB"\ncores_per_user = 16')
    (finding,) = doctor_checks.defaults_of_machine()
    assert "nice = 10, min_free_disk = 5120 MiB, cores_per_user = 16" in finding.detail


def test_the_runs_of_a_user_hold_no_more_cores_together_but_one_job_each(tmp_path: Path) -> None:
    (tmp_path / "cpus").mkdir()
    (tmp_path / "cpus").chmod(0o1777)

    def pool(name: str) -> SlotPool:
        seen = Neighbours(CpuHolders(tmp_path / "cpus", experiment=name))
        return SlotPool(make_machine(8), None, seen, most_of_user=3)

    one, two = pool("one"), pool("two")
    assert one.jobs_at_once == 3
    slots = [one.acquire(1), one.acquire(1)]
    assert None not in slots
    assert two.acquire(2) is not None, "its only job"
    assert one.acquire(1) is None
    assert not one.has_cores(1)
    assert two.acquire(1) is None
    assert slots[0] is not None
    one.release(slots[0])
    two.close()
    assert one.acquire(2) is not None


@pytest.mark.parametrize(("asked", "jobs_at_once"), [(None, 3), ("idle", 3), (6, 6)])
def test_a_number_of_jobs_at_once_overrides_it(asked: Any, jobs_at_once: int) -> None:
    settings = BackendSettings(machine=make_machine(8), max_parallel=asked, most_of_user=3)
    slots = settings.local_slots(settings.max_parallel)
    assert slots.jobs_at_once == jobs_at_once
    assert any("cores_per_user" in text for text in slots.warnings()) == (jobs_at_once == 3)
