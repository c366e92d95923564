"""Policies of jobs are fetched by a thread; a stand-in for the examination answers here."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command_helpers import wait_until
from supervisor_helpers import make_job

from orchestrator.core.errors import DiskFullError
from orchestrator.core.job import Job
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.examination import examination_requests, side_by_side
from orchestrator.server.start_policies import (
    FailedFetch,
    Fetch,
    FetchedPolicy,
    UnfitPolicy,
)
from orchestrator.server.start_policy_fetcher import StartPolicyFetcher

READY = ExaminationAnswer(init_sha256="ab")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.staging.mkdir()
    paths.job("b").root.mkdir(parents=True)
    return paths


Begin = Callable[..., tuple[StartPolicyFetcher, list[Any]]]


@pytest.fixture
def begin(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Begins a fetcher whose examinations have ``answers``, and what is asked of them."""
    with ExitStack() as stack:

        def begun(*answers: ExaminationAnswer) -> tuple[StartPolicyFetcher, list[Any]]:
            left = list(answers)
            asked: list[Any] = []

            def ask(requests: Sequence[ExaminationRequest], **_: Any) -> list[ExaminationAnswer]:
                (request,) = requests
                asked.append((request.init["path"], request.model_edits, request.allow_outside))
                staged = Path(str(request.stage_to))
                examination_requests.staged_policy(staged).write_bytes(b"policy")
                staged.mkdir()
                return [left.pop(0)]

            monkeypatch.setattr(side_by_side, "ask", ask)
            return stack.enter_context(StartPolicyFetcher(paths)), asked

        yield begun


def job(name: str = "b") -> Job:
    return make_job(
        name, spec={"init": "job:a-s0", "after": ("a-s0",), "model_edits": {"geom.a.size": "*2"}}
    )


def fetched_for(fetcher: StartPolicyFetcher, name: str = "b") -> Fetch:
    fetcher.request(job(name))
    fetcher.request(job(name))
    (fetched,) = wait_until(fetcher.take, "it is fetched")
    return fetched


def test_a_policy_comes_into_the_job_directory(begin: Begin, paths: RunPaths) -> None:
    fetcher, asked = begin(READY)
    assert fetcher.needs(job())
    assert fetched_for(fetcher) == FetchedPolicy(job_id="b", sha256="ab")
    assert paths.job("b").init.read_bytes() == b"policy"
    assert asked == [(str(paths.job("a-s0").root), {}, True)]
    assert (fetcher.is_busy, fetcher.needs(job())) == (False, False)
    assert list(paths.staging.iterdir()) == []


def test_a_job_with_a_checkpoint_needs_no_policy_and_one_without_needs_it_anew_in_every_session(
    begin: Begin, paths: RunPaths
) -> None:
    fetcher, _ = begin()
    paths.job("b").init.write_bytes(b"perhaps changed")
    assert fetcher.needs(job())
    paths.job("b").checkpoints.mkdir()
    (paths.job("b").checkpoints / "checkpoint-000000000128.pt").touch()
    assert not fetcher.needs(job())
    assert not fetcher.needs(make_job("b"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ExaminationAnswer(problem="other names"), UnfitPolicy),
        (ExaminationAnswer(problem="it hangs", cause="process"), FailedFetch),
    ],
)
def test_whatever_goes_wrong_is_a_problem_of_one_job(
    answer: ExaminationAnswer, expected: type, begin: Begin
) -> None:
    fetcher, _ = begin(answer)
    problem = f"cannot start from job a-s0: {answer.problem}"
    assert fetched_for(fetcher) == expected(job_id="b", problem=problem)
    assert fetcher.needs(job()), "another attempt may succeed"


def test_a_full_disk_stops_the_run(begin: Begin) -> None:
    fetcher, _ = begin(ExaminationAnswer(problem="no space", errno=errno.ENOSPC))
    with pytest.raises(DiskFullError):
        fetched_for(fetcher)
