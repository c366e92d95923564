"""What ``compare RUN --jobs A,B --race`` shows at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.text import Text

from orchestrator.analysis.statistics_text import short_number
from orchestrator.core.columns import Column, number_column
from orchestrator.core.text import count
from orchestrator.features.compare.race_result import RacedJob, RaceResult
from orchestrator.terminal.output import show_table

FIGURES: Mapping[str, Callable[[RacedJob], str]] = {
    "seeds": lambda job: str(len(job.values)),
    "mean": lambda job: short_number(job.mean),
    "lowest": lambda job: short_number(min(job.values)),
    "highest": lambda job: short_number(max(job.values)),
}
"""Of a job, by the names of their columns."""
METHOD = (
    "Interval of 95 % and p: Welch's t over all looks of a group-sequential test (Wang and Tsiatis);"
    " they hold whenever one stops."
)


def show(raced: RaceResult) -> None:
    """Print both jobs, who is better by how much, and what has to be known of it."""
    first, second = raced.jobs
    above = [f"{raced.run_dir}: {second.name} raced against {first.name} by {raced.by}", ""]
    below: list[str | Text] = ["", raced.sentence]
    if raced.difference.low is not None:
        below += ["", Text(METHOD, style="dim")]
    if raced.trained:
        where = f"{count(raced.trained, 'training')} of the race: {raced.race_dir}"
        below.append(Text(where, style="dim"))
    if raced.settings:
        title = f"Settings of {first.name} → {second.name}"
        below += ["", Text(title, style="bold"), *map(str, raced.settings)]
    if raced.remarks:
        below += ["", *raced.remarks]
    show_table(_columns(), raced.jobs, above=above, below=below)


def _columns() -> list[Column[RacedJob]]:
    return [
        Column("job", lambda job: job.name),
        *(number_column(name, figure) for name, figure in FIGURES.items()),
    ]
