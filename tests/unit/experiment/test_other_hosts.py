"""`status`, `stop` and `retry` from another host than the supervisor's do not open its ledger."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from pathlib import Path

import pytest
from host_helpers import on_another_host
from supervisor_helpers import Run, make_job

from orchestrator.client import attach, cleaning, control, recorded_run, run_snapshot, worker_logs
from orchestrator.core.errors import LedgerError, RunDirError
from orchestrator.experiment import run_directory
from orchestrator.features.verify import cases
from orchestrator.report import experiment as report_experiment
from orchestrator.terminal import status_view


def test_status_from_another_host_is_that_of_summary_json_and_says_how_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_directory.claim(tmp_path) as paths:
        with on_another_host(monkeypatch):
            assert run_snapshot.status(tmp_path).rows == []
        experiment = Run(tmp_path, [make_job("a")])
        experiment.go()
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
        Run(tmp_path, [make_job("a")]).ledger.close()
        here = re.escape(f" on {socket.gethostname()}, since ")
        for command, why in (
            (report_experiment.read, "another host than this"),  # of `report`
            (recorded_run.load, "another host than this"),  # of `run`
            (lambda root: cases.of_run_dir(root, ()), "another host than this"),  # of `verify`
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
        Run(tmp_path, [make_job("a")]).ledger.close()
    monkeypatch.setattr("socket.gethostname", lambda: "another-host")
    control.move_jobs(tmp_path, ["a"], "pause")
    snapshot = run_snapshot.status(tmp_path)
    assert ([row["state"] for row in snapshot.rows], snapshot.written) == (["PAUSED"], None)
    assert [job["job_id"] for job in report_experiment.read(tmp_path)["jobs"]] == ["a"]
    control.move_jobs(tmp_path, ["a"], "resume")
    with run_directory.claim(tmp_path):
        assert Run(tmp_path, []).go() == {"a": "SUCCEEDED"}
