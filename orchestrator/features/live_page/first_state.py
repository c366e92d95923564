"""What the HTML of a page holds of its first state: the data that its script draws at once, and
tables for who has no JavaScript.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from orchestrator.features.live_page.feed import FirstLook, clock_values
from orchestrator.features.live_page.job_row import PageJob
from orchestrator.report.number_format import number, percent

STATES = ("RUNNING", "FAILED", "PAUSED", "PENDING", "CANCELLED", "SUCCEEDED")
"""In the order of the table."""
RUN_STATES = ("running", "paused", "interrupted", "unreadable", "finished")
"""In the order of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A line of the table of jobs."""

    job_id: str
    state: str
    activity: str
    """What it does, in small letters."""
    ep_rew_mean: str
    evaluated: str
    done: str
    env_steps: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstState:
    """The state as the template of the page shows it; see ``assets/page.html``.

    :ivar data: JSON that no text in it ends; ``begin`` in ``stream.js`` reads it.
    :ivar head: of the experiment, or of the folder.
    :ivar counts: such as ``3 running``.
    :ivar sections: what features show.
    :ivar runs: the facts of each experiment of a folder.
    """

    data: Markup
    read_at: str
    head: Mapping[str, Any]
    counts: str
    sections: Iterable[Mapping[str, Any]]
    jobs: Iterable[JobRow]
    runs: Iterable[Mapping[str, Any]]


def first_state(look: FirstLook) -> FirstState:
    pieces: dict[str, Any] = json.loads(look.state)["put"]
    head = pieces.get("head", {})
    jobs = {
        name.removeprefix("job:"): PageJob(*values)
        for name, values in pieces.items()
        if name.startswith("job:")
    }
    runs = [facts for name, facts in pieces.items() if name.startswith("run:")]
    runs.sort(key=lambda run: (RUN_STATES.index(run["state"]), -run["noted"]))
    ordered = sorted(jobs, key=lambda job: (STATES.index(jobs[job].state), jobs[job].position))
    read_at = datetime.datetime.fromtimestamp(look.read_at, datetime.UTC)
    return FirstState(
        data=_data(look),
        read_at=f"{read_at:%Y-%m-%d %H:%M:%S} UTC",
        head=head,
        counts=counts_text(head.get("counts", {})),
        sections=pieces.get("sections", ()),
        jobs=[_job_row(job_id, jobs[job_id]) for job_id in ordered],
        runs=[{**run, "jobs": counts_text(run["counts"])} for run in runs],
    )


def counts_text(counts: Mapping[str, int]) -> str:
    """Number of jobs in each state that there is."""
    return ", ".join(f"{counts[state]:,} {state.lower()}" for state in STATES if counts.get(state))


def _data(look: FirstLook) -> Markup:
    clock = clock_values(look.board)
    text = f'{{"clock":{clock},"state":{look.state}}}'
    # In JSON a "<" is in texts only, and one that is escaped is the same to who reads it. Without
    # it nothing ends the element around it, or begins a comment.
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - see above


def _job_row(job_id: str, job: PageJob) -> JobRow:
    return JobRow(
        job_id=job_id,
        state=job.state,
        activity=(job.activity or job.state).lower(),
        ep_rew_mean=number(job.ret),
        evaluated=number(job.evaluated),
        done=percent(job.share),
        env_steps=number(job.steps or None),
        message=job.message or "",
    )
