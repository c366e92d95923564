"""What has chosen jobs of a run directory by their values, such as a search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.front_end import option
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed
from orchestrator.experiment import run_directory
from orchestrator.experiment.begun_source import Direction, begun_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    noun: str = ""
    """What it is called in messages, without an article; empty where nothing has chosen."""
    objectives: Mapping[str, Direction] = field(default_factory=dict)
    """What it chooses by; empty where that is not declared, or not asked for."""
    jobs: Collection[str] | None = None
    """As :meth:`.BegunSource.chosen_jobs`."""
    makes_jobs: bool = False
    """As :attr:`.BegunSource.makes_jobs`."""

    @property
    def figure(self) -> str | None:
        """Its objective, the first of several; None without one."""
        return next(iter(self.objectives), None)

    def has_chosen_among(self, job_ids: Iterable[str]) -> bool:
        """Whether the value of one of them may have been a reason to choose it."""
        if not self.noun:
            return False
        return self.jobs is None or any(job_id in self.jobs for job_id in job_ids)

    def bias(self, run_dir: Path) -> str:
        """A sentence on the values of jobs that were chosen by them, without its full stop."""
        chose = f"the {self.noun} of {run_dir} chose jobs by their values"
        return f"{chose}, so those of the chosen are too good (selection bias)"

    def bias_sentence(self, run_dir: Path, more: str = "") -> str:
        """:meth:`bias` as a sentence, with ``more`` before its full stop."""
        bias = self.bias(run_dir)
        return f"{bias[0].upper()}{bias[1:]}{more}."

    def figure_remark(self) -> str:
        """On a comparison by :attr:`figure`, where none was named; empty without one."""
        if not self.objectives:
            return ""
        aims = [f"{direction}s {figure}" for figure, direction in self.objectives.items()]
        compared = "that is compared"
        if len(aims) > 1:
            compared = f"the first is compared; {option('by')} names another figure"
        return f"The {self.noun} {listed(aims)}: {compared}."


def chooser(paths: RunPaths, *, with_objectives: bool) -> Chooser:
    """Return what has chosen jobs of a run directory.

    :param with_objectives: whether it is needed what it chooses by.
    :raises OrchestratorError: what has chosen here cannot be read.
    """
    with run_directory.reading_ledger(paths) as ledger:
        source = begun_source(paths, ledger)
        if source is None:
            return Chooser()
        return Chooser(
            noun=source.noun,
            objectives=source.objectives if with_objectives else {},
            jobs=source.chosen_jobs(),
            makes_jobs=source.makes_jobs,
        )
