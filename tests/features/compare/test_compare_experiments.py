"""Comparison of trained experiments."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import command_helpers as commands
import measurement_helpers as bench
import pytest
from command_helpers import Experiment
from measurement_helpers import measurements
from report_helpers import Trained, make_run_dir

from orchestrator.core.errors import UsageError
from orchestrator.features.compare import chosen_jobs
from orchestrator.features.compare.chosen_jobs import Chooser
from orchestrator.features.compare.comparison import (
    Comparison,
    Pair,
    all_remarks,
    compare_with_first,
)
from orchestrator.features.compare.declared_settings import Difference


def compare(run_a: Path, run_b: Path) -> Comparison:
    return compare_with_first([run_a, run_b])[0]


def pair(found: Comparison, what: str, figure: str) -> Pair:
    (one,) = (one for one in found.pairs if (one.what, one.figure) == (what, figure))
    return one


class TestExperiments:
    def test_jobs_are_compared_over_their_seeds(self, finished_once: Experiment) -> None:
        found = compare(finished_once.run_dir, finished_once.run_dir)
        assert found.kind == "experiment"
        one = pair(found, "hopper", "env_steps/s")
        assert one.ratio is not None
        assert (one.ratio.value, one.ratio.low, one.a.n) == (1, None, 1)
        evaluated = pair(found, "balancer", "evaluation")
        assert evaluated.a == evaluated.b

    def test_returns_of_training_are_not_compared_with_evaluations(
        self, tmp_path: Path, finished_once: Experiment
    ) -> None:
        figures = {
            (one.what, one.figure)
            for one in compare(finished_once.run_dir, finished_once.run_dir).pairs
        }
        copy = shutil.copytree(finished_once.run_dir, tmp_path / "copy")
        with sqlite3.connect(copy / "ledger.sqlite3") as ledger:
            ledger.execute("UPDATE jobs SET eval_mean = NULL")
        ledger.close()
        without = {(one.what, one.figure) for one in compare(finished_once.run_dir, copy).pairs}
        assert ("balancer", "evaluation") in figures
        assert without == {one for one in figures if one[1] != "evaluation"}

    def test_jobs_that_have_not_finished_are_not_compared(
        self, tmp_path: Path, finished_once: Experiment
    ) -> None:
        copy = shutil.copytree(finished_once.run_dir, tmp_path / "copy")
        with sqlite3.connect(copy / "ledger.sqlite3") as ledger:
            ledger.execute("UPDATE jobs SET state = 'FAILED', cause = 'error'")
        ledger.close()
        with pytest.raises(UsageError):
            compare(finished_once.run_dir, copy)


@pytest.fixture
def runs(tmp_path: Path, finished_once: Experiment) -> list[Path]:
    """Three copies of an experiment; in the second all jobs, in the third hopper alone, were
    trained otherwise."""
    copies = [shutil.copytree(finished_once.run_dir, tmp_path / name) for name in ("a", "b", "c")]
    changes = [
        (
            copies[1],
            "spec = json_set(spec, '$.total_timesteps', 40000, '$.hyperparameters.n_steps', 512)",
            "%",
        ),
        (
            copies[2],
            "spec = json_set(spec, '$.task_options', json('{\"speed\": 2}')), robot_hash = 'ffff'",
            "hopper%",
        ),
    ]
    for copy, change, job_ids in changes:
        with contextlib.closing(sqlite3.connect(copy / "ledger.sqlite3")) as ledger, ledger:
            ledger.execute(f"UPDATE declared SET {change} WHERE job_id LIKE ?", (job_ids,))
    return copies


class TestSettings:
    def test_those_of_all_jobs_are_told_once_and_others_with_the_jobs(
        self, runs: list[Path]
    ) -> None:
        assert list(compare(runs[0], runs[1]).settings) == [
            Difference("ppo.n_steps", "64", "512"),
            Difference("total_timesteps", "512", "40000"),
        ]
        (robot, option) = compare(runs[0], runs[2]).settings
        assert (robot.what, robot.b) == ("robot_hash (hopper)", "ffff")
        assert option == Difference("task_options.speed (hopper)", "–", "2")

    def test_a_default_that_is_written_is_no_difference(self, runs: list[Path]) -> None:
        with contextlib.closing(sqlite3.connect(runs[1] / "ledger.sqlite3")) as ledger, ledger:
            ledger.execute(
                "UPDATE declared SET spec = json_set(spec, '$.hyperparameters.gamma', 0.99)"
            )
        assert "ppo.gamma" not in {one.what for one in compare(runs[0], runs[1]).settings}

    def test_more_than_two_are_compared_with_the_first(
        self, runs: list[Path], tmp_path: Path
    ) -> None:
        shown = commands.invoke("compare", *runs, cwd=tmp_path).stdout
        assert "total_timesteps: 512 → 40000 → 512\n" in shown
        facts = json.loads(commands.invoke("compare", *runs, "--json", cwd=tmp_path).stdout)
        assert [one["b"] for one in facts["comparisons"]] == [str(runs[1]), str(runs[2])]
        two = json.loads(commands.invoke("compare", *runs[:2], "--json", cwd=tmp_path).stdout)
        assert two["settings"][1] == {"what": "total_timesteps", "a": "512", "b": "40000"}

    def test_the_page_has_the_learning_curves_of_all_over_each_other(
        self, runs: list[Path], tmp_path: Path
    ) -> None:
        shown = commands.invoke("compare", *runs, "--output", "page.html", cwd=tmp_path)
        assert "page.html" in shown.stdout
        page = (
            (tmp_path / "page.html").read_text().replace("<wbr>", "")
        )  # where long names may break
        assert "total_timesteps" in page
        figure = page.split("data:image/svg+xml;base64,", 1)[1].split('"', 1)[0]
        panels = base64.b64decode(figure).decode()
        assert all(
            text in panels
            for text in (">hopper<", ">balancer<", *(f"{letter}: " for letter in "ABC"))
        )


def of_distances(case: str, *distances: float, **others: Any) -> list[Trained]:
    """One job for each seed."""
    return [
        Trained(case=case, seed=seed, measures={"distance_m": distance}, **others)
        for seed, distance in enumerate(distances)
    ]


class TestBy:
    def test_jobs_are_compared_by_a_measure(self, tmp_path: Path) -> None:
        a = make_run_dir(tmp_path / "a", of_distances("ant", 1.0, 1.2, 1.1)).root
        b = make_run_dir(tmp_path / "b", of_distances("ant", 2.0, 2.4, 2.2)).root
        (found,) = compare_with_first([a, b], "distance_m")
        (one,) = found.pairs
        assert (one.what, one.figure) == ("ant", "distance_m")
        assert (one.a.value, one.b.value) == pytest.approx((1.1, 2.2))
        assert one.less_is_better is None, "nothing says whether more is better"
        shown = commands.succeed("compare", a, b, "--by", "10 * distance_m", cwd=tmp_path).stdout
        assert "10 * distance_m" in shown
        assert "env_steps/s" not in shown

    def test_a_run_without_such_a_measure_is_refused(self, tmp_path: Path) -> None:
        a = make_run_dir(tmp_path / "a", of_distances("ant", 1.0)).root
        b = make_run_dir(tmp_path / "b", [Trained(case="ant")]).root
        with pytest.raises(UsageError, match="distance_m"):
            compare_with_first([a, b], "distance_m")


class TestRemarks:
    def test_that_values_were_not_reached_alike(self, tmp_path: Path) -> None:
        parent = of_distances("parent", 1.0)
        a = make_run_dir(
            tmp_path / "a", [*parent, *of_distances("ant", 1.0), *of_distances("bee", 1.0)]
        ).root
        jobs = [*of_distances("ant", 1.0, init="job:parent-s0"), *of_distances("bee", 1.0)]
        b = make_run_dir(tmp_path / "b", [*parent, *jobs]).root
        (remark,) = compare(a, b).remarks
        assert remark == (
            "The values of ant were not reached alike, so a difference may be one of training:"
            f" {a}: 10,240 env_steps from nothing;"
            f" {b}: 10,240 env_steps after 10,240 of the policy that it started from."
        )
        assert remark in commands.succeed("compare", a, b, "--json", cwd=tmp_path).stdout
        shown = commands.succeed("compare", a, b, "--output", "page.html", cwd=tmp_path).stdout
        assert "were not reached alike" in " ".join(shown.split())
        assert "were not reached alike" in (tmp_path / "page.html").read_text()

    def test_that_returns_are_of_other_tasks(self, runs: list[Path]) -> None:
        (remark,) = [one for one in compare(runs[0], runs[2]).remarks if "what earns it" in one]
        assert "ep_rew_mean is a return, and what earns it may differ with task_options.s" in remark
        assert not any("what earns it" in one for one in compare(*runs[:2]).remarks)

    def test_a_seed_without_a_value_says_nothing_of_how_values_were_reached(
        self, tmp_path: Path
    ) -> None:
        jobs = of_distances("ant", 1.0, 2.0)
        longer = Trained(case="ant", seed=2, iterations=9)
        a = make_run_dir(tmp_path / "a", jobs).root
        b = make_run_dir(tmp_path / "b", [*jobs, longer]).root
        (found,) = compare_with_first([a, b], "distance_m")
        assert found.remarks == []
        assert any("reached alike" in remark for remark in compare(a, b).remarks)

    def test_each_of_several_is_said_once(self, tmp_path: Path) -> None:
        lengths = {"a": 5, "b": 9, "c": 9}
        runs = [
            make_run_dir(tmp_path / name, of_distances("ant", 1.0, iterations=length)).root
            for name, length in lengths.items()
        ]
        found = compare_with_first(runs)
        assert [len(one.remarks) for one in found] == [1, 1]
        assert len(all_remarks([*found, *found])) == 2


class TestTrials:
    """Jobs of searches, whose equal numbers may be other points."""

    @pytest.fixture(autouse=True)
    def searches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All run directories are searches."""
        chooser = Chooser(noun="search", makes_jobs=True)
        monkeypatch.setattr(chosen_jobs, "chooser", lambda *_, **__: chooser)

    def run_dir(self, root: Path, *lengths: float) -> Path:
        """A search with one trial for each length."""
        trials = [
            one
            for number, length in enumerate(lengths, 1)
            for one in of_distances(f"t{number:05d}", 1.0, point={"params.length": length})
        ]
        return make_run_dir(root, [*of_distances("start", 1.0), *trials]).root

    def test_equal_numbers_with_other_points_are_left_out(self, tmp_path: Path) -> None:
        a = self.run_dir(tmp_path / "a", 1.0, 1.5)
        b = self.run_dir(tmp_path / "b", 1.0, 2.0)
        found = compare(a, b)
        assert {one.what for one in found.pairs} == {"start", "t00001"}
        assert found.other_trials == ["t00002"]

    def test_jobs_that_nobody_has_numbered_are_compared_whatever_a_matrix_varies(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runs = [self.run_dir(tmp_path / "a", 1.0), self.run_dir(tmp_path / "b", 2.0)]
        monkeypatch.setattr(chosen_jobs, "chooser", lambda *_, **__: Chooser())
        found = compare(*runs)
        assert {one.what for one in found.pairs} == {"start", "t00001"}
        assert found.other_trials == []

    def test_searches_without_a_point_in_common_are_refused(self, tmp_path: Path) -> None:
        trials = {
            name: [
                one
                for number in (1, 2)
                for one in of_distances(f"t0000{number}", 1.0, point={"ppo.gamma": gamma})
            ]
            for name, gamma in (("a", 0.9), ("b", 0.99))
        }
        runs = [make_run_dir(tmp_path / name, jobs).root for name, jobs in trials.items()]
        with pytest.raises(UsageError, match="t00001"):
            compare(*runs)


def test_a_benchmark_is_not_compared_with_an_experiment(
    finished_once: Experiment, tmp_path: Path
) -> None:
    bench.write(tmp_path / "bench", measurements("pinned", 1))
    done = commands.invoke("compare", tmp_path / "bench", finished_once.run_dir, cwd=tmp_path)
    assert done.returncode == 2
