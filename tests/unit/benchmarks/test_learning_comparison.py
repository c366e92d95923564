"""The comparison of two learners: tests that keep their promises, and a command that reads finished
experiments."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobfile_helpers import schema_validator
from supervisor_helpers import make_job

from benchmarks import learning, learning_runs, permutation_tests, published
from benchmarks.permutation_tests import (
    Pair,
    energy_distance,
    holm,
    interval,
    mean_difference,
    p_value,
)
from orchestrator.core.errors import UsageError
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import Attempt, AttemptOutcome, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.jobfile import load
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob

pytestmark = pytest.mark.nightly

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
ROBOTS = {"HalfCheetah-v5": 1200.0, "Hopper-v5": 1500.0, "Walker2d-v5": 900.0}


def pair(a: Sequence[float], b: Sequence[float]) -> Pair:
    return Pair(np.array(a, dtype=float), np.array(b, dtype=float))


def random_pair(rng: np.random.Generator, seeds: int = 5, shift: float = 0.0) -> Pair:
    return Pair(rng.normal(1000, 50, seeds), rng.normal(1000 + 50 * shift, 50, seeds))


def by_brute_force(one: Pair) -> float:
    """The share of all ways of dealing out in which the means differ as much as observed."""
    everything = [*one.a, *one.b]
    observed = abs(np.mean(one.b) - np.mean(one.a))
    met = []
    for places in itertools.combinations(range(len(everything)), len(one.a)):
        a = [everything[place] for place in places]
        b = [value for place, value in enumerate(everything) if place not in places]
        met.append(abs(np.mean(b) - np.mean(a)) >= observed - 1e-9)
    return float(np.mean(met))


class TestOfOneRobot:
    @pytest.mark.parametrize("sizes", [(5, 5), (3, 4), (6, 2)])
    def test_is_exact(self, sizes: tuple[int, int]) -> None:
        rng = np.random.default_rng(sum(sizes))
        for _ in range(20):
            one = Pair(rng.normal(size=sizes[0]), rng.normal(0.7, 2, size=sizes[1]))
            assert p_value([one]) == pytest.approx(by_brute_force(one), abs=1e-12)

    def test_of_more_assignments_than_are_tried_so_many_are_drawn(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = random_pair(np.random.default_rng(1), shift=1.0)
        exact = p_value([one])
        monkeypatch.setattr(permutation_tests, "MOST_SPLITS", 251)
        monkeypatch.setattr(permutation_tests, "weights", permutation_tests.weights.__wrapped__)
        assert len(permutation_tests.weights(5, 5)) == 1 + permutation_tests.DRAWS
        assert p_value([one]) == pytest.approx(exact, abs=0.003)

    def test_five_seeds_that_are_all_better_give_the_smallest_p_value_there_is(self) -> None:
        assert p_value([pair([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])]) == pytest.approx(2 / 252)

    def test_equal_returns_differ_in_nothing(self) -> None:
        same = pair([3, 1, 2, 5, 4], [5, 4, 3, 2, 1])
        assert (p_value([same]), p_value([same], energy_distance)) == (1.0, 1.0)
        assert p_value([pair([7, 7, 7], [7, 7, 7])]) == 1.0
        assert pair([7, 7, 7], [7, 7, 7]).difference == 0.0

    def test_does_not_care_for_units(self) -> None:
        rng = np.random.default_rng(3)
        one = random_pair(rng)
        other = Pair(1000 * one.a - 5e6, 1000 * one.b - 5e6)
        assert p_value([one]) == p_value([other])
        assert one.difference == pytest.approx(other.difference)

    def test_energy_distance_is_the_textbook_one(self) -> None:
        rng = np.random.default_rng(1)
        a, b = rng.normal(size=4), rng.normal(size=6)

        def mean_distance(x: np.ndarray, y: np.ndarray) -> float:
            return float(np.mean([abs(one - other) for one in x for other in y]))

        wanted = 2 * mean_distance(a, b) - mean_distance(a, a) - mean_distance(b, b)
        together = np.concatenate([a, b])
        found = Pair(a, b).table(energy_distance)[0]
        assert found == pytest.approx(wanted / mean_distance(together, together))


class TestOverRobots:
    def test_agrees_with_going_through_all_ways_of_two_robots(self) -> None:
        rng = np.random.default_rng(5)
        pairs = [random_pair(rng, 4, 0.8), random_pair(rng, 4, 0.4)]
        first, second = (one.table(mean_difference) for one in pairs)
        sums = np.abs(first[:, None] + second[None, :])
        assert p_value(pairs) == pytest.approx((sums >= sums[0, 0] - 1e-9).mean(), abs=0.01)

    def test_finds_what_no_robot_shows_alone(self) -> None:
        pairs = [pair([1, 2, 3, 4, 5], [2.6, 3.7, 4.8, 5.9, 3.1])] * 5
        assert p_value(pairs[:1]) > 0.25
        assert p_value(pairs) < 0.02

    def test_a_robot_with_large_returns_has_no_more_say(self) -> None:
        rng = np.random.default_rng(2)
        pairs = [random_pair(rng) for _ in range(3)]
        enlarged = [Pair(100 * pairs[0].a, 100 * pairs[0].b), *pairs[1:]]
        assert p_value(pairs) == p_value(enlarged)

    def test_the_same_returns_give_the_same_p_value(self) -> None:
        rng = np.random.default_rng(4)
        pairs = [random_pair(rng) for _ in range(5)]
        assert p_value(pairs) == p_value(pairs)
        assert interval(pairs) == interval(pairs)


class TestPromises:
    """Shares of 2,000 simulated experiments: chance moves one of 5 % by 0.5 %."""

    @pytest.mark.parametrize("robots", [1, 5])
    @pytest.mark.parametrize("statistic", [mean_difference, energy_distance])
    def test_false_alarms_are_as_rare_as_promised(
        self, robots: int, statistic: permutation_tests.Statistic
    ) -> None:
        returns = np.random.default_rng(1).normal(size=(robots, 2_000, 10))
        p = permutation_tests.p_values([statistic(one, 5) for one in returns], draws=500)
        assert 0.03 <= (p <= 0.05).mean() <= 0.06

    def test_three_seeds_can_find_nothing(self) -> None:
        assert interval([pair([1, 2, 3], [101, 102, 103])]) == (-math.inf, math.inf)

    @pytest.mark.parametrize("robots", [1, pytest.param(3, marks=pytest.mark.nightly)])
    def test_the_interval_holds_the_true_difference_as_often_as_promised(
        self, robots: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(permutation_tests, "p_values", quick(permutation_tests.p_values))
        rng, held, tries = np.random.default_rng(6), 0, 150
        for _ in range(tries):
            pairs = [random_pair(rng, shift=0.5) for _ in range(robots)]
            # The difference that was drawn, in the units of the interval: each robot's own spread.
            low, high = interval(pairs)
            held += low <= 0.5 * 50 / np.mean([one.spread for one in pairs]) <= high
        assert 0.91 <= held / tries <= 0.99

    def test_the_interval_is_what_the_test_does_not_reject(self) -> None:
        one = random_pair(np.random.default_rng(7), shift=1.0)
        low, high = interval([one])
        assert low < one.difference < high
        for edge, outwards in ((low, -1), (high, 1)):
            assert (
                p_value([one.without(edge - outwards * 0.01)])
                > 0.05
                >= p_value([one.without(edge + outwards * 0.01)])
            )

    def test_holms_correction_is_the_published_one(self) -> None:
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert holm([0.9, 0.6]) == [1.0, 1.0]
        assert holm([0.04]) == [0.04]


def quick(p_values: Any) -> Any:
    return lambda tables, **_: p_values(tables, draws=1_000)


# -- run directories


def write_run(
    root: Path,
    learner: str,
    returns: Mapping[str, Sequence[float]],
    *,
    unfinished: Sequence[str] = (),
    evaluated: bool = True,
    **spec: Any,
) -> Path:
    """A run directory in which every robot has been trained with one seed a return, unless named
    ``unfinished``."""
    root.mkdir()
    paths = RunPaths(root)
    ledger = Ledger.create(paths.ledger)
    jobs = {
        f"{robot}-s{seed}": (
            make_job(f"{robot}-s{seed}", spec={"name": robot, "seed": seed, **spec}),
            final,
        )
        for robot, finals in returns.items()
        for seed, final in enumerate(finals)
    }
    ledger.put_jobs(
        DeclaredJob(position=place, job=job, robot_hash="abc")
        for place, (job, _) in enumerate(jobs.values())
    )
    for job_id, (_, final) in jobs.items():
        if job_id in unfinished:
            continue
        ledger.start_attempt(
            Attempt(
                job_id=job_id,
                number=0,
                cpus=(0,),
                gpus=(),
                pid=None,
                pid_start=None,
                started_at=1.8e9,
            ),
            queue_s=0.0,
        )
        record = ExitRecord(
            code=0,
            message="",
            env_steps=301_056,
            ep_rew_mean=final,
            eval_mean=1.2 * final if evaluated else None,
            learner=learner,
        )
        ledger.end_attempt(
            job_id,
            0,
            ended_at=1.8e9 + 9,
            wall_s=9.0,
            returncode=0,
            outcome=AttemptOutcome(cause=None),
            max_rss_mib=1.0,
            record=record,
        )
        ledger.set_state(job_id, Succeeded())
        progress = [f"{steps},{final * steps / 301_056}" for steps in range(2_048, 301_057, 2_048)]
        folder = paths.job(job_id).progress_csv
        folder.parent.mkdir(parents=True)
        folder.write_text("time/total_timesteps,rollout/ep_rew_mean\n" + "\n".join(progress) + "\n")
    ledger.commit()
    ledger.close()
    return root


def drawn(
    seed: int, shift: float = 0.0, robots: Mapping[str, float] = ROBOTS
) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {
        robot: (rng.normal(mean, 0.1 * mean, 5) + shift * 0.1 * mean).tolist()
        for robot, mean in robots.items()
    }


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return write_run(tmp_path / "sb3", "sb3", drawn(0)), write_run(
        tmp_path / "fast", "fast", drawn(1)
    )


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations with so few draws that they are fast; how exact they are is the claim of
    :class:`TestPromises`."""
    monkeypatch.setattr(permutation_tests, "p_values", quick(permutation_tests.p_values))


@pytest.mark.usefixtures("few_draws")
class TestCommand:
    def test_prints_a_line_a_robot_and_one_over_all_and_draws_the_figures(
        self, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert learning.main([*map(str, runs), "--output", str(tmp_path)]) == 0
        printed = capsys.readouterr().out
        trained, evaluated = printed.split("Mean deterministic return")
        for text in (trained, evaluated):
            lines = [line for line in text.splitlines() if line.startswith("| ")]
            assert [line.split(" | ")[0].strip("| *") for line in lines] == [
                "robot",
                *ROBOTS,
                "all 3",
            ]
        sb3 = drawn(0)["Hopper-v5"]
        assert f"| Hopper-v5 | {np.mean(sb3):,.0f} ± {np.std(sb3, ddof=1):,.0f} |" in trained
        assert (tmp_path / "learning-curves.png").read_bytes().startswith(b"\x89PNG")

    def test_a_worse_learner_is_found(self, runs: tuple[Path, Path], tmp_path: Path) -> None:
        worse = learning_runs.read(write_run(tmp_path / "worse", "fast", drawn(1, shift=-3.0)))
        sb3 = learning_runs.read(runs[0])
        line = next(
            line
            for line in learning.comparison(sb3, worse, list(ROBOTS), "final")
            if "**all 3**" in line
        )
        assert "**< 0.001**" in line
        assert "**−" in line

    def test_a_run_against_itself_differs_in_nothing(
        self, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert learning.main([str(runs[0]), str(runs[0])]) == 0
        printed = capsys.readouterr().out
        assert "| robot | sb3 (A) | sb3 (B) |" in printed
        assert printed.count("| 1.000 | 1.000 |") == 2 * len(ROBOTS)

    def test_what_is_not_finished_is_named_and_left_out(
        self, runs: tuple[Path, Path], tmp_path: Path
    ) -> None:
        missing = ["Hopper-v5-s3", *(f"Walker2d-v5-s{seed}" for seed in range(4))]
        half = write_run(tmp_path / "half", "fast", drawn(1), unfinished=missing)
        text = learning.report(learning_runs.read(runs[0]), learning_runs.read(half))
        assert "2 robots, sb3 against fast, at least 4 seeds each, 301,056 env_steps." in text
        assert "of fast, Hopper-v5-s3, Walker2d-v5-s0, Walker2d-v5-s1" in text
        assert "| Walker2d-v5" not in text

    def test_without_evaluation_there_is_the_training_alone(self, tmp_path: Path) -> None:
        sides = [
            learning_runs.read(write_run(tmp_path / name, name, drawn(0), evaluated=False))
            for name in ("sb3", "fast")
        ]
        text = learning.report(*sides)
        assert "Final return of training" in text
        assert "deterministic return" not in text

    def test_different_work_is_refused(self, runs: tuple[Path, Path], tmp_path: Path) -> None:
        other = write_run(tmp_path / "other", "fast", drawn(1), n_envs=8)
        with pytest.raises(
            UsageError, match=r"-s\d: n_envs is 1 in A and 8 in B; only the learner may differ"
        ):
            learning_runs.in_common(learning_runs.read(runs[0]), learning_runs.read(other))

    def test_what_cannot_be_compared_is_told_in_a_line(
        self, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        everything = [f"{robot}-s{seed}" for robot in ROBOTS for seed in range(5)]
        idle = write_run(tmp_path / "idle", "fast", drawn(1), unfinished=everything)
        others = write_run(tmp_path / "others", "fast", drawn(1, robots={"Ant-v5": 900.0}))
        for bad, said in (
            (idle, "no job has succeeded"),
            (others, "no robot has 2 finished"),
            (tmp_path, "not a run"),
        ):
            assert learning.main([str(runs[0]), str(bad)]) == 2
            assert said in capsys.readouterr().err

    @pytest.mark.nightly
    def test_published_results_stand_beside_ours(
        self, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ours = {"HalfCheetah-v5": 1500.0, "Hopper-v5": 2300.0, "Walker2d-v5": 9000.0}
        long = write_run(tmp_path / "long", "fast", drawn(2, robots=ours))
        given = [*map(str, runs), "--published", str(long), "--output", str(tmp_path)]
        assert learning.main(given) == 0
        printed = capsys.readouterr().out
        for source in (*published.RECIPE, *published.OTHERS):
            assert f"[{source.name}]({source.address})" in printed
        lines = printed.split("means of the same settings")[1].splitlines()
        verdicts = [line.split("|")[-2].strip() for line in lines if line.startswith("| ")]
        assert verdicts == ["within", "within", "above"]
        assert (tmp_path / "learning-published.png").read_bytes().startswith(b"\x89PNG")
        assert learning.main([*map(str, runs), "--published", str(runs[0])]) == 0

    def test_a_run_without_the_published_robots_is_refused(
        self, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        others = write_run(tmp_path / "others", "fast", drawn(1, robots={"Ant-v5": 900.0}))
        assert learning.main([*map(str, runs), "--published", str(others)]) == 2
        assert "no finished seed of HalfCheetah among Ant-v5" in capsys.readouterr().err


class TestSources:
    def test_every_source_says_where_its_numbers_are_and_what_they_are(self) -> None:
        for source in (*published.RECIPE, *published.OTHERS):
            assert source.address.startswith("https://")
            assert set(source.returns) <= set(published.ROBOTS)
            assert bool(source.differs) == (source in published.OTHERS)
            for one in source.returns.values():
                assert (one.low is None) == (one.high is None)
                assert one.low is None or one.high is None or one.low < one.mean < one.high

    def test_the_band_of_the_recipe_reaches_over_its_sources(self) -> None:
        low, high = published.band("Walker2d")
        assert (low, high) == pytest.approx((2287.95 - 571.78, 3312.32 + 429.87))
        assert published.means("Walker2d") == (2287.95, 3424.95)


class TestJobFiles:
    @pytest.mark.parametrize("name", ["learning", "published"])
    def test_load_and_fit_the_schema(self, name: str) -> None:
        path = BENCHMARKS / f"{name}.toml"
        schema_validator().validate(tomllib.loads(path.read_text()))
        jobs = load(path).jobs
        assert {job.spec.seed for job in jobs} == set(range(5))
        assert len(jobs) == {"learning": 25, "published": 15}[name]
