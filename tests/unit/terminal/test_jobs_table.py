"""The totals and the table of jobs, as far as there is room."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from orchestrator.analysis.job_columns import JobLine, activity, share
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.core.paths import RunPaths
from orchestrator.terminal import jobs_table
from orchestrator.terminal.jobs_table import JobsTable

ROW = {
    **{
        "state": "PENDING",
        "attempts": 0,
        "env_steps": 0,
        "total_timesteps": 1000,
        "env_steps_per_s": None,
    },
    **{
        "started_at": None,
        "ended_at": None,
        "wall_s": None,
        "ep_rew_mean_first": None,
        "ep_rew_mean": None,
    },
    **{"eval_mean": None, "node": None, "cpus": None, "ranks": 1, "message": None, "cause": None},
}


FAILED = {"state": "FAILED", "attempts": 1, "ended_at": 1.0}


RUNNING = {
    "state": "RUNNING",
    "attempts": 2,
    "env_steps": 250,
    "env_steps_per_s": 50.0,
    "cpus": [3],
    "started_at": 1.0,
}


def snapshot(**jobs: dict[str, object]) -> Snapshot:
    rows = [{**ROW, "job_id": job_id, **values} for job_id, values in jobs.items()]
    return Snapshot(paths=RunPaths(Path("run")), rows=rows, holder=None)  # type: ignore[arg-type]


def printed(shown: RenderableType, width: int) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(shown)
    return capture.get().splitlines()


def a_table(
    running: int, pending: int, ended: int, *, name: str = "job", **totals: Any
) -> JobsTable:
    def lines(kind: str, count: int, state: str, **values: Any) -> list[JobLine]:
        unknown = {"attempts": 0, "ranks": 1, "env_steps": 0, "total_timesteps": 100_000}
        return [
            {"job_id": f"{kind}-{name}-{number}", "state": state, **unknown, **values}
            for number in range(count)
        ]

    live = {
        "env_steps": 46_000,
        "env_steps_per_s": 1234.0,
        "ep_rew_mean": 123.4,
        "remaining_s": 75.0,
        "where": "3",
    }
    return JobsTable(
        elapsed_s=60.0,
        counts=Counter(RUNNING=running, PENDING=pending, SUCCEEDED=ended),
        running=lines(
            "live", running, "RUNNING", phase="training", cpu_share=0.98, attempts=2, **live
        ),
        next_up=lines("next", pending, "PENDING"),
        ended=lines("over", ended, "SUCCEEDED", attempts=1),
        steps_to_go=1000,
        env_steps_per_s=10.0,
        **totals,
    )


@pytest.mark.parametrize(
    ("jobs", "shown", "left"),
    [
        ((3, 0, 0), ["live"] * 3, ""),
        ((2, 22, 0), ["live"] * 2 + ["next"] * 16, "… 6 more: 6 pending"),
        (
            (2, 10, 12),
            ["live"] * 2 + ["next"] * 8 + ["over"] * 8,
            "… 6 more: 2 pending, 4 succeeded",
        ),
        ((2, 0, 22), ["live"] * 2 + ["over"] * 16, "… 6 more: 6 succeeded"),
        ((24, 3, 3), ["live"] * 18, "… 12 more: 3 pending, 6 running, 3 succeeded"),
    ],
)
def test_running_jobs_come_first_then_the_next_then_the_last_ended_and_the_rest_is_counted(
    jobs: tuple[int, int, int], shown: list[str], left: str
) -> None:
    lines = printed(jobs_table.render(a_table(*jobs), 80, 24), 80)
    assert [line[:4] for line in lines if re.match("live|next|over", line)] == shown
    assert [line for line in lines if line.startswith("…")] == [left] * bool(left)
    assert len(lines) <= 23
    if "over" in shown:
        latest = f"over-job-{jobs[2] - 1}"
        assert next(line for line in lines if line.startswith("over")).startswith(latest)


@pytest.mark.parametrize("height", [4, 8, 10, 24])
def test_the_screen_is_never_higher_than_the_terminal(height: int) -> None:
    lines = printed(jobs_table.render(a_table(2, 2, 2, waiting="No space. " * 15), 80, height), 80)
    assert len(lines) < max(height, 10)
    assert any(line.startswith("live-job-0") for line in lines)


def test_on_80_columns_stays_what_is_of_use_and_on_160_everything() -> None:
    narrow, wide = (
        printed(jobs_table.render(a_table(2, 22, 0, name="hopper-s0"), width, 24), width)
        for width in (80, 160)
    )
    assert max(map(len, narrow)) <= 80
    for name in ("job", "state", "return", "done", "env_steps/s", "ETA", "attempts", "CPU"):
        assert name in narrow[3].split()
    assert ("on" in narrow[3].split(), "on" in wide[3].split()) == (False, True)
    for name in ("evaluated", "time", "wait"):
        assert name not in wide[3].split(), "it has no value here"
    assert "live-hopper-s0-0" in narrow[4]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_table_of_ended_jobs_fits_and_keeps_the_returns(width: int) -> None:
    row = {
        **{
            "env_steps": 204_800,
            "total_timesteps": 204_800,
            "ep_rew_mean_first": 12.3,
            "ep_rew_mean": 1234.5,
        },
        **{"eval_mean": 1300.1, "env_steps_per_s": 4321.0, "wall_s": 3725.0, "attempts": 1},
    }
    states = {"hopper-s0": "SUCCEEDED", "a-name-" * 9 + "s0": "PAUSED", "脚-s0": "FAILED"}
    rows = snapshot(**{name: {**row, "state": state} for name, state in states.items()}).rows
    lines = printed(jobs_table.jobs_table(jobs_table.of_rows(rows), width), width)
    assert len(lines) == 1 + len(rows), "a row was wrapped"
    assert all("12.3 → 1,234.5" in line for line in lines[1:])
    assert all(state in line for state, line in zip(states.values(), lines[1:], strict=True))
    assert [name in lines[0] for name in ("ETA", "CPU", "wait")] == [False] * 3, "nothing runs"


def test_a_reading_of_the_files_as_a_screen() -> None:
    running = {**RUNNING, "ep_rew_mean_first": 1.5, "ep_rew_mean": 12.5}
    reading = snapshot(
        a=running, b=FAILED, c={"state": "PENDING"}, d={**running, "started_at": 0.5}
    )
    shown = jobs_table.of_snapshot(reading)
    last_launched, row = shown.running
    assert (last_launched["job_id"], row["job_id"]) == ("d", "a"), "in order of launch"
    assert [row[key] for key in ("remaining_s", "where", "attempts")] == [15.0, "3", 2]
    assert (activity(row), share(row)) == ("RUNNING", 0.25)
    assert (
        [line["job_id"] for line in shown.ended],
        [line["job_id"] for line in shown.next_up],
    ) == (
        ["b"],
        ["c"],
    )
    assert (shown.steps_to_go, shown.env_steps_per_s) == (2500, 100.0)
    reported = {"phase": "evaluating", "cpu_share": 0.5, "run_delay_share": 0.25, "ranks": 4}
    silent = {"phase": "training", "reported_at": time.time() - 45.0}
    reading = snapshot(
        a={**running, **reported}, b={**running, **silent}, c={"waiting": "No space."}
    )
    shown = jobs_table.of_snapshot(reading)
    assert [activity(line) for line in shown.running] == ["evaluating", "training, silent 0:45"]
    assert (shown.cores_busy, shown.waiting) == (2.0, "No space."), "rank 0 tells of itself"


def test_the_first_measure_of_a_task_has_a_column_where_all_jobs_share_it() -> None:
    done = {
        "state": "SUCCEEDED",
        "attempts": 1,
        "env_steps": 1000,
        "measures": {"distance_m": 1.234, "speed": 9.0},
    }
    (head, line, _) = printed(
        jobs_table.jobs_table(jobs_table.of_rows(snapshot(a=done, b={}).rows), 120), 120
    )
    assert "distance_m" in head
    assert " 1.234 " in line
    of_all = {**done, "measures": {"energy_j": 5.0, "mass_kg": 2.0}}
    (head, *_) = printed(
        jobs_table.jobs_table(jobs_table.of_rows(snapshot(a=done, b=of_all).rows), 120), 120
    )
    assert "distance_m" in head, "what every task measures is in no one's way"
    other = {**done, "measures": {"height_m": 1.0}}
    assert (
        "_m"
        not in printed(
            jobs_table.jobs_table(jobs_table.of_rows(snapshot(a=done, b=other).rows), 120), 120
        )[0]
    )
