"""What ``run --dry-run`` shows of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import make_job, make_machine

from orchestrator.client.dry_run import DryRun
from orchestrator.core.job import Pending
from orchestrator.examination.preflight import JobVerdict
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import Forecast, JobSource
from orchestrator.keys.feature_tables import FeatureTable, read_tables
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import TomlTable
from orchestrator.server.decide import Fate
from orchestrator.terminal import plan_view


def declared(monkeypatch: pytest.MonkeyPatch, **given: dict[str, Any]) -> Experiment:
    """An experiment whose job file has these tables of the feature ``hips``, read as empty ones."""
    tables = {
        name: FeatureTable(name=name, about="x", model=TomlTable, **of)
        for name, of in given.items()
    }
    monkeypatch.setattr(plan_view, "FEATURE_TABLES", tables)
    meanings = read_tables(tables, {}, Problems())
    return Experiment(
        name="t",
        max_parallel=None,
        order="as-listed",
        jobs=(),
        source="t.toml",
        base=Path(),
        tables=meanings,
    )


def facts(experiment: Experiment, **forecast: Any) -> dict[str, Any]:
    """Those of a dry run on a machine without CPUs."""
    dry = DryRun(
        machine=make_machine(0),
        executor={"nodes": 2},
        jobs_at_once=1,
        jobs=[],
        verdicts={},
        warnings=["it is hot"],
        forecast=Forecast(facts=forecast),
    )
    return plan_view.facts(experiment, dry, Path("run"))


def test_facts_of_features_stand_beside_those_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = {"lines": lambda meaning: [meaning], "facts": lambda meaning: meaning}
    experiment = declared(monkeypatch, gait={"read": lambda *_: "stiff", **shown})
    assert plan_view._lines_of_tables(experiment) == ["stiff"]
    found = facts(experiment, draw=3)
    assert (found["warnings"], found["nodes"], found["name"]) == (["it is hot"], 2, "t")
    assert (found["gait"], found["draw"]) == ("stiff", 3)


class Draw(JobSource):
    noun = "draw"


def test_the_forecast_of_a_source_that_lets_declared_jobs_go_on_is_below_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = make_job("quick", spec={"total_timesteps": 6_000, "eval_episodes": 4})
    experiment = Experiment(
        name="t",
        max_parallel=None,
        order="as-listed",
        jobs=(job,),
        job_source=Draw(),
        source="t.toml",
        base=Path(),
    )
    dry = DryRun(
        machine=make_machine(1),
        executor={},
        jobs_at_once=1,
        jobs=[job],
        verdicts={job.job_id: JobVerdict(episode_steps=500)},
        fates={job.job_id: Fate(what="enter", state=Pending())},
        forecast=Forecast(lines=["one of two is drawn each hour"]),
    )
    plan_view.show(experiment, dry, Path("run"))
    shown = capsys.readouterr().out
    assert shown.index(job.job_id) < shown.index("one of two is drawn each hour")
