"""The certificate in the report of an experiment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_helpers import Page, Trained, make_bench_dir, make_run_dir

from orchestrator import report


@pytest.mark.usefixtures("undrawn")
def test_certificate_of_an_experiment_is_shown(tmp_path: Path) -> None:
    root = make_bench_dir(tmp_path / "bench")
    make_run_dir(tmp_path / "run", [Trained()])
    certificate = json.loads((root / "certificate.json").read_text())
    certificate["warnings"] = ["other experiments hold 1 of 2 CPUs"]
    (tmp_path / "run/certificate.json").write_text(json.dumps(certificate))
    page = Page(report.make(tmp_path / "run"))
    assert "Other experiments hold 1 of 2 CPUs." in page.text
    assert "FAIL: 1 of 2 jobs" in page.text
