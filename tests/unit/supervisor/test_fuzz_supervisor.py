"""Whatever a worker, or another process of the user, leaves for the supervisor: another job is not
harmed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_helpers import changed, contents, each_special, emptied, fuzz
from hypothesis import given
from hypothesis import strategies as st
from supervisor_helpers import Experiment, ledgers_closed, make_job, rows  # noqa: F401 - a fixture

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.messages import Progress
from orchestrator.executors.base import Launch
from orchestrator.executors.fake import Behaviour
from orchestrator.executors.process import WorkerProcess
from orchestrator.ledger.requests import Request

pytestmark = pytest.mark.nightly

RECORD = ExitRecord(
    code=1, message="no", traceback="a\nb", env_steps=5, ep_rew_mean=1.0, wall_s=2.0, cpus=(0,)
)
PROGRESS = Progress(
    phase="training", env_steps=5, iteration=1, env_steps_per_s=10.0, cpu_share=0.5, learner="fast"
)
RETURNCODES = st.integers(-64, 255).filter(lambda code: code != ExitCode.DISK_FULL)


def run_beside_a_good_job(root: Path, *bad: Callable[[Launch], Behaviour]) -> Experiment:
    """Jobs that behave as in ``bad``, and a good one that is there until they have ended."""
    by_job = {f"bad{number}": behave for number, behave in enumerate(bad)}

    def behave(launch: Launch) -> Behaviour:
        return by_job[launch.job_id](launch) if launch.job_id in by_job else Behaviour(after_s=50.0)

    jobs = [make_job(job_id) for job_id in (*by_job, "good")]
    experiment = Experiment(root, jobs, behave, cpus=len(jobs))
    states = experiment.run()
    assert states.pop("good") == "SUCCEEDED"
    assert set(states.values()) <= {"SUCCEEDED", "FAILED", "PENDING"}
    assert {job_id: row["state"] for job_id, row in rows(root).items()} == {
        **states,
        "good": "SUCCEEDED",
    }
    assert not experiment.paths.error_log.exists(), experiment.paths.error_log.read_text()
    experiment.ledger.close()
    return experiment


def test_any_exit_record_concerns_its_job_alone(tmp_path: Path) -> None:
    @fuzz(3)
    @given(
        ends=st.lists(
            st.tuples(contents(ExitRecord, RECORD), RETURNCODES), min_size=30, max_size=30
        )
    )
    def check(ends: list[tuple[bytes, int | None]]) -> None:
        def ending(content: bytes, returncode: int | None) -> Callable[[Launch], Behaviour]:
            def behave(launch: Launch) -> Behaviour:
                (launch.job_dir / "attempts/0/exit.json").write_bytes(content)
                return Behaviour(returncode=returncode)

            return behave

        run_beside_a_good_job(emptied(tmp_path / "run"), *(ending(*end) for end in ends))

    check()


@each_special
def test_something_else_in_the_place_of_an_exit_record_is_not_waited_for(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    def bad(launch: Launch) -> Behaviour:
        make(launch.job_dir / f"attempts/{launch.number}/exit.json")
        return Behaviour(returncode=3)

    assert run_beside_a_good_job(tmp_path, bad).supervisor.counts["FAILED"] == 1


def read_lines(chunks: list[bytes]) -> list[Progress]:
    """What the supervisor reads of ``chunks`` on a worker's channel, in its turns."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    worker = WorkerProcess(
        rank=0,
        popen=None,
        pid_start=None,
        channel=ours,
        pidfd=None,
        token="",
        log=Path(),
        log_bytes=0,  # type: ignore[arg-type]
    )
    progress = []
    with ours, theirs:
        for chunk in chunks:
            rest = chunk
            while rest:
                rest = rest[theirs.send(rest) :]
                progress += worker.read()[0]
                assert len(worker.partial) <= 1 << 16
    return progress


MESSAGES = st.lists(
    st.one_of(
        contents(Progress, PROGRESS).map(lambda line: line + b"\n"),
        contents(Progress, PROGRESS),
        st.just(PROGRESS.to_line()),
        st.just(b"\n"),
        st.sampled_from([b"x" * 200_000, b"\n" * 1000, b"\xff\xfe\n", b'{"phase":"training"}\n']),
        changed(PROGRESS.to_line()),
    ),
    min_size=1,
    max_size=6,
)


def test_any_bytes_on_the_channel_concern_their_job_alone(tmp_path: Path) -> None:
    @fuzz(3)
    @given(each=st.lists(MESSAGES, min_size=20, max_size=20))
    def check(each: list[list[bytes]]) -> None:
        def sending(messages: list[Progress]) -> Behaviour:
            return Behaviour(
                after_s=10.0,
                progress_every_s=1.0,
                progress=lambda since: messages[int(since) % len(messages)],
            )

        read = [read_lines(chunks) or [PROGRESS] for chunks in each]
        jobs = [lambda _, messages=messages: sending(messages) for messages in read]
        experiment = run_beside_a_good_job(emptied(tmp_path / "run"), *jobs)
        assert experiment.supervisor.counts["SUCCEEDED"] == len(each) + 1

    check()


def test_any_file_of_a_request_leaves_the_jobs_alone(tmp_path: Path) -> None:
    valid = Request(verb="stop", job_id="another supervisor")

    @fuzz(5)
    @given(files=st.lists(st.lists(contents(Request, valid), max_size=3), max_size=20))
    def check(files: list[list[bytes]]) -> None:
        root = emptied(tmp_path / "run")
        (root / "requests").mkdir()
        for number, lines in enumerate(files):
            # a request without a name is meant for any supervisor
            content = b"\n".join(line for line in lines if b'"job_id": null' not in line)
            (root / f"requests/{number}.jsonl").write_bytes(content)
        run_beside_a_good_job(root, lambda launch: Behaviour())
        assert list((root / "requests").iterdir()) == []

    check()
