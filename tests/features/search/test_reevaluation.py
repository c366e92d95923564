"""``reevaluate`` of a search: what the best come to from a declared start, on fresh seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from damaged_search_helpers import damage
from jobfile_helpers import HOPPER
from searcher_helpers import examine_no_trials
from trial_helpers import Told, point_of, search_run

from orchestrator import Search
from orchestrator.analysis import two_groups
from orchestrator.core.errors import SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import (
    begun_search,
    live_section,
    ranking,
    ranking_remarks,
    report_data,
    report_page,
)
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import Experiment, from_mapping
from orchestrator.ledger import Ledger
from orchestrator.report.document import Table

SPACE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


def searched(
    place: Path, reevaluate: Any, settings: Mapping[str, Any] | None = None, **search: Any
) -> Experiment:
    table = {"space": SPACE, "trials": 20, "sampler": "random", "reevaluate": reevaluate, **search}
    job = {**HOPPER, "task": "forward", "total_timesteps": 100_000, "seeds": [0, 1]}
    job |= settings or {}
    data = {"name": "test", "jobs": [job], "search": table}
    return from_mapping(data, source="search.toml", base=place)


def test_a_number_and_a_table_say_what_is_trained_again(place: Path) -> None:
    plain = declaration_of(searched(place, 3)).search
    assert plain == declaration_of(searched(place, {"n": 3})).search
    table = {"n": 3, "seeds": 5, "total_timesteps": 300_000, "reference": True}
    experiment = searched(place, table)
    limits = declaration_of(experiment).limits(experiment)
    assert (limits.jobs, limits.env_steps) == (20 * 2 + 4 * 5, 40 * 100_000 + 20 * 300_000)
    (line,) = [
        text for text in declaration_of(experiment).lines(experiment) if "at the end" in text
    ]
    assert line == (
        "at the end the best 3 and the unchanged job are trained from nothing, "
        "with 5 fresh seeds and 300,000 env_steps each"
    )


BAD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("no number", {"seeds": 5}, {}, "search.reevaluate.n: missing"),
    ("a list of seeds", {"n": 2, "seeds": [1, 2]}, {}, "search.reevaluate.seeds: expected"),
    ("unknown key", {"n": 2, "sedes": 2}, {}, "search.reevaluate.sedes: unknown key; did you mean"),
    (
        "an estimate of trials that inherit",
        {"n": 2, "by": "estimate"},
        {"start": "nearest"},
        "search.reevaluate.by: trials that begin with policies of others have no estimates",
    ),
    (
        "an estimate of several objectives",
        {"n": 2, "by": "estimate"},
        {"sampler": "nsga2", "objective": ["eval_mean", "wall_s"]},
        "search.reevaluate.by: several objectives have no estimates",
    ),
    ("no such choice", {"n": 2, "by": "luck"}, {}, "search.reevaluate.by: expected"),
    ("too large a number", 10**13, {}, "search.reevaluate: expected a whole number from 0"),
    ("truth", True, {}, "search.reevaluate: expected a whole number from 0"),
    ("no table", "all", {}, "search.reevaluate: expected"),
    ("a number below 0", -1, {}, "search.reevaluate: expected a whole number from 0 to"),
    (
        "a length that varies",
        {"n": 2, "total_timesteps": 200_000},
        {"space": {"total_timesteps": {"low": 50_000, "high": 100_000}}},
        "search.reevaluate.total_timesteps: the space varies total_timesteps",
    ),
]


@pytest.mark.parametrize(
    ("reevaluate", "search"),
    [
        ({"by": "estimate"}, {"start": "nearest"}),
        ({"reference": True}, {"space": {"ppo.batch_size": {"choices": [32, 64]}}}),
    ],
)
def test_what_is_trained_at_the_end_is_checked_only_where_something_is(
    place: Path, reevaluate: dict[str, Any], search: dict[str, Any]
) -> None:
    too_large = {"ppo": {"n_steps": 64, "batch_size": 100_000}}
    settings = too_large if "space" in search else {}
    searched(place, {"n": 0, **reevaluate}, settings, **search)
    with pytest.raises(SpecError, match=r"search\.reevaluate"):
        searched(place, {"n": 1, **reevaluate}, settings, **search)
    if settings:
        with pytest.raises(SpecError, match=r"search\.start: the unchanged job cannot be trained"):
            searched(place, {"n": 0, **reevaluate}, settings, start="reference", **search)


@pytest.mark.parametrize(
    ("reevaluate", "search", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_a_bad_reevaluation_is_named(
    place: Path, reevaluate: Any, search: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, reevaluate, **search)
    assert message in str(error.value)


@pytest.mark.usefixtures("undrawn")
def test_the_values_that_are_shown_are_those_of_the_fresh_seeds(tmp_path: Path) -> None:
    told = [
        Told(values=[3.0]),
        Told(values=[9.0]),
        Told(values=[8.0]),
        Told(values=[2.0], reevaluates=1, point=point_of(1)),
        Told(values=[5.0], reevaluates=2, point=point_of(2)),
        Told(values=[4.0], role="reference"),
    ]
    paths = search_run(tmp_path / "run", told)
    shown = json.loads(commands.succeed("best", paths.root, "--json", cwd=tmp_path).stdout)
    rows = [(row["trial"], row["role"], row["values"]["eval_mean"]) for row in shown]
    assert rows == [(2, None, 5.0), (5, "reference", 4.0), (1, None, 2.0), (0, None, 3.0)]
    assert [row["in_search"] for row in shown[:2]] == [{"eval_mean": 8.0}, None]
    text = commands.succeed("best", paths.root, cwd=tmp_path).stdout
    assert "reference" in text
    assert "in the search" in " ".join(text.split())
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
    assert [trial.number for trial in reader.best()] == [2, 1, 0]
    assert len(reader.asked) == 3
    status = " ".join(commands.invoke("status", paths.root, cwd=tmp_path).stdout.split())
    assert "search: 3 of 6 trials" in status
    assert "trained again: 5.0 (trial 2), the unchanged job 4.0" in status
    facts = reported(paths)
    assert facts["best"] == [2, 1, 0]
    (headline,) = (one for one in report_page.headlines(facts) if one.label == "best")
    assert (headline.value, headline.note) == (
        "5",
        "eval_mean of trial 2, trained again with fresh seeds",
    )
    (_, _, best) = report_page.sections(facts, {})[0].parts
    assert isinstance(best, Table)
    assert [row[0].text for row in best.rows] == ["trial 2", "trial 1", "trial 0"]
    assert report_page.LUCKY not in best.caption
    leaders = live_section.of(reader, "", reader.best(), {}).tables[-1]
    names = [column.name for column in leaders.columns[:3]]
    assert names == ["trial", "eval_mean", "eval_mean in the search"]
    assert [row[:3] for row in leaders.rows] == [
        ["2", 5.0, 8.0],
        ["1", 2.0, 9.0],
        ["0", 3.0, None],
    ]


def test_the_mean_over_fresh_seeds_has_an_interval_whose_method_is_named(tmp_path: Path) -> None:
    """Of 2, 4 and 6: 4 ± 4.303 · 2 / √3."""
    told = [
        Told(values=[9.0]),
        Told(values=[8.0]),
        Told(values=[4.0], reevaluates=0, point=point_of(0)),
    ]
    paths = search_run(tmp_path / "run", told, seeds=[0, 1, 2], objective="ep_rew_mean")
    set_returns(paths, [f"hopper-t00002-s{seed}" for seed in range(3)], [2.0, 4.0, 6.0])
    first, second = ranking.read(paths.root, 2).facts()
    mean = first["fresh_means"]["ep_rew_mean"]
    interval = mean["interval"]
    assert mean["value"] == 4.0
    assert (interval["low"], interval["high"]) == pytest.approx((-0.968, 8.968), abs=1e-3)
    assert interval["method"] == "Student's t"
    assert second["fresh_means"] is None, "its seeds have chosen it"
    shown = " ".join(commands.succeed("best", paths.root, cwd=tmp_path).stdout.split())
    assert "4.00 [-0.968, 8.97]" in shown
    assert "by Student's t" in shown
    commands.succeed("report", paths.root, cwd=tmp_path)
    page = html.unescape((paths.root / "report/index.html").read_text())
    assert "4 (mean 4 [-0.968, 8.97])" in page
    jobs = "hopper-t00000-s0 and 2 more; from nothing: hopper-t00002-s0 and 2 more"
    assert jobs in page, "those of its fresh seeds, too"
    assert "by Student's t" in page
    assert first_reported(paths)["fresh_means"] == [mean]
    search = Search(
        xml=commands.HOPPER,
        space={"ppo.gamma": {"low": 0.9, "high": 0.99}},
        trials=2,
        run_dir=paths.root,
    )
    in_python, other = search.best()
    assert [dataclasses.asdict(one) for one in in_python.fresh_means if one] == [mean]
    assert other.fresh_means == ()
    for table in ("declared", "jobs"):
        damage(paths, f"DELETE FROM {table} WHERE job_id = 'hopper-t00002-s1'")
    assert ranking.read(paths.root, 1).facts()[0]["fresh_means"] == {"ep_rew_mean": None}
    assert first_reported(paths)["fresh_means"] == [None], "a seed of it is not known"


def test_the_best_is_compared_with_the_unchanged_job_over_the_same_fresh_seeds(
    tmp_path: Path,
) -> None:
    """2, 4, 6 and 8 against 1, 2, 3 and 4; of the 70 ways to deal them 14 differ as much."""
    told = [
        Told(values=[9.0]),
        Told(values=[4.0], reevaluates=0, point=point_of(0)),
        Told(values=[2.0], role="reference"),
    ]
    paths = search_run(tmp_path / "run", told, seeds=[0, 1, 2, 3], objective="ep_rew_mean")
    seeds_of_reference = ranking.read(paths.root, 2).facts()[1]["jobs"]
    set_returns(paths, [f"hopper-t00001-s{seed}" for seed in range(4)], [2.0, 4.0, 6.0, 8.0])
    set_returns(paths, seeds_of_reference, [1.0, 2.0, 3.0, 4.0])
    expected = dataclasses.asdict(two_groups.compare([[1, 2, 3, 4]], [[2, 4, 6, 8]]))
    assert (expected["difference"]["value"], expected["ratio"]["value"]) == (2.5, 2.0)
    shown, reference = ranking.read(paths.root, 2).facts()
    assert shown["against_reference"] == {"ep_rew_mean": expected}
    assert reference["against_reference"] is None
    sentence = (
        "By ep_rew_mean, trial 0 is higher than the unchanged job by 2.50 [-1.51, 6.51] (Welch's t), "
        "× 2.00 [0.67, 5.99] (Fieller's); p = 0.2 (permutation test): it may be chance."
    )
    text = " ".join(commands.succeed("best", paths.root, "-n", 1, cwd=tmp_path).stdout.split())
    assert sentence in text, "also where the unchanged job is not among those that are shown"
    commands.succeed("report", paths.root, cwd=tmp_path)
    assert sentence in html.unescape((paths.root / "report/index.html").read_text())
    search = Search(
        xml=commands.HOPPER,
        space={"ppo.gamma": {"low": 0.9, "high": 0.99}},
        trials=1,
        run_dir=paths.root,
    )
    (in_python,) = search.best(1)
    assert [dataclasses.asdict(one) for one in in_python.against_reference if one] == [expected]
    for table in ("declared", "jobs"):
        damage(paths, f"DELETE FROM {table} WHERE job_id = '{seeds_of_reference[1]}'")
    (shown,) = ranking.read(paths.root, 1).facts()
    assert shown["against_reference"] == {"ep_rew_mean": None}, "a seed of it is not known"


def test_nothing_is_said_of_the_unchanged_job_while_it_trains_and_all_of_one_that_is_the_best(
    tmp_path: Path,
) -> None:
    again = [Told(values=[9.0]), Told(values=[4.0], reevaluates=0, point=point_of(0))]
    training = search_run(
        tmp_path / "training",
        [*again, Told(role="reference")],
        seeds=[0, 1],
        objective="ep_rew_mean",
        is_over=False,
    )
    (shown, *_) = ranking.read(training.root, 1).facts()
    assert shown["against_reference"] == {"ep_rew_mean": None}, "though it has returns already"
    better = search_run(
        tmp_path / "better",
        [*again, Told(values=[9.0], role="reference")],
        seeds=[0, 1],
        objective="ep_rew_mean",
    )
    found = ranking.read(better.root, 1)
    assert [trial.role for trial in found.shown] == ["reference"]
    (sentence,) = [one for one in ranking_remarks.of(found) if "unchanged job" in one]
    assert sentence.startswith("By ep_rew_mean, trial 0 is as high as the unchanged job")


def set_returns(paths: RunPaths, jobs: Sequence[str], returns: Sequence[float]) -> None:
    pairs = zip(jobs, returns, strict=True)
    with contextlib.closing(Ledger.open(paths.ledger)) as ledger:
        ledger.set_progress([(job_id, 1000, one, None, None) for job_id, one in pairs])


def test_a_trial_may_have_the_figure_only_where_it_was_trained_again(tmp_path: Path) -> None:
    """As a cost of transport of a robot that did not come forward in the search."""
    told = [
        Told(values=[9.0]),
        Told(values=[8.0]),
        Told(values=[4.0], reevaluates=0, point=point_of(0)),
    ]
    paths = search_run(tmp_path / "run", told)
    damage(paths, "UPDATE jobs SET ep_rew_mean = NULL WHERE job_id = 'hopper-t00000-s0'")
    by = ("best", paths.root, "--by", "ep_rew_mean")
    shown = json.loads(commands.succeed(*by, "--json", cwd=tmp_path).stdout)
    assert [(row["trial"], row["in_search"]) for row in shown] == [(0, None), (1, None)]
    (line,) = [
        line
        for line in commands.succeed(*by, cwd=tmp_path).stdout.splitlines()
        if "hopper-t00002-s0" in line
    ]
    assert "–" in line, "it has no value in the search"


def test_a_figure_that_only_the_trained_again_have_is_ranked_by(tmp_path: Path) -> None:
    told = [Told(values=[9.0]), Told(values=[4.0], reevaluates=0, point=point_of(0))]
    paths = search_run(tmp_path / "run", told)
    damage(paths, "UPDATE jobs SET ep_rew_mean = NULL WHERE job_id = 'hopper-t00000-s0'")
    (only,) = ranking.read(paths.root, 5, "ep_rew_mean").facts()
    assert (only["trial"], only["values"], only["in_search"]) == (0, {"ep_rew_mean": 1.0}, None)


@pytest.mark.usefixtures("undrawn")
def test_of_several_objectives_pages_have_two_fronts(tmp_path: Path) -> None:
    told = [
        Told(values=(3.0, 5.0)),
        Told(values=(2.0, 6.0)),
        Told(values=(5.0, 4.0)),
        Told(values=(1.0, 7.0), reevaluates=0, point=point_of(0)),
        Told(values=(0.5, 6.0), reevaluates=2, point=point_of(2)),
    ]
    objectives = ["eval_mean", "env_steps"]
    paths = search_run(tmp_path / "run", told, sampler="nsga2", objective=objectives)
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
    table = live_section.of(reader, "", reader.best(), {}).tables[-1]
    assert table.title == "Pareto fronts: of those trained again, and of the others"
    assert [row[:3] for row in table.rows] == [["0", 1.0, 7.0], ["1", 2.0, 6.0]]
    facts = reported(paths)
    (shown,) = [one for one in report_page.sections(facts, {})[0].parts if isinstance(one, Table)]
    assert [row[0].text for row in shown.rows] == ["trial 0", "trial 1"], (
        "2 came to less by fresh seeds"
    )
    assert set(facts["front"]) == {2, 0, 1}


def test_jobs_on_fresh_seeds_are_none_that_a_search_has_chosen_by_their_values(
    tmp_path: Path,
) -> None:
    told = [
        Told(values=[3.0]),
        Told(values=[2.0], reevaluates=0, role="race"),
        Told(values=[2.0], reevaluates=0, point=point_of(0)),
        Told(values=[1.0], role="reference"),
    ]
    paths = search_run(tmp_path / "run", told, race=3)
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        source = begun_search.of(paths, ledger)
        assert source is not None
        assert source.chosen_jobs() == {"hopper-t00000-s0", "hopper-t00000-s1000"}


def reported(paths: RunPaths) -> report_data.SearchFacts:
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        facts = report_data.gather(paths, ledger)
    assert facts is not None
    return facts


def first_reported(paths: RunPaths) -> report_data.ReportedTrial:
    """Trial 0 in ``report.json``."""
    return reported(paths)["trials"][0]


def specs(run_dir: Path, job_ids: list[str]) -> dict[str, WorkerSpec]:
    return {
        job_id: WorkerSpec.from_json((run_dir / "jobs" / job_id / "spec.json").read_text())
        for job_id in job_ids
    }


@pytest.mark.nightly
def test_the_best_and_the_unchanged_job_are_trained_again_with_the_same_fresh_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(
        f'name = "search"\nmax_parallel = 2\n{commands.TINY}\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{commands.HOPPER}"\ntask = "forward"\n'
        'resources.start = "exec"\n'
        '[search]\nsampler = "random"\ntrials = 4\nobjective = "ep_rew_mean"\n'
        "reevaluate = { n = 2, seeds = 3, total_timesteps = 1024, reference = true }\n"
        '[search.space]\n"ppo.learning_rate" = { low = 1e-4, high = 1e-2, log = true }\n'
        "[search.scheduler]\nmin_env_steps = 128\n"
    )
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    rows: Mapping[str, Any] = commands.summary(tmp_path / "run")
    again = [job_id for job_id in rows if int(job_id.rpartition("-s")[2]) >= 1000]
    assert len(again) == 9
    found = specs(tmp_path / "run", again)
    assert {spec.seed for spec in found.values()} == {1000, 1001, 1002}
    assert {(spec.total_timesteps, spec.pause_at, spec.init) for spec in found.values()} == {
        (1024, None, None)
    }
    reference = [spec for job_id, spec in found.items() if "reference" in job_id]
    assert len(reference) == 3
    assert all("learning_rate" not in spec.hyperparameters for spec in reference)

    # The same again does nothing, and another protocol is trained in place of the first.
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert len(commands.summary(tmp_path / "run")) == len(rows)
    jobs.write_text(jobs.read_text().replace("total_timesteps = 1024", "total_timesteps = 512"))
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert len(commands.summary(tmp_path / "run")) == len(rows) + 9
    reader = TrialReader.of(RunPaths(tmp_path / "run"))
    assert reader is not None
    with run_directory.opened_ledger(reader.paths, read_only=True) as ledger:
        reader.update(ledger)
    assert len(reader.repeated) == 2
    assert {
        trial.protocol["total_timesteps"] for trial in reader.repeated.values() if trial.protocol
    } == {512}


@pytest.mark.nightly
def test_one_of_the_best_that_does_not_fit_to_the_length_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    examine_no_trials(monkeypatch)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(
        f'name = "search"\nmax_parallel = 2\n[[jobs]]\nname = "hopper"\nxml = "{commands.HOPPER}"\n'
        'task = "forward"\nalgo = "sac"\ntotal_timesteps = 1000\nresources.start = "exec"\n'
        '[search]\nsampler = "random"\ntrials = 2\nobjective = "ep_rew_mean"\n'
        "reevaluate = { n = 2, total_timesteps = 500, reference = true }\n"
        'initial = [{ "sac.learning_starts" = 700 }, { "sac.learning_starts" = 200 }]\n'
        '[search.space]\n"sac.learning_starts" = { low = 100, high = 700 }\n'
    )
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    paths = RunPaths(tmp_path / "run")
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
    unfit, fit, reference = (one for one in reader.history.trials if not one.is_of_search)
    assert "learning_starts" in unfit.why
    assert not unfit.jobs
    assert unfit.values is None
    assert fit.values
    assert reference.values
    commands.succeed("report", paths.root, cwd=tmp_path)
    commands.succeed("best", paths.root, cwd=tmp_path)
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
    assert len(reader.history.trials) == 5, "and it is not tried again"


@pytest.mark.nightly
def test_those_with_the_best_estimates_are_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One value had luck: none of its neighbours is good."""
    examine_no_trials(monkeypatch)
    value = "(lambda gamma: 0.5 if 0.3 <= gamma < 0.35 else -10 * (gamma - 0.8) ** 2)"
    read = '(json.loads((job / "spec.json").read_text())["hyperparameters"]["gamma"])}'
    worker = commands.INSTANT.replace("1.0}", value + read)
    monkeypatch.setattr(commands, "INSTANT", worker)
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(
        f'name = "search"\nmax_parallel = 2\n{commands.TINY}\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{commands.HOPPER}"\ntask = "forward"\n'
        '[search]\nsampler = "sobol"\ntrials = 16\norder = "fixed"\nobjective = "ep_rew_mean"\n'
        'reevaluate = { n = 1, by = "estimate" }\n'
        '[search.space]\n"ppo.gamma" = { low = 0.1, high = 0.9 }\n'
        '[search.scheduler]\nkind = "none"\n'
    )
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    rows: Mapping[str, Any] = commands.summary(tmp_path / "run")
    lucky = max(rows.values(), key=lambda row: float(row["ep_rew_mean"]))
    assert float(lucky["ep_rew_mean"]) == 0.5
    (again,) = [job_id for job_id in rows if int(job_id.rpartition("-s")[2]) >= 1000]
    (spec,) = specs(tmp_path / "run", [again]).values()
    assert 0.7 < spec.hyperparameters["gamma"] < 0.9
