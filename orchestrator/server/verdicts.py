"""What the examinations of jobs mean for a run: who is refused, what people are told, and which jobs
need no examination.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.errors import Problem, SpecError
from orchestrator.core.front_end import option
from orchestrator.core.job import Job, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.core.robot_hash import main_file, robot_hash
from orchestrator.core.text import listed
from orchestrator.examination.preflight import JobVerdict
from orchestrator.ledger import JobRow


def examined_job(job: Job, verdict: JobVerdict) -> Job:
    """Return ``job`` with the task that was chosen for it, its robot's path in its directory, and
    the hash of its start.
    """
    start = job.spec if verdict.init_sha256 is None else verdict
    return job.with_spec(
        xml=job.spec.xml if verdict.xml is None else f"robot/{verdict.xml}",
        task=verdict.task or job.spec.task,
        init_sha256=start.init_sha256,
        init_env_steps=start.init_env_steps,
    )


def judged(
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    problems_of: Callable[[Job], Sequence[Problem]],
    labels: Mapping[str, str],
) -> tuple[dict[str, JobVerdict], list[Problem]]:
    """Return the verdicts in the words of the user, with what an executor finds; and all distinct
    problems.

    :param problems_of: what the executor says of a job.
    :param labels: what the user calls robots that are temporary files, by their path.
    """
    found: dict[str, JobVerdict] = {}
    problems: dict[Problem, None] = {}
    for job in jobs:
        verdict = verdicts[job.job_id]
        label = labels.get(str(job.xml_source))
        if label is not None and job.xml_source is not None:
            verdict = _with_label(verdict, job.xml_source, label)
        if verdict.problem is not None:
            problems[verdict.problem] = None
        if not verdict.is_invalid:
            of_executor = problems_of(job)
            problems.update(dict.fromkeys(of_executor))
            if of_executor and verdict.problem is None:
                verdict = dataclasses.replace(
                    verdict,
                    problem=of_executor[0],
                    settings_problem=of_executor[0].message,
                    lacks_room=True,
                )
        found[job.job_id] = verdict
    return found, list(problems)


def _with_label(verdict: JobVerdict, file: Path, label: str) -> JobVerdict:
    """Return a verdict in which the user's label of a robot replaces its temporary file."""

    def labelled(text: str, label: str) -> str:
        folder = str(file.parent)
        named = text.replace(str(file), label).replace(folder + os.sep, "")
        return named.replace(f" in {folder}", "")

    warnings = [labelled(text, label) for text in verdict.warnings]
    problem = verdict.problem
    if problem is None:
        return dataclasses.replace(verdict, warnings=warnings)
    of_all = "the robot"  # the same text for every robot
    return dataclasses.replace(
        verdict,
        problem=dataclasses.replace(problem, message=labelled(problem.message, label)),
        warnings=warnings,
        settings_problem=verdict.settings_problem and labelled(verdict.settings_problem, of_all),
        code_problem=verdict.code_problem and labelled(verdict.code_problem, of_all),
        given=file,
    )


def refuse_invalid(
    source: str,
    jobs: Sequence[Job],
    verdicts: Mapping[str, JobVerdict],
    problems: Sequence[Problem],
    *,
    skip_invalid: bool,
    refuses_shared: bool = False,
) -> None:
    """:param refuses_shared: whether a problem that no robot causes is raised if no job can be
        trained, also with ``skip_invalid``.
    :raises SpecError: jobs cannot be trained, and are not to be skipped.
    """
    if problems and not skip_invalid:
        is_all = all(verdicts[job.job_id].problem for job in jobs)
        skip = option("skip_invalid", True)
        advice = f'{skip}, or on_invalid = "skip" in the job file, trains the other jobs'
        raise SpecError(source, list(problems), "" if is_all else advice)
    if refuses_shared and (shared := shared_problems(jobs, verdicts)):
        raise SpecError(source, [Problem(where="", message=text) for text in shared])


def shared_problems(jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> list[str]:
    """Return why no job can be trained, if that is not because of the robots; nothing if a job can
    be, or may be.

    What may lie in a robot or in the user's own code lies in the code if it is the same for several
    robots.
    """
    of_jobs = [(job, verdicts[job.job_id]) for job in jobs]
    if not all(verdict.problem for _, verdict in of_jobs):
        return []
    settings = dict.fromkeys(
        verdict.settings_problem for _, verdict in of_jobs if verdict.settings_problem
    )
    robots: dict[str, set[Path | None]] = {}
    for job, verdict in of_jobs:
        if verdict.code_problem:
            robots.setdefault(verdict.code_problem, set()).add(job.xml_source)
    return [*settings] or [text for text, sources in robots.items() if len(sources) > 1]


def remarks(jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> list[tuple[str, str]]:
    """Return choices (``chosen``) and warnings (``warning``), each once for the jobs that it
    concerns.

    :param jobs: as they were examined.
    """
    names: dict[tuple[str, str], dict[str, None]] = {}
    for job in jobs:
        verdict = verdicts[job.job_id]
        found = [("warning", warning) for warning in verdict.warnings]
        if verdict.task_reason:
            found.append(("chosen", f"task {job.spec.task} ({verdict.task_reason})"))
        if verdict.init_reason:
            found.append(("chosen", f"starts from {verdict.init_reason}"))
        if verdict.is_invalid:
            assert verdict.problem is not None
            text = f"is invalid, and not trained unless it has begun: {verdict.problem.message}"
            found.append(("warning", text))
        elif verdict.problem is not None:
            elsewhere = "where there is room, a later run trains it"
            text = f"is not trained here: {verdict.problem.message}; {elsewhere}"
            found.append(("warning", text))
        for remark in found:
            names.setdefault(remark, {})[job.spec.name] = None
    return [
        (kind, f"{listed(list(of_jobs), 1)}: {text}") for (kind, text), of_jobs in names.items()
    ]


# -- without an examination


def recorded_verdicts(rows: Iterable[JobRow]) -> dict[str, JobVerdict]:
    """Return the verdict of every job as it was when it was entered."""
    found: dict[str, JobVerdict] = {}
    for row in rows:
        problem = None
        if row.refusal is not None:
            problem = Problem(where=f"jobs/{row.job_id}", message=row.refusal)
        found[row.job_id] = JobVerdict(problem=problem, robot_hash=row.robot_hash)
    return found


def verdicts_of_finished(
    rows: Sequence[JobRow], jobs: Sequence[Job], paths: RunPaths
) -> dict[str, JobVerdict]:
    """Return a verdict for those of ``jobs`` that have succeeded and would train the same again:
    their robots stay unexamined.

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


# -- in a request


def verdict_values(verdict: JobVerdict) -> dict[str, Any]:
    """Return what a verdict says of a valid robot, in JSON types."""
    return {
        "bundle": None if verdict.bundle is None else str(verdict.bundle.absolute()),
        "xml": verdict.xml,
        "robot_hash": verdict.robot_hash,
        "init": None if verdict.init is None else str(verdict.init.absolute()),
        "init_sha256": verdict.init_sha256,
        "init_env_steps": verdict.init_env_steps,
    }


def verdict_from_values(values: Mapping[str, Any]) -> JobVerdict:
    """Return the verdict of :func:`verdict_values`."""
    paths = {key: None if values[key] is None else Path(values[key]) for key in ("bundle", "init")}
    return JobVerdict(**{**values, **paths})
