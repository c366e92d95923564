"""Comparison of trained experiments."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import command_helpers as commands
import measurement_helpers as bench
import pytest
from command_helpers import Experiment
from measurement_helpers import measurements

from orchestrator.analysis.compare import Comparison, Pair, compare
from orchestrator.core.errors import UsageError


def pair(found: Comparison, what: str, figure: str) -> Pair:
    (one,) = (one for one in found.pairs if (one.what, one.figure) == (what, figure))
    return one


class TestExperiments:
    def test_jobs_are_compared_over_their_seeds(self, finished_once: Experiment) -> None:
        found = compare(finished_once.run_dir, finished_once.run_dir)
        assert found.kind == "experiment"
        one = pair(found, "hopper", "env_steps/s")
        assert one.ratio is not None
        assert (one.ratio.median, one.ratio.low, one.a.n) == (1, None, 1)
        evaluated = pair(found, "balancer", "evaluation")
        assert evaluated.a.median == evaluated.b.median

    def test_another_learner_is_listed(self, tmp_path: Path, finished_once: Experiment) -> None:
        copy = shutil.copytree(finished_once.run_dir, tmp_path / "copy")
        with sqlite3.connect(copy / "ledger.sqlite3") as ledger:
            ledger.execute("UPDATE jobs SET learner = 'sb3'")
        ledger.close()
        assert ("learner", "sb3", "fast") in compare(copy, finished_once.run_dir).differences

    def test_a_return_that_is_not_positive_has_no_ratio(self, tmp_path: Path, finished_once: Experiment) -> None:
        found = compare(finished_once.run_dir, finished_once.run_dir)
        for one in found.pairs:
            assert (one.ratio is None) == (one.a.median <= 0)

    def test_the_command_shows_them(self, finished_once: Experiment, tmp_path: Path) -> None:
        shown = commands.invoke("compare", finished_once.run_dir, finished_once.run_dir, cwd=tmp_path)
        assert shown.returncode == 0
        assert "env_steps/s" in shown.stdout
        assert "Other differences" not in shown.stdout

    def test_returns_of_training_are_not_compared_with_evaluations(
        self, tmp_path: Path, finished_once: Experiment
    ) -> None:
        figures = {(one.what, one.figure) for one in compare(finished_once.run_dir, finished_once.run_dir).pairs}
        copy = shutil.copytree(finished_once.run_dir, tmp_path / "copy")
        with sqlite3.connect(copy / "ledger.sqlite3") as ledger:
            ledger.execute("UPDATE jobs SET eval_mean = NULL")
        ledger.close()
        without = {(one.what, one.figure) for one in compare(finished_once.run_dir, copy).pairs}
        assert ("balancer", "evaluation") in figures
        assert without == {one for one in figures if one[1] != "evaluation"}

    def test_jobs_that_have_not_finished_are_not_compared(self, tmp_path: Path, finished_once: Experiment) -> None:
        copy = shutil.copytree(finished_once.run_dir, tmp_path / "copy")
        with sqlite3.connect(copy / "ledger.sqlite3") as ledger:
            ledger.execute("UPDATE jobs SET state = 'FAILED', cause = 'error'")
        ledger.close()
        with pytest.raises(UsageError, match=r"nothing that is finished\. Names of finished jobs"):
            compare(finished_once.run_dir, copy)


def test_a_benchmark_is_not_compared_with_an_experiment(finished_once: Experiment, tmp_path: Path) -> None:
    bench.write(tmp_path / "bench", measurements("pinned", 1))
    done = commands.invoke("compare", tmp_path / "bench", finished_once.run_dir, cwd=tmp_path)
    assert done.returncode == 2
    assert "is a benchmark" in done.stderr
    assert f"{finished_once.run_dir} is an experiment" in done.stderr
