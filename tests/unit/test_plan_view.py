"""What ``run --dry-run`` shows of a plan."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor_helpers import make_job

from orchestrator.experiment.dry_run import DryRun, Prospect
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import Forecast, JobSource
from orchestrator.terminal import plan_view


class Draw(JobSource):
    noun = "draw"


def test_the_forecast_of_a_source_that_lets_declared_jobs_go_on_is_below_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = make_job("quick")
    experiment = Experiment(
        name="t",
        max_parallel=None,
        order="as-listed",
        jobs=(job,),
        job_source=Draw(),
        source="t.toml",
        base=Path(),
    )
    backend = SimpleNamespace(slots=SimpleNamespace(lanes=1), facts=dict)
    plan: Any = SimpleNamespace(
        jobs=[job],
        backend=backend,
        machine=SimpleNamespace(cpus=()),
        warnings=(),
        restriction="",
        choices=(),
    )
    dry = DryRun(
        plan=plan,
        prospects={job.job_id: Prospect(state=None, action="start")},
        forecast=Forecast(lines=["one of two is drawn each hour"]),
    )
    plan_view.show(experiment, dry, Path("run"))
    shown = capsys.readouterr().out
    assert shown.index(job.job_id) < shown.index("one of two is drawn each hour")
