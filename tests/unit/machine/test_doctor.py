"""Checks are tried on made-up machines; the whole examination runs once on this one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.machine import doctor_checks
from orchestrator.machine.doctor_checks import Finding
from orchestrator.machine.gpu import Gpu
from orchestrator.machine.thread_census import Stage
from orchestrator.machine.topology import Cpu, Machine


def made(
    cores: int = 2, smt: int = 1, quota: float | None = None, gpus: tuple[Gpu, ...] = ()
) -> Machine:
    cpus = [
        Cpu(index=sibling * cores + core, core=core, package=0, numa_node=0)
        for sibling in range(smt)
        for core in range(cores)
    ]
    return Machine(cpus=tuple(cpus), quota=quota, memory_total_mib=8192, gpus=gpus)


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_what_will_be_used_is_said_first() -> None:
    (finding,) = doctor_checks.use(made())
    assert finding.detail.startswith("2 one-core jobs at once: CPUs 0 and 1.")


def test_niceness_of_this_process_is_noted() -> None:
    assert levels(doctor_checks.niceness(0)) == ["ok"]
    (finding,) = doctor_checks.niceness(10)
    assert (finding.level, "niceness 10" in finding.detail) == ("note", True)


def test_throttling_that_happened_is_noted() -> None:
    assert levels(doctor_checks.quota(made(quota=2.0), 12.5)) == ["ok", "note"]
    assert levels(doctor_checks.quota(made(), None)) == ["ok"]


@pytest.mark.parametrize(
    ("governor", "driver", "level"),
    [
        (None, None, "ok"),
        ("powersave", "acpi-cpufreq", "warning"),
        ("powersave", "intel_pstate", "ok"),
    ],
)
def test_only_a_governor_that_really_saves_power_is_a_warning(
    tmp_path: Path, governor: str | None, driver: str | None, level: str
) -> None:
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    if governor and driver:
        (folder / "scaling_governor").write_text(governor + "\n")
        (folder / "scaling_driver").write_text(driver + "\n")
    assert levels(doctor_checks.governor(made(), tmp_path)) == [level]


def test_memory_too_small_for_all_jobs_at_once_is_a_warning() -> None:
    assert levels(doctor_checks.memory(made(), 5000, 0)) == ["ok"]
    (finding,) = doctor_checks.memory(made(), 3000, None)
    assert finding.level == "warning"
    assert levels(doctor_checks.memory(made(), 5000, 3)) == ["ok", "note"]


def stages(*counts: int, asleep: int = 0) -> list[Stage]:
    """:param asleep: threads of the last stage that have not computed."""
    names = ("start", "numpy", "torch", "training steps")
    *earlier, last = [
        Stage(name=name, n_threads=count, n_computing=count, elapsed_s=1.0)
        for name, count in zip(names, counts, strict=True)
    ]
    return [*earlier, replace(last, n_computing=last.n_threads - asleep)]


def test_a_library_beyond_its_budget_is_a_warning() -> None:
    finding = doctor_checks.threads_finding(1, stages(1, 1, 1, 2))
    assert finding.level == "warning"
    assert finding.cure


def test_a_thread_that_only_sleeps_is_no_fault() -> None:
    finding = doctor_checks.threads_finding(1, stages(1, 1, 1, 2, asleep=1))
    assert finding.level == "ok"
