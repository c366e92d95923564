"""`status`, `stop` and `retry` from another host than the supervisor's do not open its ledger."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from pathlib import Path

import pytest
from host_helpers import on_another_host
from supervisor_helpers import FOREVER, Experiment, behaviours, make_job, rows

from orchestrator.core.errors import LedgerError, RunDirError
from orchestrator.core.job import Cancelled, Cause, Failed, Pending
from orchestrator.executors.fake import NEVER, Behaviour
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import (
    attach,
    cleaning,
    control,
    reload,
    run_snapshot,
    worker_logs,
)
from orchestrator.experiment.resuming import recovery, resume
from orchestrator.features.verify import cases
from orchestrator.ledger import Ledger, Request
from orchestrator.ledger.requests import RequestFiles
from orchestrator.report import experiment as report_experiment
from orchestrator.supervisor.events import View
from orchestrator.terminal import status_view


def test_requests_from_another_host_reach_the_supervisor_without_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Behaviour(after_s=NEVER, exits_within_s=5.0)
    behave = behaviours(
        {"fails-once": [Behaviour(returncode=1), Behaviour()], "long": FOREVER, "longer": slow}
    )
    jobs = [make_job(name) for name in ("fails-once", "long", "longer")]
    # By what summary.json says: it is written the less often, the more seconds (not of the fake
    # clock) that takes.
    agenda = [
        ("fails-once", "FAILED", lambda: control.ask(tmp_path, [], "retry")),
        ("fails-once", "SUCCEEDED", lambda: control.stop(tmp_path, ["long"])),
        # The second is no wish to kill.
        ("long", "CANCELLED", lambda: control.stop(tmp_path, []) + control.stop(tmp_path, [])),
    ]
    with run_directory.claim(tmp_path) as paths:
        holder = run_directory.holder(paths)
        assert holder is not None
        experiment = Experiment(tmp_path, jobs, behave, cpus=3, holder=holder.key)

        def each_turn(_: View) -> None:
            if agenda and rows(tmp_path)[agenda[0][0]]["state"] == agenda[0][1]:
                with on_another_host(monkeypatch):
                    agenda.pop(0)[2]()

        experiment.reporter.each_turn = each_turn
        assert experiment.run() == {
            "fails-once": "SUCCEEDED",
            "long": "CANCELLED",
            "longer": "PENDING",
        }
    assert experiment.supervisor.is_interrupted
    assert experiment.reporter.kinds().count("stopping") == 1
    assert os.listdir(tmp_path / "requests") == []


def test_status_from_another_host_is_that_of_summary_json_and_says_how_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_directory.claim(tmp_path) as paths:
        with on_another_host(monkeypatch):
            assert run_snapshot.status(tmp_path).rows == []
        experiment = Experiment(tmp_path, [make_job("a")])
        experiment.run()
        written = time.time() - 100
        os.utime(paths.summary_json, (written, written))
        paths.job("a").attempt(0).worker_log.write_text("hello\n")
        with on_another_host(monkeypatch):
            snapshot = run_snapshot.status(tmp_path)
            log = worker_logs.log(tmp_path, "a", follow=False, lines=0, attempt=None)
            assert "".join(log) == "hello\n"
            assert attach.wait(tmp_path, ["a"], timeout_s=600).exit_code == 0
            assert run_snapshot.find(tmp_path, "a").root == paths.job("a").root  # for `play`
        assert [row["state"] for row in snapshot.rows] == ["SUCCEEDED"]
        assert snapshot.written == pytest.approx(written)
        status_view.show([snapshot], in_place=False)
        assert re.search(r"\b10\d s ago", capsys.readouterr().out)
        paths.summary_json.write_text(json.dumps([{"job_id": "a"}]))
        with on_another_host(monkeypatch), pytest.raises(LedgerError, match="cannot be read"):
            run_snapshot.status(tmp_path)


def test_what_needs_the_ledger_is_refused_while_its_supervisor_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_directory.claim(tmp_path):
        Experiment(tmp_path, [make_job("a")]).ledger.close()
        here = re.escape(f" on {socket.gethostname()}, since ")
        for command, why in (
            (report_experiment.read, "another host than this"),  # of `report`
            (resume.load, "another host than this"),  # of `run`
            (lambda root: cases.of_run_dir(root, ()), "another host than this"),  # of `verify`
            (lambda root: reload.reload(root, None), "another host than this"),
            (lambda root: cleaning.clean(root, dry_run=False), "another supervisor"),
            (lambda root: run_directory.claim(root).__enter__(), "another supervisor"),
        ):
            with on_another_host(monkeypatch), pytest.raises(RunDirError, match=here) as refused:
                command(tmp_path)
            assert why in str(refused.value)


def test_when_no_supervisor_runs_another_host_does_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_directory.claim(tmp_path):
        Experiment(tmp_path, [make_job("a")]).ledger.close()
    monkeypatch.setattr("socket.gethostname", lambda: "another-host")
    control.ask(tmp_path, ["a"], "pause")
    snapshot = run_snapshot.status(tmp_path)
    assert ([row["state"] for row in snapshot.rows], snapshot.written) == (["PAUSED"], None)
    assert [job["job_id"] for job in report_experiment.read(tmp_path)["jobs"]] == ["a"]
    control.ask(tmp_path, ["a"], "resume")
    with run_directory.claim(tmp_path):
        assert Experiment(tmp_path, []).run() == {"a": "SUCCEEDED"}


def test_a_request_that_no_supervisor_lived_to_read_is_for_the_next_but_a_stop_is_not(
    tmp_path: Path,
) -> None:
    files = RequestFiles(tmp_path / "requests")
    files.add([Request(verb="stop", job_id="1:1.0"), Request(verb="cancel", job_id="a")])
    (tmp_path / "requests" / "damaged.jsonl").write_bytes(b"\xff{")
    ledger = Experiment(tmp_path, [make_job("a"), make_job("b")]).ledger
    assert not recovery.apply_late_requests(ledger, "2:2.0")
    assert {row.job.job_id: row.state.name for row in ledger.jobs()} == {
        "a": "CANCELLED",
        "b": "PENDING",
    }
    assert os.listdir(tmp_path / "requests") == []


def test_a_request_stays_until_what_it_led_to_is_recorded(tmp_path: Path) -> None:
    cancel, pause = Request(verb="cancel", job_id="a"), Request(verb="pause", job_id="a")
    RequestFiles(tmp_path / "requests").add([cancel, pause])
    ledger = Experiment(tmp_path, [make_job("a")]).ledger
    for acted_on in (cancel, pause):
        left = [pause] if acted_on is pause else [cancel, pause]
        assert ledger.take_requests() == left
        assert ledger.take_requests() == []
        ledger.mark_handled(acted_on)
        ledger.abandon()
        ledger = Ledger.open(tmp_path / "ledger.sqlite3")
        assert ledger.take_requests() == left, "it was not recorded"
        ledger.mark_handled(acted_on)
        ledger.commit()
        assert ledger.take_requests() == []
        ledger = Ledger.open(tmp_path / "ledger.sqlite3")
    assert os.listdir(tmp_path / "requests") == []


def test_a_retry_is_acted_on_once_even_if_its_file_outlives_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry, cancel = Request(verb="retry", job_id="a"), Request(verb="cancel", job_id="b")
    ledger = Experiment(tmp_path, [make_job("a"), make_job("b")]).ledger
    failed = Failed(cause=Cause.ERROR, message="it broke")
    ledger.set_state("a", failed)
    ledger.commit()
    RequestFiles(tmp_path / "requests").add([retry, cancel])
    assert ledger.take_requests() == [retry, cancel]
    ledger.set_state("a", Pending())
    ledger.mark_handled(retry)
    ledger.commit()
    ledger.set_state("a", failed)  # the attempt that the retry led to has failed, too
    ledger.set_state("b", Cancelled())
    ledger.mark_handled(cancel)
    with monkeypatch.context() as killed_here:
        killed_here.setattr(
            Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError("killed"))
        )
        ledger.commit()
    ledger.abandon()
    (file,) = (tmp_path / "requests").iterdir()
    assert file.read_text().count("\n") == 2
    with contextlib.closing(Ledger.open(tmp_path / "ledger.sqlite3")) as ledger:
        assert not recovery.apply_late_requests(ledger, "2:2.0")
        assert {row.job.job_id: row.state.name for row in ledger.jobs()} == {
            "a": "FAILED",
            "b": "CANCELLED",
        }
        assert os.listdir(tmp_path / "requests") == []
    RequestFiles(tmp_path / "requests").add([retry])
    with contextlib.closing(Ledger.open(tmp_path / "ledger.sqlite3")) as ledger:
        assert ledger.take_requests() == [retry], "another request is another id"
