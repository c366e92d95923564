"""Checks are tried on made-up machines; the whole examination runs once on this one."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.machine import doctor
from orchestrator.machine.doctor import Finding
from orchestrator.machine.topology import Cpu, Machine


def made(cores: int = 2, smt: int = 1, quota: float | None = None) -> Machine:
    cpus = [
        Cpu(index=sibling * cores + core, core=core, package=0, numa_node=0)
        for sibling in range(smt)
        for core in range(cores)
    ]
    return Machine(cpus=tuple(cpus), quota=quota, memory_total_mib=8192)


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_what_will_be_used_is_said_first() -> None:
    used, *_ = doctor.cores(made())
    assert used.detail.startswith("2 one-core jobs at once: CPUs 0 and 1.")
    assert levels(doctor.cores(made(smt=2))) == ["ok", "ok", "note"]


def test_a_quota_and_throttling_are_told() -> None:
    assert levels(doctor.quota(made(quota=1.0), 12.5)) == ["warning", "note"]
    assert levels(doctor.quota(made(quota=2.0), None)) == ["ok"]
    assert levels(doctor.quota(made(), None)) == ["ok"]


def test_memory_too_small_for_all_jobs_at_once_is_a_warning() -> None:
    assert levels(doctor.memory(made(), 5000, 0)) == ["ok"]
    assert levels(doctor.memory(made(), 3000, None)) == ["warning"]
    assert levels(doctor.memory(made(), 5000, 3)) == ["ok", "note"]


def test_a_variable_that_binds_threads_is_a_warning() -> None:
    assert levels(doctor.thread_binding({"OMP_PROC_BIND": "true"})) == ["warning"]
    assert levels(doctor.thread_binding({})) == []
