"""`compare RUN --jobs A,B`: jobs of one run directory over their seeds."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from report_helpers import Trained, make_run_dir

import orchestrator
from orchestrator.core.errors import LedgerError, UsageError
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
        jobs += trained(f"{body}-sac", seeds(1.5 + place, 1.6 + place, 1.4 + place))
    jobs += trained("emu-sac", seeds(9.0, 9.0))
    return make_run_dir(tmp_path / "run", jobs).root


def compared(run_dir: Path, *names: str, by: str | None = "distance_m") -> JobComparison:
    return compare(run_dir, names, by)


def test_a_child_is_compared_with_its_parent_by_a_measure(run_dir: Path) -> None:
    found = compared(run_dir, "parent", "child")
    (other,) = found.others
    assert other.figures.difference.value == pytest.approx(1.08)
    assert other.figures.difference.interval is not None
    assert other.figures.difference.interval.low > 0.8
    assert other.figures.ratio is not None
    assert other.figures.ratio.value == pytest.approx(2.12 / 1.04)
    assert other.figures.probability_higher.value == 1.0
    assert other.figures.p == pytest.approx(2 / 252)
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
    assert "The search minimizes distance_m: that is compared." in found.remarks
    let_search(monkeypatch, Search(distance_m="maximize", eval_mean="minimize"))
    found = compared(run_dir, "parent", "child", by=None)
    assert found.by == "distance_m"
    (remark,) = [remark for remark in found.remarks if "maximizes" in remark]
    assert "maximizes distance_m, minimizes eval_mean: the first is compared; by names" in remark
    assert compared(run_dir, "parent", "child", by="eval_mean").by == "eval_mean"


def test_values_of_jobs_that_were_chosen_by_them_are_said_to_be_too_good(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_search(monkeypatch, Search())
    (remark,) = compared(run_dir, "parent", "child").remarks
    assert remark.startswith(f"The search of {run_dir} chose jobs by their values, so those")
    assert "race=True" in remark
    let_search(monkeypatch, Search(jobs=["child-s0"]))
    assert len(compared(run_dir, "parent", "child").remarks) == 1
    let_search(monkeypatch, Search(jobs=["lone-s0"]))
    assert compared(run_dir, "parent", "child").remarks == [], "their seeds are fresh"


def test_what_a_search_is_made_for_is_read_only_where_no_figure_is_named(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Damaged(Search):
        @property
        def objectives(self) -> Mapping[str, Direction]:
            raise LedgerError("the declaration cannot be read")

    let_search(monkeypatch, Damaged())
    assert compared(run_dir, "parent", "child").by == "distance_m"
    with pytest.raises(LedgerError, match="declaration cannot be read"):
        compared(run_dir, "parent", "child", by=None)


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
    assert [group.mean.value for group in found.groups] == pytest.approx([2.0, 2.5])
    assert "Not all have emu: left out." in found.remarks
    assert other.figures.difference.value == pytest.approx(0.5)
    assert other.figures.difference.interval is not None
    assert other.figures.difference.interval.method == "bootstrap by strata"


def test_several_groups_are_compared_with_the_first(run_dir: Path) -> None:
    found = compared(run_dir, "child", "parent", "lone")
    assert [other.name for other in found.others] == ["parent", "lone"]
    assert found.others[0].figures.difference.value < 0 < found.others[1].figures.difference.value
    assert (
        "Each of 2 jobs is compared with child by itself. If none of them differed, at least one would"
        " still have p ≤ 0.05 with a probability of up to 10%; p ≤ 0.025 is hardly chance all the same."
    ) in found.remarks


def test_with_one_seed_it_says_that_nothing_is_known_of_chance(run_dir: Path) -> None:
    found = compared(run_dir, "lone", "lone*")
    (other,) = found.others
    assert other.figures.p is None
    assert other.figures.difference.interval is None
    assert any("one seed of a job there is no interval" in remark for remark in found.remarks)


def test_a_job_that_started_from_the_policy_of_another_one_is_said_to_have(tmp_path: Path) -> None:
    jobs = [
        *trained("parent", seeds(1.0, 1.1)),
        *trained("child", seeds(2.0, 2.1), init="job:parent-s0"),
    ]
    found = compared(make_run_dir(tmp_path / "run", jobs).root, "parent", "child")
    (protocol,) = found.groups[1].protocols
    assert (protocol.env_steps, protocol.earlier_env_steps) == (5 * 2048, 5 * 2048)
    assert any("not reached alike" in remark for remark in found.remarks)
    assert Difference("init", "–", "job:parent-s0") in found.others[0].settings


@pytest.mark.parametrize(
    ("first", "said"), [(None, "were not reached alike"), ("/there/a.zip", "may not have been")]
)
def test_a_policy_of_an_unknown_number_of_env_steps_is_not_taken_for_none(
    first: str | None, said: str, tmp_path: Path
) -> None:
    jobs = [
        *trained("a", seeds(1.0, 1.1), init=first),
        *trained("b", seeds(2.0, 2.1), init="/there/b.zip"),
    ]
    found = compared(make_run_dir(tmp_path / "run", jobs).root, "a", "b")
    (protocol,) = found.groups[1].protocols
    assert protocol.earlier_env_steps is None
    assert found.facts()["groups"][1]["protocols"][0]["earlier_env_steps"] is None
    assert "after an unknown number of the policy" in str(protocol)
    (remark,) = [remark for remark in found.remarks if "reached alike" in remark]
    assert said in remark


def test_jobs_that_have_not_succeeded_are_left_out_and_counted(tmp_path: Path) -> None:
    jobs = [*trained("a", seeds(1.0, 2.0)), *trained("b", seeds(1.0, 2.0, 3.0))]
    jobs[-1] = Trained(case="b", seed=2, state="FAILED", measures={"distance_m": 9.0})
    found = compared(make_run_dir(tmp_path / "run", jobs).root, "a", "b")
    assert list(found.groups[1].values.values()) == [[1.0, 2.0]]
    assert found.remarks[0] == "b: 1 job without a value left out."


def test_an_id_with_a_seed_is_the_job_with_all_of_its_seeds(run_dir: Path) -> None:
    found = compared(run_dir, "parent-s1", "child-s0")
    assert found == compared(run_dir, "parent", "child")
    assert [group.name for group in found.groups] == ["parent", "child"]


def test_a_missing_ratio_and_one_without_an_interval_are_explained(tmp_path: Path) -> None:
    jobs = [
        *trained("a", seeds(1.0, 9.0)),
        *trained("b", seeds(4.0, 5.0)),
        *trained("below", seeds(-1.0, 2.0)),
    ]
    found = compared(make_run_dir(tmp_path / "run", jobs).root, "a", "b", "below")
    no_interval, none_at_all = (other.figures.ratio for other in found.others)
    assert no_interval is not None
    assert no_interval.interval is None
    assert none_at_all is None
    said = " ".join(found.remarks)
    assert "No ratio of below to a: not all values of both are above 0." in said
    assert "The ratio of b to a has no interval: the mean of a is not told from 0" in said


def test_bodies_that_are_left_out_are_in_no_remark(tmp_path: Path) -> None:
    jobs = [
        *trained("a-x", seeds(1.0, 2.0)),
        *trained("b-x", seeds(1.0, 2.0)),
        *trained("a-y", seeds(3.0, 4.0), init="/there/y.zip"),
        Trained(case="a-y", seed=2, state="FAILED", measures={}),
    ]
    found = compared(make_run_dir(tmp_path / "run", jobs).root, "a-*", "b-*")
    assert found.bodies == ["x"]
    assert found.groups[0].missing == 0
    assert not any(
        "reached alike" in remark or "without a value" in remark for remark in found.remarks
    )


@pytest.mark.parametrize(
    ("names", "by", "said"),
    [
        (["parent"], None, "jobs: expected two or more names of jobs, found 1"),
        (["parent", "parent"], None, "parent is named twice"),
        (
            ["parent-s0", "parent-s3"],
            None,
            "parent is named twice: parent-s0, parent-s3 mean the job with all of its seeds",
        ),
        (["parent-s0", "parent-s0"], None, "parent is named twice: parent-s0 means the job with"),
        (["parent", "parent-s3"], None, "parent is named twice: parent, parent-s3 mean the job"),
        (["parent", "chlid"], None, "chlid is no job, .* did you mean child?"),
        (
            ["parent", "x*"],
            None,
            r"x\* is no job, nor a pattern with one \* that fits any; jobs here",
        ),
        (["parent", "child"], "distance", "no job has distance; did you mean distance_m?"),
        (
            ["parent", "child"],
            "jumps",
            "no job has jumps; there are distance_m, ep_rew_mean, eval_mean",
        ),
        (["parent", "child"], "env_stops", "did you mean env_steps?"),
        (["parent", "child"], "eval_mean / dist_m", "no job has dist_m; did you mean dis"),
        (["parent", "child"], "eval_mean /", "by=.eval_mean /.: is no expression; expected names"),
        (
            ["parent", "child"],
            "eval_mean / (distance_m - distance_m)",
            r"parent: none of its 5 jobs \(SUCCEEDED\) has a value of .* is 0, and nothing can be",
        ),
        (["*-ppo", "lon*"], None, r"no body in common: \*-ppo has ant, crab, dog; lon\* has e"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_what_can(
    run_dir: Path, names: list[str], by: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
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
    assert remark.startswith("child: seeds 3, 4 had other settings or another robot than its first")


def test_settings_are_those_of_the_first_seed_that_has_a_value(tmp_path: Path) -> None:
    jobs = [
        Trained(case="child", seed=3, measures={"distance_m": 2.0}),
        Trained(case="child", seed=1, measures={"distance_m": 2.0}),
        Trained(case="child", seed=0, state="FAILED"),
        *trained("parent", seeds(1.0, 1.1)),
    ]
    root = make_run_dir(tmp_path / "run", jobs).root
    for seed, steps in ((0, 128), (1, 256), (3, 512)):
        change_specs(root, f"'$.hyperparameters.n_steps', {steps}", f"child-s{seed}")
    found = compared(root, "parent", "child")
    (steps,) = [one for one in found.others[0].settings if one.what == "ppo.n_steps"]
    assert steps.b == "256"
    assert any(remark.startswith("child: seed 3 had other settings") for remark in found.remarks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("'$.task', 'stand'", "may differ with task: "),
        ("'$.task_options', json('{\"speed\": 2}')", r"may differ with task_options.speed: "),
        ("'$.task_options', json('{\"observe\": [\"qpos\"]}')", None),
    ],
)
def test_returns_of_jobs_whose_reward_may_differ_are_said_to_be_such(
    run_dir: Path, change: str, said: str | None
) -> None:
    change_specs(run_dir, change, "child%")
    remarks = compared(run_dir, "parent", "child", by=None).remarks
    assert [said is not None and said in remark for remark in remarks] == [True] * bool(said)
    assert compared(run_dir, "parent", "child").remarks == [], "a measure means the same"


def test_what_is_observed_pays_nothing_for_some_bodies_either(run_dir: Path) -> None:
    change_specs(run_dir, "'$.task_options', json('{\"observe\": [\"qpos\"]}')", "ant-sac%")
    found = compared(run_dir, "*-ppo", "*-sac", by="eval_mean")
    assert "task_options.observe (ant)" in [one.what for one in found.others[0].settings]
    assert not any("what earns it" in remark for remark in found.remarks)


def test_bodies_that_were_each_trained_alike_are_comparable(tmp_path: Path) -> None:
    jobs = [
        *trained("x-ppo", seeds(1.0, 1.1)),
        *trained("x-sac", seeds(1.0, 1.1)),
        *trained("y-ppo", seeds(1.0, 1.1), iterations=9),
        *trained("y-sac", seeds(1.0, 1.1), iterations=9),
    ]
    root = make_run_dir(tmp_path / "alike", jobs).root
    assert not any("reached alike" in remark for remark in compared(root, "*-ppo", "*-sac").remarks)
    jobs[-1] = replace(jobs[-1], iterations=8)
    root = make_run_dir(tmp_path / "unlike", jobs).root
    (remark,) = [one for one in compared(root, "*-ppo", "*-sac").remarks if "reached alike" in one]
    assert remark.startswith("The values of y were not reached alike")
    assert f"*-sac: {9 * 2048:,} env_steps from nothing, or {8 * 2048:,} env_steps" in remark


def test_columns_of_what_a_program_gives_are_in_expressions(tmp_path: Path) -> None:
    jobs = [
        replace(one, point={"meta.mass": 2.0})
        for one in (*trained("a", seeds(1.0, 1.2)), *trained("b", seeds(3.0, 3.2)))
    ]
    found = compared(
        make_run_dir(tmp_path / "run", jobs).root, "a", "b", by="distance_m / meta.mass"
    )
    assert [group.mean.value for group in found.groups] == pytest.approx([0.55, 1.55])


@pytest.mark.parametrize(
    ("names", "by", "said"),
    [
        (["parent", 3], None, r"jobs=\['parent', 3\]: expected names of jobs, not 3"),
        (["parent", "child"], ["distance_m"], r"by=\['distance_m'\]: expected a measure, a column"),
    ],
)
def test_what_is_no_text_is_refused_in_python(
    run_dir: Path, names: list[Any], by: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        compare(run_dir, names, by)


def test_names_in_one_text_are_refused_in_python(run_dir: Path) -> None:
    with pytest.raises(
        UsageError, match=r"jobs='a,b': expected a list of names, such as \['a', 'b'\]"
    ):
        orchestrator.compare(run_dir, "a,b")


def test_without_an_evaluation_of_all_the_returns_of_training_are_compared(tmp_path: Path) -> None:
    jobs = [*trained("a", seeds(1.0, 1.1)), Trained(case="b", seed=0), Trained(case="b", seed=1)]
    found = compared(make_run_dir(tmp_path / "run", jobs).root, "a", "b", by=None)
    assert found.by == "ep_rew_mean"
    assert found.groups[0].mean.value != pytest.approx(105)


def test_a_group_in_which_no_job_has_the_figure_is_refused(tmp_path: Path) -> None:
    jobs = [*trained("a", seeds(1.0)), Trained(case="b", seed=0, state="FAILED")]
    root = make_run_dir(tmp_path / "run", jobs).root
    with pytest.raises(
        UsageError, match=r"b: none of its 1 job \(FAILED\) has a value of distance_m"
    ):
        compare(root, ["a", "b"], "distance_m")


class TestCommand:
    def test_it_says_by_how_much_and_whether_that_is_chance(self, run_dir: Path) -> None:
        arguments = ("compare", run_dir, "--jobs", "parent,child", "--by", "distance_m")
        shown = commands.succeed(*arguments, cwd=run_dir.parent).stdout
        assert "child is higher than parent by 1.08 [" in shown
        assert "(Welch's t), × 2.04 [" in shown
        assert "Intervals of 95 %: mean by Student's t; interquartile mean by smoothed" in shown
        assert "p = 0.0079 (permutation test): hardly chance." in shown

    def test_json_has_all_of_it(self, run_dir: Path) -> None:
        arguments = ("compare", run_dir, "--jobs", "child,parent", "--json")
        facts = json.loads(commands.succeed(*arguments, cwd=run_dir.parent).stdout)
        assert facts["others"][0]["figures"]["difference"]["interval"]["method"] == "Welch's t"
        assert facts["groups"][0]["values"][""] == pytest.approx([200, 240, 190, 220, 210])

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--by", "distance_m"], "expected two to 8 run directories, found 1; `compare "),
            (
                ["elsewhere", "--race"],
                "--race is between two jobs of one run directory, found 2 run",
            ),
            (["elsewhere", "--jobs", "a,b"], "--jobs compares jobs of one run directory, found 2"),
            (["--jobs", "a,b", "--output", "x.html"], "--output and --jobs do not go together"),
        ],
    )
    def test_options_that_do_not_fit_are_refused(
        self, run_dir: Path, arguments: list[str], said: str
    ) -> None:
        refused = commands.invoke("compare", run_dir, *arguments, cwd=run_dir.parent)
        assert refused.returncode == 2
        assert said in refused.stderr
