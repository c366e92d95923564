"""Policies of jobs are fetched by a child process; a stand-in for it answers here."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import make_job

from orchestrator.core.errors import DiskFullError
from orchestrator.core.job import Job
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.examination import examination_requests, examining_process
from orchestrator.experiment.start_policy_fetcher import StartPolicyFetcher
from orchestrator.supervisor.start_policies import FailedFetch, FetchedPolicy, UnfitPolicy

READY = ExaminationAnswer(init_sha256="ab")
KILLED = "examining it ended with signal 9"
HUNG = "examining it took more than 60 s"
CRASHED = "examining it ended with exit code 1"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.staging.mkdir()
    paths.job("b").root.mkdir(parents=True)
    return paths


def child_of(answers: list[ExaminationAnswer | str | None], log: list[Any]) -> type:
    """A child that gives ``answers`` one after the other, and notes what it is asked and when it is
    ended."""

    class StandIn:
        may_be_blameless = False
        was_killed = False
        hung = False

        def __init__(self) -> None:
            log.append("begun")
            self.file = Path("/dev/null").open("rb")  # noqa: SIM115 - closed on exit

        def __exit__(self, *_: object) -> None:
            log.append("ended")
            self.file.close()

        def fileno(self) -> int:
            return self.file.fileno()

        def suits(self, request: ExaminationRequest) -> bool:
            return True

        def ask(self, request: ExaminationRequest, time_limit_s: float) -> None:
            log.append((request.init["path"], request.model_edits, request.allow_outside))
            examination_requests.staged_policy(Path(str(request.stage_to))).write_bytes(b"policy")
            Path(str(request.stage_to)).mkdir()

        def answer(self, *, can_be_read: bool) -> ExaminationAnswer | str | None:
            answer = answers.pop(0)
            self.may_be_blameless = self.was_killed = answer == KILLED
            self.hung = answer == HUNG
            return answer

    return StandIn


Fetch = Callable[..., tuple[StartPolicyFetcher, list[Any]]]


@pytest.fixture
def fetch(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Fetch:
    def begun(*answers: ExaminationAnswer | str | None) -> tuple[StartPolicyFetcher, list[Any]]:
        log: list[Any] = []
        monkeypatch.setattr(examining_process, "Child", child_of(list(answers), log))
        return StartPolicyFetcher(paths), log

    return begun


def job(name: str = "b") -> Job:
    return make_job(
        name, spec={"init": "job:a-s0", "after": ("a-s0",), "model_edits": {"geom.a.size": "*2"}}
    )


def test_a_policy_comes_into_the_job_directory_and_the_child_ends_when_nothing_is_left(
    fetch: Fetch, paths: RunPaths
) -> None:
    paths.job("c").root.mkdir()
    fetcher, log = fetch(None, READY, READY)
    assert fetcher.needs(job())
    for name in ("b", "b", "c"):
        fetcher.request(job(name))
    found = [list(fetcher.take()) for _ in range(4)]
    assert [[one.job_id for one in several] for several in found] == [[], ["b"], ["c"], []]
    assert (found[1][0].sha256, paths.job("b").init.read_bytes()) == ("ab", b"policy")
    asked = (str(paths.job("a-s0").root), {}, True)
    assert log == ["begun", asked, asked, "ended"], "one child for both, each asked once"
    assert (fetcher.is_busy, fetcher.needs(job())) == (False, False)
    assert list(paths.staging.iterdir()) == []


def test_a_job_with_a_checkpoint_needs_no_policy_and_one_without_needs_it_anew_in_every_session(
    fetch: Fetch, paths: RunPaths
) -> None:
    fetcher, _ = fetch()
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
        (CRASHED, UnfitPolicy),
        (HUNG, FailedFetch),
    ],
)
def test_whatever_goes_wrong_is_a_problem_of_one_job(
    answer: ExaminationAnswer | str, expected: type, fetch: Fetch
) -> None:
    fetcher, log = fetch(answer)
    fetcher.request(job())
    (fetched,) = fetcher.take()
    why = answer if isinstance(answer, str) else answer.problem
    assert fetched == expected(job_id="b", problem=f"cannot start from job a-s0: {why}")
    assert log[-1] == "ended"
    assert fetcher.needs(job()), "another attempt may succeed"


def test_a_policy_whose_child_was_killed_is_examined_once_more_by_another(fetch: Fetch) -> None:
    fetcher, log = fetch(KILLED, READY)
    fetcher.request(job())
    found = [*fetcher.take(), *fetcher.take()]
    assert found == [FetchedPolicy(job_id="b", sha256="ab")]
    assert [entry for entry in log if isinstance(entry, str)] == ["begun", "ended"] * 2

    fetcher, _ = fetch(KILLED, KILLED)
    fetcher.request(job())
    assert fetcher.take() == ()
    (fetched,) = fetcher.take()
    assert fetched == FailedFetch(job_id="b", problem=f"cannot start from job a-s0: {KILLED}")


def test_a_full_disk_stops_the_run(fetch: Fetch) -> None:
    fetcher, _ = fetch(ExaminationAnswer(problem="no space", errno=errno.ENOSPC))
    fetcher.request(job())
    with fetcher, pytest.raises(DiskFullError):
        fetcher.take()
