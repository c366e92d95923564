"""What a resumed run need not do again.

A run directory is resumed without its job file: the jobs come from the ledger, the robots from the
job directories.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from orchestrator.core.errors import Problem, RunDirError, SpecError
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.job import Cancelled, Failed, Job, Succeeded, lacked_room
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_hash import main_file, robot_hash
from orchestrator.core.text import listed
from orchestrator.experiment.begun_source import begun_source
from orchestrator.experiment.directory import resume_advice, run_directory
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.jobfile import Experiment, Order, from_mapping
from orchestrator.jobfile.toml_models import FEATURE_TABLES, JobFile
from orchestrator.keys.feature_tables import read_kept_tables
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import MaxParallel
from orchestrator.ledger import JobRow


def load(run_dir: Path) -> tuple[Experiment, Mapping[str, JobVerdict]]:
    """Every job of ``run_dir``, with the robot in its directory, and its earlier verdict: no robot
    is examined again.

    :raises UsageError: a part is missing or damaged.
    """
    paths = run_directory.existing_run(run_dir)
    with run_directory.reading_ledger(paths) as ledger:
        if (source := begun_source(paths, ledger)) is not None:
            return source.declared(), {}
        rows = [row for row in ledger.jobs() if row.state != Cancelled(is_undeclared=True)]
    _refuse_rungs(paths, rows)
    if not paths.experiment.exists():
        raise RunDirError(
            f"{paths.root}: this command has no job file to resume. {resume_advice.how_to_resume(paths)}"
        )
    try:
        top = tomllib.loads(read_regular(paths.experiment).decode("utf-8-sig"))
        if unknown := [name for name in top if name not in JobFile.model_fields]:
            raise ValueError(f"{unknown[0]}: unknown key")
        problems = Problems()
        tables = read_kept_tables(FEATURE_TABLES, top, problems)
        max_parallel = TypeAdapter(MaxParallel).validate_python(
            top.get("max_parallel", "auto"), strict=True
        )
        name = top.get("name")
        order = top.get("order", "longest-first")
        if not (isinstance(name, str) and order in get_args(Order)):
            raise ValueError("name or order is missing or wrong")
    except (OSError, ValueError) as error:
        advice = "run the job file, which replaces it"
        raise RunDirError(f"{paths.experiment}: cannot be read ({error}); {advice}") from error
    if problems:
        raise SpecError(str(paths.experiment), problems.in_order())
    experiment = Experiment(
        name=name,
        max_parallel=None if max_parallel == "auto" else max_parallel,
        order=order,
        skip_invalid=True,
        tables=tables,
        jobs=tuple(row.job for row in rows),
        source=str(run_dir),
        base=paths.root.absolute(),
        data=top,
    )
    return experiment, verdicts(rows)


def _refuse_rungs(paths: RunPaths, rows: Sequence[JobRow]) -> None:
    """:raises RunDirError: jobs pause to be compared with others, and nothing here compares them."""
    left = [row for row in rows if not isinstance(row.state, Succeeded | Failed | Cancelled)]
    if compared := [row.job_id for row in left if row.job.spec.pause_at is not None]:
        what = f"pause at rungs ({listed(compared)}), and what compares them there is missing"
        advice = "`run JOBS.toml` with the job file, or install the feature that began this run directory"
        raise RunDirError(f"{paths.root}: jobs {what}: {advice}")


def from_declaration(declaration: Mapping[str, Any]) -> Experiment:
    """The experiment whose :attr:`Experiment.declaration` was written into a run directory.

    :raises SpecError: what it refers to is gone, such as its robot.
    :raises ValueError, KeyError, TypeError: it is no declaration.
    """
    base = Path(declaration["base"])
    return from_mapping(declaration["data"], base=base, **declaration["options"])


def verdicts(rows: Iterable[JobRow]) -> dict[str, JobVerdict]:
    """The verdict of every job as it was when it was entered: no robot is examined again."""
    return {row.job_id: _verdict(row) for row in rows}


def is_settled(row: JobRow, paths: RunPaths) -> bool:
    """Whether a run without a job file has nothing to do with a job: it is over, and what it leaves
    is there. One that was too large for the machines may fit now.
    """
    if isinstance(row.state, Succeeded):
        return paths.job(row.job_id).has_results(normalize=row.job.spec.normalize)
    is_over = isinstance(row.state, Failed | Cancelled) and not lacked_room(row.state)
    return is_over and row.state != Cancelled(is_undeclared=True)


def verdicts_of_finished(
    rows: Sequence[JobRow], jobs: Sequence[Job], paths: RunPaths
) -> dict[str, JobVerdict]:
    """A verdict for those of ``jobs`` that have succeeded and would train the same again: their
    robots stay unexamined.

    Any doubt leaves a job out: a task that is chosen from the robot, a policy to start from whose
    hash is not known, and a robot whose files lie otherwise.
    """

    @functools.cache  # jobs share robots
    def hash_of(main: str, origin: Path, names: tuple[str, ...]) -> str:
        return robot_hash(main, {name: origin / name for name in names})

    finished = {row.job_id: row for row in rows if isinstance(row.state, Succeeded)}
    found: dict[str, JobVerdict] = {}
    for job in jobs:
        row = finished.get(job.job_id)
        verdict = None if row is None else _verdict_if_unchanged(job, row, paths, hash_of)
        if verdict is not None:
            found[job.job_id] = verdict
    return found


def _verdict_if_unchanged(
    job: Job, row: JobRow, paths: RunPaths, hashed: Callable[[str, Path, tuple[str, ...]], str]
) -> JobVerdict | None:
    """:param hashed: the hash of a robot: its main file, where its files lie, and their names."""
    before = row.job.spec
    if job.spec.init is not None and job.spec.init_sha256 is None:
        return None
    if not paths.job(job.job_id).has_results(normalize=before.normalize):
        return None
    if dataclasses.replace(job.spec, xml=before.xml).fingerprint() != row.fingerprint:
        return None
    if job.xml_source is None and before.xml is None:
        return JobVerdict()
    if job.xml_source is None or before.xml is None:
        return None
    main = main_file(before.xml)
    if job.spec.model_edits or not job.xml_source.as_posix().endswith(f"/{main}"):
        return None
    origin = job.xml_source.parents[main.count("/")]
    copy = paths.job(job.job_id).robot
    try:
        files = [path for path in copy.rglob("*") if path.is_file()]
        names = tuple(sorted(path.relative_to(copy).as_posix() for path in files))
        if main not in names:
            return None
        if not all((origin / name).is_file() for name in names):  # a pipe would be waited for
            return None
        if hashed(main, origin, names) != row.robot_hash:
            return None
    except OSError:  # robot or copy cannot be read any more: it is examined
        return None
    return JobVerdict(xml=main, robot_hash=row.robot_hash)


def _verdict(row: JobRow) -> JobVerdict:
    if row.refusal is not None:
        problem = Problem(where=f"jobs/{row.job_id}", message=row.refusal)
        return JobVerdict(problem=problem, robot_hash=row.robot_hash)
    return JobVerdict(problem=None, robot_hash=row.robot_hash)
