"""Contention is diagnosed from metrics, and nothing else is taken for it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import Run, make_job

from orchestrator.analysis.contention import (
    ContentionFinding,
    CpuSpan,
    ExperimentMetrics,
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
        "fewest_cpus": None,
        "threads": 1,
        "work": "",
        "env_steps": 100_000.0,
        "wall_s": 50.0,
        "cpu_s": 49.0,
        "run_delay_s": 0.2,
        "throttled_s": 0.0,
        "n_threads": 2,
    }
    return JobMetrics(**{**calm, **given})


def experiment(*jobs: JobMetrics, **given: Any) -> ExperimentMetrics:
    return ExperimentMetrics(
        **{
            "jobs": jobs,
            "usable_cpus": 2,
            "online_cpus": 2,
            "quota": None,
            **given,
        }
    )


def kinds(findings: list[ContentionFinding]) -> list[str]:
    return [one.kind for one in findings]


class TestDiagnosis:
    def test_without_contention_nothing_is_found(self) -> None:
        assert diagnose(experiment(*(job(f"j{cpu}", cpu) for cpu in (0, 1)))) == []
        assert diagnose(experiment(usable_cpus=None, online_cpus=None)) == []

    def test_more_threads_than_cores(self) -> None:
        greedy = job("g", 0, 1, threads=8, n_threads=23, cpu_s=95.0, run_delay_s=110.0)
        (one,) = diagnose(experiment(greedy, job("other", 2)))
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
        (one,) = diagnose(experiment(*jobs, quota=1.5))
        assert (one.kind, one.job_ids) == ("throttled", ("j0", "j1", "j2"))
        assert one.what == "kept off the CPU by a cgroup limit (and 2 more jobs)"
        assert one.evidence == "j2: throttled 44% of its time; the quota is 1.5 CPUs"

    def test_a_quota_that_idles_cpus_is_found_without_throttling(self) -> None:
        (one,) = diagnose(experiment(job("j"), quota=1.0))
        assert (one.kind, one.job_ids) == ("quota", ())

    def test_a_supervisor_that_was_allowed_few_cpus(self) -> None:
        (one,) = diagnose(experiment(job("j"), usable_cpus=1))
        assert (one.kind, one.job_ids) == ("affinity", ())
        assert one.what == "the program was allowed 1 of the machine's 2 CPUs"

    def test_a_job_that_was_allowed_fewer_cpus_than_its_slot_has(self) -> None:
        confined = job("c", 0, 1, threads=2, run_delay_s=45.0, fewest_cpus=1)
        (one,) = diagnose(experiment(confined))
        assert (one.kind, one.job_ids) == ("affinity", ("c",))
        assert one.evidence == "c: allowed 1 CPU of its slot's CPUs 0 and 1"

    def test_a_hog_on_one_core(self) -> None:
        delayed = [
            job(f"r{n}", cpu_s=25.0, run_delay_s=24.0, spans=[span(n, n + 1.0, 0)])
            for n in range(2)
        ]
        (one,) = diagnose(experiment(*delayed, job("free", 1)))
        assert (one.kind, one.job_ids) == ("hog", ("r0", "r1"))
        assert one.what == "another program used CPU 0, which 2 jobs of this run had"
        assert (
            one.evidence
            == "2 jobs there waited 48% of the time for a CPU; jobs on other CPUs 0% only"
        )

    def test_a_moved_job_shared_the_core_that_both_had_at_once(self) -> None:
        moved = job("moved", spans=[span(0, 50, 0), span(50, 100, 1)], cpu_s=25.0, run_delay_s=24.0)
        (one,) = diagnose(experiment(moved, job("other", spans=[span(60, 90, 0, 1)])))
        assert (one.kind, one.job_ids) == ("shared", ("moved",))

    def test_one_that_is_slow_among_its_like(self) -> None:
        like = [job(f"j{n}", n, work="hopper") for n in range(3)]
        slow = job("slow", 3, work="hopper", wall_s=110.0, cpu_s=108.0)
        (one,) = diagnose(experiment(*like, slow))
        assert (one.kind, one.job_ids, one.what) == (
            "slow",
            ("slow",),
            "2.2× slower than 3 jobs of the same work",
        )
        assert diagnose(experiment(*like, replace(slow, work="humanoid"))) == []

    def test_metrics_that_are_not_measured_give_no_finding(self) -> None:
        blind = {"cpu_s": None, "run_delay_s": None, "throttled_s": None, "n_threads": None}
        assert diagnose(experiment(job("j", **blind))) == []
        (one,) = diagnose(experiment(job("j", threads=4, **blind)))
        assert one.evidence == "as declared; nothing was measured"


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
        (one,) = measure(tmp_path).jobs
        assert one == JobMetrics(
            job_id="j-s0",
            fewest_cpus=1,
            spans=[span(5.0, math.inf, 0, 1)],
            threads=1,
            work=one.work,
            env_steps=200.0,
            wall_s=2.0,
            cpu_s=1.0,
            run_delay_s=1.0,
            throttled_s=None,
            n_threads=3,
        )
        assert kinds(find(tmp_path)) == ["affinity"]

    @pytest.mark.parametrize(
        ("cpus", "evidence"),
        [([4, 5], []), ([4, 6], ["allowed 1 CPU of"]), ([6, 7], ["allowed 0 CPUs of"]), (None, [])],
    )
    def test_the_exit_record_tells_cpus_of_another_slot(
        self, tmp_path: Path, cpus: list[int] | None, evidence: list[str]
    ) -> None:
        timings = "iteration,env_steps,wall_s,n_cpus\n1,100,9,2\n2,200,1,2\n"
        ran(tmp_path, 4, 5, timings=timings)
        attempt = JobPaths(tmp_path / "jobs/j-s0").attempt(0)
        attempt.root.mkdir(parents=True)
        attempt.exit.write_text(json.dumps({"code": 0, "message": "", "cpus": cpus}))
        found = find(tmp_path)
        assert kinds(found) == ["affinity"] * len(evidence)
        assert all(text in one.evidence for text, one in zip(evidence, found, strict=True))

    def test_a_moved_attempt_has_the_cpus_of_each_of_its_times(self, tmp_path: Path) -> None:
        experiment = Run(tmp_path, [make_job("j-s0"), make_job("k-s0")])
        for job_id, cpu in (("j-s0", 0), ("k-s0", 1)):
            experiment.begin(job_id, cpus=(cpu,), started_at=5.0)
            JobPaths(tmp_path / "jobs" / job_id).root.mkdir(parents=True)
            timings = "iteration,env_steps,wall_s,cpu_s,run_delay_s,n_cpus\n1,100,9,9,0,1\n2,200,10,5,5,1\n"
            (tmp_path / "jobs" / job_id / "timings.csv").write_text(timings)
        experiment.ledger.move_attempt("j-s0", 0, (0,), (1,), at=7.0)
        experiment.ledger.commit()
        jobs = {one.job_id: one for one in measure(tmp_path).jobs}
        assert jobs["j-s0"].spans == [span(5.0, 7.0, 0), span(7.0, math.inf, 1)]
        assert jobs["j-s0"].common_cpus(jobs["k-s0"]) == {1}
        assert kinds(find(tmp_path)) == ["shared"]

    def test_jobs_that_differ_in_their_seed_alone_do_the_same_work(self, tmp_path: Path) -> None:
        jobs = [make_job("a-s0"), make_job("a-s1", spec={"seed": 1})]
        experiment = Run(tmp_path, jobs)
        for cpu, job in enumerate(jobs):
            experiment.begin(job.spec.job_id, cpus=(cpu,), started_at=5.0)
            JobPaths(tmp_path / "jobs" / job.spec.job_id).root.mkdir(parents=True)
            timings = "iteration,env_steps,wall_s\n1,100,9\n2,200,10\n"
            (tmp_path / "jobs" / job.spec.job_id / "timings.csv").write_text(timings)
        experiment.ledger.commit()
        assert len({one.work for one in measure(tmp_path).jobs}) == 1

    def test_an_empty_directory_has_no_contention(self, tmp_path: Path) -> None:
        assert find(tmp_path) == []

    def test_rank_0_is_not_blamed_for_having_only_its_own_cores(self, tmp_path: Path) -> None:
        timings = "env_steps,wall_s,cpu_s,run_delay_s,throttled_s,n_threads,n_cpus\n1,1,1,0,0,2,1\n2,1,1,0,0,2,1\n"
        ran(tmp_path, 4, 5, timings=timings, ranks=2)
        metrics = measure(tmp_path)
        assert metrics.jobs[0].cpus == {4}
        assert diagnose(metrics) == []
