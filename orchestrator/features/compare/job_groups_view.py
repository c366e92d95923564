"""What ``compare RUN --jobs A,B`` shows."""

from __future__ import annotations

from rich.text import Text

from orchestrator.analysis.statistics_text import with_interval
from orchestrator.core.columns import Column, number_column
from orchestrator.features.compare.job_groups import GroupFigures, JobComparison
from orchestrator.features.compare.protocols import listed_protocols
from orchestrator.terminal.output import show_table

INTERVALS = (
    "Intervals of 95 % and p: Student's t (of two jobs Welch's); interquartile mean: bootstrap, from ten"
    " values on. Of several bodies, each counts once."
)


def show(compared: JobComparison) -> None:
    """Print each group, how the others differ from the first, and what has to be known of it."""
    above = [f"{compared.run_dir}: jobs compared by {compared.by}", ""]
    below: list[str | Text] = [Text(INTERVALS, style="dim")]
    for other in compared.others:
        below += ["", *compared.sentences(other)]
    for other in compared.others:
        if other.settings:
            title = f"Settings of {compared.groups[0].name} → {other.name}"
            below += ["", Text(title, style="bold")]
            below += map(str, other.settings)
    if compared.remarks:
        below += ["", *compared.remarks]
    show_table(_columns(compared), compared.groups, above=above, below=below)


def _columns(compared: JobComparison) -> list[Column[GroupFigures]]:
    is_of_several = len(compared.bodies) > 1
    columns: list[Column[GroupFigures]] = [Column("jobs", lambda group: group.name)]
    if is_of_several:
        columns.append(number_column("bodies", lambda group: str(len(group.values))))
    columns += [
        number_column(
            "trainings" if is_of_several else "seeds",
            lambda group: str(sum(map(len, group.values.values()))),
        ),
        number_column("mean", lambda group: with_interval(group.mean)),
        number_column("interquartile mean", lambda group: with_interval(group.interquartile_mean)),
        Column("reached after", _protocols, is_folded=True),
    ]
    return columns


def _protocols(group: GroupFigures) -> str:
    return listed_protocols(group.protocols)
