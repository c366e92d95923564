"""Contention is diagnosed from metrics, and nothing else is taken for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor_helpers import Run, make_job

from orchestrator.analysis.contention import (
    ContentionFinding,
    CpuSpan,
    JobMetrics,
    diagnose,
    find,
    measure,
)
from orchestrator.core.paths import JobPaths


def span(begin: float, end: float, *cpus: int) -> CpuSpan:
    return CpuSpan(begin=begin, end=end, cpus=frozenset(cpus))


def job(
    job_id: str, *cpus: int, spans: Sequence[CpuSpan] | None = None, **given: Any
) -> JobMetrics:
    """A job without contention, for 100 s on ``cpus`` (CPU 0), where no spans are given."""
    calm: dict[str, Any] = {
        "job_id": job_id,
        "spans": [span(0.0, 100.0, *(cpus or (0,)))] if spans is None else spans,
        "threads": 1,
        "env_steps": 100_000.0,
        "wall_s": 50.0,
        "cpu_s": 49.0,
        "run_delay_s": 0.2,
        "throttled_s": 0.0,
        "n_threads": 2,
    }
    return JobMetrics(**{**calm, **given})


def kinds(findings: list[ContentionFinding]) -> list[str]:
    return [one.kind for one in findings]


class TestDiagnosis:
    def test_without_contention_nothing_is_found(self) -> None:
        assert diagnose([job(f"j{cpu}", cpu) for cpu in (0, 1)]) == []

    def test_more_threads_than_cores(self) -> None:
        greedy = job("g", 0, 1, threads=8, n_threads=23, cpu_s=95.0, run_delay_s=110.0)
        (one,) = diagnose([greedy, job("other", 2)])
        assert (one.kind, one.job_ids, one.what) == (
            "threads",
            ("g",),
            "threads = 8 on 2 cores (CPUs 0 and 1)",
        )
        assert (
            one.evidence
            == "23 threads were running; 4.1 were runnable at once; together they waited 220% of the time"
        )
        assert one.cure == "resources.threads = 2, or resources.cores = 8"

    def test_a_cgroup_limit_is_named_once_for_all_it_hit(self) -> None:
        jobs = [job(f"j{n}", n, throttled_s=20.0 + n, run_delay_s=25.0) for n in range(3)]
        (one,) = diagnose(jobs)
        assert (one.kind, one.job_ids) == ("throttled", ("j0", "j1", "j2"))
        assert one.evidence == "j2: throttled 44% of its time"

    def test_a_hog_on_one_core(self) -> None:
        delayed = [
            job(f"r{n}", cpu_s=25.0, run_delay_s=24.0, spans=[span(n, n + 1.0, 0)])
            for n in range(2)
        ]
        (one,) = diagnose([*delayed, job("free", 1)])
        assert (one.kind, one.job_ids) == ("hog", ("r0", "r1"))
        assert one.what == "another program used CPU 0, which 2 jobs of this run had"
        assert one.evidence == "2 jobs there waited 48% of the time for a CPU"

    def test_a_moved_job_shared_the_core_that_both_had_at_once(self) -> None:
        moved = job("moved", spans=[span(0, 50, 0), span(50, 100, 1)], cpu_s=25.0, run_delay_s=24.0)
        (one,) = diagnose([moved, job("other", spans=[span(60, 90, 0, 1)])])
        assert (one.kind, one.job_ids) == ("shared", ("moved",))

    def test_metrics_that_are_not_measured_give_no_finding(self) -> None:
        blind = {"cpu_s": None, "run_delay_s": None, "throttled_s": None, "n_threads": None}
        assert diagnose([job("j", **blind)]) == []
        assert kinds(diagnose([job("j", threads=4, **blind)])) == ["threads"]


def ran(root: Path, *cpus: int, timings: str, **spec: Any) -> Run:
    """An experiment with the job j-s0, which was launched on ``cpus``."""
    experiment = Run(root, [make_job("j-s0", **spec)])
    experiment.begin("j-s0", cpus=cpus, started_at=5.0)
    experiment.ledger.commit()
    folder = root / "jobs/j-s0"
    folder.mkdir(parents=True)
    (folder / "timings.csv").write_text(timings)
    return experiment


class TestReading:
    def test_a_half_written_row_does_not_hinder(self, tmp_path: Path) -> None:
        head = "iteration,env_steps,wall_s,cpu_s,run_delay_s,throttled_s,n_threads,n_cpus\n"
        rows = "1,100,9,9,9,0,2,2\n2,200,1,0.5,0.4,,3,1\n3,300,1,0.5,0.6,,2,2\n4,400,1,0."
        ran(tmp_path, 0, 1, timings=head + rows)
        (one,) = measure(tmp_path)
        assert one == JobMetrics(
            job_id="j-s0",
            spans=[span(5.0, math.inf, 0, 1)],
            threads=1,
            env_steps=200.0,
            wall_s=2.0,
            cpu_s=1.0,
            run_delay_s=1.0,
            throttled_s=None,
            n_threads=3,
        )

    def test_a_moved_attempt_has_the_cpus_of_each_of_its_times(self, tmp_path: Path) -> None:
        experiment = Run(tmp_path, [make_job("j-s0"), make_job("k-s0")])
        for job_id, cpu in (("j-s0", 0), ("k-s0", 1)):
            experiment.begin(job_id, cpus=(cpu,), started_at=5.0)
            JobPaths(tmp_path / "jobs" / job_id).root.mkdir(parents=True)
            timings = "iteration,env_steps,wall_s,cpu_s,run_delay_s,n_cpus\n1,100,9,9,0,1\n2,200,10,5,5,1\n"
            (tmp_path / "jobs" / job_id / "timings.csv").write_text(timings)
        experiment.ledger.move_attempt("j-s0", 0, (0,), (1,), at=7.0)
        experiment.ledger.commit()
        jobs = {one.job_id: one for one in measure(tmp_path)}
        assert jobs["j-s0"].spans == [span(5.0, 7.0, 0), span(7.0, math.inf, 1)]
        assert jobs["j-s0"].common_cpus(jobs["k-s0"]) == {1}
        assert kinds(find(tmp_path)) == ["shared"]

    def test_an_empty_directory_has_no_contention(self, tmp_path: Path) -> None:
        assert find(tmp_path) == []

    def test_rank_0_is_not_blamed_for_having_only_its_own_cores(self, tmp_path: Path) -> None:
        timings = "env_steps,wall_s,cpu_s,run_delay_s,throttled_s,n_threads,n_cpus\n1,1,1,0,0,2,1\n2,1,1,0,0,2,1\n"
        ran(tmp_path, 4, 5, timings=timings, ranks=2)
        metrics = measure(tmp_path)
        assert metrics[0].cpus == {4}
        assert diagnose(metrics) == []
