"""What :func:`orchestrator.run` and :func:`orchestrator.train` return."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, overload

from orchestrator.analysis.job_columns import job_columns
from orchestrator.core.columns import Column, with_values
from orchestrator.core.errors import UsageError
from orchestrator.core.job import META
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, storable
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.rows import fitness
from orchestrator.terminal.notebook_view import html_table

NESTED = ("measures", "meta")
"""Values of a result that are several columns of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one training.

    :ivar ok: whether there is a trained policy.
    :ivar error: why there is none; None if there is one.
    :ivar job_id: name of the job; None for a robot whose file name cannot be printed.
    :ivar xml: the robot's file; None without one, also where it was given as MJCF text or
        ``MjSpec``.
    :ivar index: position of the robot in the ``xmls`` of :func:`orchestrator.train`,
        ``xmls[result.index]``; of a pattern or folder for each of its files. None in
        :func:`orchestrator.run`.
    :ivar seed: seed of the training.
    :ivar state: ``"SUCCEEDED"``, ``"FAILED"``, ``"CANCELLED"``, ``"PAUSED"``, or ``"PENDING"`` if
        it was stopped.
    :ivar ep_rew_mean: mean return of the last episodes of training (Stable-Baselines3's
        ``rollout/ep_rew_mean``).
    :ivar eval_mean: mean deterministic return over ``eval_episodes`` episodes after training.
    :ivar eval_length: mean length of the same episodes in control steps.
    :ivar measures: means of the task's measures over the same episodes, by name with unit, such as
        ``distance_m`` of ``forward``. Empty if the job was not evaluated, or its environment reports none;
        see docs/evaluation.md.
    :ivar env_steps: control steps trained, summed over environments and ranks.
    :ivar parent: the job of the same run directory whose policy it started from (``init``); None:
        it started from none of them.
    :ivar lineage_env_steps: ``env_steps``, and those of the policies that it started from one after
        another, each up to the checkpoint that was taken over; None if they are not known.
    :ivar wall_s: seconds over all attempts.
    :ivar model: ``model.zip``, for ``stable_baselines3.PPO.load``.
    :ivar vecnormalize: normalisation statistics, for ``VecNormalize.load``; None if normalisation
        was off.
    :ivar job_dir: directory of all files of the job.
    :ivar meta: what the program said of the robot when it submitted it to a
        :class:`orchestrator.TrainingPool`.
    """

    ok: bool
    error: str | None
    job_id: str | None = None
    xml: str | None
    index: int | None = None
    seed: int
    state: str
    ep_rew_mean: float | None = None
    eval_mean: float | None = None
    eval_length: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict, hash=False)
    env_steps: int = 0
    parent: str | None = None
    lineage_env_steps: int | None = None
    wall_s: float | None = None
    model: Path | None = None
    vecnormalize: Path | None = None
    job_dir: Path | None = None
    meta: Mapping[str, str | int | float | bool | None] = field(default_factory=dict, hash=False)

    def fitness(self, *, default: float = -math.inf) -> float:
        """One number to compare policies by.

        It is ``eval_mean``, the mean deterministic return after training, or ``ep_rew_mean`` if the
        policy was not evaluated. It is ``default`` if the job has not succeeded, or if no episode
        has ended.
        """
        value = fitness(self.eval_mean, self.ep_rew_mean)
        return value if self.ok and value is not None else default

    def _repr_html_(self) -> str:
        return results_html([self])


_NAMES = tuple(one.name for one in fields(Result))


class Results(list[Result]):
    """The results of :func:`orchestrator.train`: a list."""

    def __init__(self, results: Iterable[Result] = (), *, run_dir: Path | None = None) -> None:
        super().__init__(results)
        self.run_dir = run_dir
        """The directory of all of them; None if there was nothing to train."""

    def to_dataframe(self) -> Any:
        """A :class:`pandas.DataFrame` with a row for each result, and columns for measures and
        ``meta``.

        :raises UsageError: pandas is not installed.
        """
        pandas = pandas_for("Results.to_dataframe")
        return pandas.DataFrame([_table_row(result) for result in self])

    def __repr__(self) -> str:
        return _results_text(self, self.run_dir)

    def _repr_html_(self) -> str:
        return results_html(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult(Sequence[Result]):
    """Result of an experiment: a sequence of results in the order of the job file, which takes job
    ids as well.

    ``result[0]`` is the first, ``result["hopper-s0"]`` that of the job, and ``"hopper-s0" in
    result`` says whether there is one.
    """

    run_dir: Path
    results: tuple[Result, ...]
    exit_code: int

    def __repr__(self) -> str:
        return _results_text(self.results, self.run_dir)

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __contains__(self, item: object) -> bool:
        """:param item: a job id or a result."""
        return item in self.results or any(result.job_id == item for result in self.results)

    @overload
    def __getitem__(self, key: int | str) -> Result: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Result, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Result | tuple[Result, ...]:
        """A result by its position or job id.

        :raises IndexError: there is none at this position.
        :raises KeyError: no job has this id.
        """
        if not isinstance(key, str):
            return self.results[key]
        for result in self.results:
            if result.job_id == key:
                return result
        raise KeyError(
            f"no job {key}; `[result.job_id for result in …]` shows the job ids of this experiment"
        )

    def _repr_html_(self) -> str:
        return results_html(self.results)


def pandas_for(caller: str) -> Any:
    """The package pandas.

    :param caller: what needs it, for the message.
    :raises UsageError: it is not installed.
    """
    try:
        return import_module("pandas")
    except ImportError as error:
        raise UsageError(
            f"{caller} needs pandas ({error}); `pip install pandas` installs it"
        ) from None


def _table_row(result: Result) -> dict[str, Any]:
    """By the names of columns: those of the result, of its measures, and of what the program said
    of it.
    """
    own = {name: getattr(result, name) for name in _NAMES if name not in NESTED}
    measures = {name: value for name, value in result.measures.items() if name not in own}
    said = {f"{META}{name}": value for name, value in result.meta.items()}
    return {
        name: storable(value) if isinstance(value, str) else value
        for name, value in (own | measures | said).items()
    }


def _results_text(results: Sequence[Result], run_dir: Path | None) -> str:
    succeeded = sum(result.ok for result in results)
    directory = None if run_dir is None else str(run_dir)
    return f"<{count(len(results), 'result')}, {succeeded:,} succeeded, run_dir={directory!r}>"


def result_of(paths: RunPaths, row: SummaryRow, index: int | None = None) -> Result:
    """The result of the job of ``row``, whose directory is in ``paths``."""
    ok = row["state"] == "SUCCEEDED"
    job = paths.job(row["job_id"])
    return Result(
        ok=ok,
        error=None if ok else _why_no_policy(paths, row),
        job_id=row["job_id"],
        xml=row["xml"],
        index=index,
        seed=row["seed"],
        state=row["state"],
        ep_rew_mean=row["ep_rew_mean"],
        eval_mean=row["eval_mean"],
        eval_length=row["eval_length"],
        measures={name: mean for name, mean in (row["measures"] or {}).items() if mean is not None},
        env_steps=row["env_steps"],
        parent=row["parent"],
        lineage_env_steps=row["lineage_env_steps"],
        wall_s=row["wall_s"],
        model=job.model if ok else None,
        vecnormalize=job.vecnormalize if job.vecnormalize.exists() else None,
        job_dir=job.root,
    )


def _why_no_policy(paths: RunPaths, row: SummaryRow) -> str:
    """Why a job that has not succeeded has no trained policy."""
    if row["state"] in ("PENDING", "RUNNING"):
        if row.get("waits_for"):
            return f"not run, as it waits for {row.get('waits_for')}"
        return "stopped before it was finished; the same call with the same run_dir resumes it"
    if row["state"] == "PAUSED" and row["cause"] is None:
        resume = f"`resume {paths.root} {row['job_id']}`"
        return f"paused; {resume} queues it, and the same call then continues it"
    return str(row["message"] or row["state"].lower())


def results_html(results: Sequence[Result]) -> str:
    """A table for notebooks, with one row for each result."""
    rows = [_table_row(result) | {"job_id": result.job_id or result.xml} for result in results]
    columns = [column for column in job_columns(rows) if column.shown == "everywhere"]
    others = [name for row in rows for name in row if name not in _NAMES]
    columns += [Column(name, partial(_shown, name), rank=1) for name in dict.fromkeys(others)]
    columns.append(Column("error", partial(_shown, "error"), rank=1))
    columns = with_values(columns, rows)
    cells = ([column.text(row) for column in columns] for row in rows)
    return html_table([column.name for column in columns], cells)


def _shown(name: str, row: Mapping[str, Any]) -> str:
    value = row.get(name)
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
