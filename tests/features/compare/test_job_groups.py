"""`compare RUN --jobs A,B`: jobs of one run directory over their seeds."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path

import command_helpers as commands
import pytest
from report_helpers import Trained, make_run_dir

from orchestrator.core.errors import UsageError
from orchestrator.experiment.begun_source import BegunSource, Direction
from orchestrator.features.compare import chosen_jobs
from orchestrator.features.compare.api import compare
from orchestrator.features.compare.declared_settings import Difference
from orchestrator.features.compare.job_groups import JobComparison


def trained(case: str, distances: dict[int, float], **others: object) -> list[Trained]:
    """One job for each seed."""
    return [
        Trained(
            case=case,
            seed=seed,
            measures={"distance_m": distance},
            evaluated=100 * distance,
            **others,
        )  # type: ignore[arg-type]
        for seed, distance in distances.items()
    ]


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


PARENT = seeds(1.0, 1.2, 0.9, 1.1, 1.0)
CHILD = seeds(2.0, 2.4, 1.9, 2.2, 2.1)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A parent and a child with five seeds each, and two algorithms over three bodies."""
    jobs = [*trained("parent", PARENT), *trained("child", CHILD), *trained("lone", seeds(3.0))]
    for place, body in enumerate(("ant", "crab", "dog")):
        jobs += trained(f"{body}-ppo", seeds(1.0 + place, 1.1 + place, 0.9 + place))
        jobs += trained(f"{body}-sac", seeds(1.5 + place, 1.6 + 1.1 * place, 1.4 + place))
    jobs += trained("emu-sac", seeds(9.0, 9.0))
    return make_run_dir(tmp_path / "run", jobs).root


def compared(run_dir: Path, *names: str, by: str | None = "distance_m") -> JobComparison:
    return compare(run_dir, names, by)


def test_a_child_is_compared_with_its_parent_by_a_measure(run_dir: Path) -> None:
    found = compared(run_dir, "parent", "child")
    (other,) = found.others
    assert other.figures.difference.value == pytest.approx(1.08)
    assert other.figures.difference.low is not None
    assert other.figures.difference.low > 0.8
    assert other.figures.probability_higher == 1.0
    assert other.figures.p is not None
    assert other.figures.p < 0.001
    assert found.remarks == []


def test_it_is_compared_by_the_return_where_no_figure_is_named(run_dir: Path) -> None:
    found = compared(run_dir, "parent", "child", by=None)
    assert found.by == "eval_mean"
    assert found.groups[0].mean.value == pytest.approx(104)


class Search(BegunSource):
    noun = "search"
    makes_jobs = True

    def __init__(self, jobs: Collection[str] | None = None, **objectives: Direction) -> None:
        self._jobs = jobs
        self._objectives = objectives

    def chosen_jobs(self) -> Collection[str] | None:
        return self._jobs

    @property
    def objectives(self) -> Mapping[str, Direction]:
        return self._objectives


def let_search(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    """Let ``search`` have made the jobs of all run directories."""
    monkeypatch.setattr(chosen_jobs, "begun_source", lambda *_: search)


def test_jobs_of_a_search_are_compared_by_its_objective_where_no_figure_is_named(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_search(monkeypatch, Search(distance_m="minimize"))
    found = compared(run_dir, "parent", "child", by=None)
    assert found.by == "distance_m"
    let_search(monkeypatch, Search(distance_m="maximize", eval_mean="minimize"))
    assert compared(run_dir, "parent", "child", by=None).by == "distance_m"
    assert compared(run_dir, "parent", "child", by="eval_mean").by == "eval_mean"


def test_values_of_jobs_that_were_chosen_by_them_are_said_to_be_too_good(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_search(monkeypatch, Search())
    assert len(compared(run_dir, "parent", "child").remarks) == 1
    let_search(monkeypatch, Search(jobs=["child-s0"]))
    assert len(compared(run_dir, "parent", "child").remarks) == 1
    let_search(monkeypatch, Search(jobs=["lone-s0"]))
    assert compared(run_dir, "parent", "child").remarks == [], "their seeds are fresh"


def test_an_expression_of_figures_is_compared(run_dir: Path) -> None:
    found = compared(run_dir, "parent", "child", by="eval_mean - 10 * distance_m")
    assert found.by == "eval_mean - 10 * distance_m"
    assert found.groups[0].mean.value == pytest.approx(90 * 1.04)


def test_of_patterns_those_bodies_belong_together_for_which_the_star_is_the_same(
    run_dir: Path,
) -> None:
    found = compared(run_dir, "*-ppo", "*-sac")
    (other,) = found.others
    assert found.bodies == ["ant", "crab", "dog"]
    assert [group.mean.value for group in found.groups] == pytest.approx([2.0, 2.533], abs=1e-3)
    assert any("emu" in remark for remark in found.remarks), "it is left out"
    assert other.figures.difference.value == pytest.approx(0.533, abs=1e-3)
    assert other.figures.difference.n == 3, "each body counts once"
    assert other.figures.difference.low is not None


def test_with_one_seed_it_says_that_nothing_is_known_of_chance(run_dir: Path) -> None:
    found = compared(run_dir, "lone", "lone*")
    (other,) = found.others
    assert other.figures.p is None
    assert other.figures.difference.low is None


def test_a_job_that_started_from_the_policy_of_another_one_is_said_to_have(tmp_path: Path) -> None:
    jobs = [
        *trained("parent", seeds(1.0, 1.1)),
        *trained("child", seeds(2.0, 2.1), init="job:parent-s0"),
    ]
    found = compared(make_run_dir(tmp_path / "run", jobs).root, "parent", "child")
    (protocol,) = found.groups[1].protocols
    assert (protocol.env_steps, protocol.earlier_env_steps) == (5 * 2048, 5 * 2048)
    assert Difference("init", "–", "job:parent-s0") in found.others[0].settings


def test_jobs_that_have_not_succeeded_are_left_out_and_counted(tmp_path: Path) -> None:
    jobs = [*trained("a", seeds(1.0, 2.0)), *trained("b", seeds(1.0, 2.0, 3.0))]
    jobs[-1] = Trained(case="b", seed=2, state="FAILED", measures={"distance_m": 9.0})
    found = compared(make_run_dir(tmp_path / "run", jobs).root, "a", "b")
    assert list(found.groups[1].values.values()) == [[1.0, 2.0]]
    assert found.groups[1].missing == 1


def test_an_id_with_a_seed_is_the_job_with_all_of_its_seeds(run_dir: Path) -> None:
    found = compared(run_dir, "parent-s1", "child-s0")
    assert found == compared(run_dir, "parent", "child")
    assert [group.name for group in found.groups] == ["parent", "child"]


@pytest.mark.parametrize(
    ("names", "by"),
    [
        (["parent"], None),
        (["parent", "parent-s3"], None),
        (["parent", "chlid"], None),
        (["parent", "child"], "distance"),
        (["parent", "child"], "eval_mean /"),
        (["*-ppo", "lon*"], None),
    ],
)
def test_what_cannot_be_compared_is_refused(
    run_dir: Path, names: list[str], by: str | None
) -> None:
    with pytest.raises(UsageError):
        compare(run_dir, names, by)


def change_specs(root: Path, change: str, job_ids: str) -> None:
    """:param change: what SQLite's ``json_set`` sets in the specs of jobs like ``job_ids``."""
    with contextlib.closing(sqlite3.connect(root / "ledger.sqlite3")) as ledger, ledger:
        ledger.execute(
            f"UPDATE declared SET spec = json_set(spec, {change}) WHERE job_id LIKE ?", (job_ids,)
        )


def test_seeds_that_were_trained_otherwise_than_the_first_are_named(run_dir: Path) -> None:
    change_specs(run_dir, "'$.hyperparameters.n_steps', 512", "child-s3")
    change_specs(run_dir, "'$.hyperparameters.n_steps', 512", "child-s4")
    (remark,) = compared(run_dir, "parent", "child").remarks
    assert remark.startswith("child: seeds 3, 4 ")


def test_returns_of_jobs_whose_reward_may_differ_are_said_to_be_such(run_dir: Path) -> None:
    change_specs(run_dir, "'$.task_options', json('{\"speed\": 2}')", "child%")
    (remark,) = compared(run_dir, "parent", "child", by=None).remarks
    assert "task_options.speed" in remark
    assert compared(run_dir, "parent", "child").remarks == [], "a measure means the same"


class TestCommand:
    def test_it_says_by_how_much_and_whether_that_is_chance(self, run_dir: Path) -> None:
        arguments = ("compare", run_dir, "--jobs", "parent,child", "--by", "distance_m")
        shown = commands.succeed(*arguments, cwd=run_dir.parent).stdout
        assert "child is higher than parent by 1.08 [" in shown
        assert ": hardly chance" in shown

    def test_json_has_all_of_it(self, run_dir: Path) -> None:
        arguments = ("compare", run_dir, "--jobs", "child,parent", "--json")
        facts = json.loads(commands.succeed(*arguments, cwd=run_dir.parent).stdout)
        assert set(facts["others"][0]["figures"]["difference"]) == {"value", "low", "high", "n"}
        assert facts["groups"][0]["values"][""] == pytest.approx([200, 240, 190, 220, 210])

    @pytest.mark.parametrize("arguments", [["--by", "distance_m"], ["elsewhere", "--jobs", "a,b"]])
    def test_options_that_do_not_fit_are_refused(self, run_dir: Path, arguments: list[str]) -> None:
        refused = commands.invoke("compare", run_dir, *arguments, cwd=run_dir.parent)
        assert refused.returncode == 2
