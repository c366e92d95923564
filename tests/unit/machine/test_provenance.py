"""What has changed between two sessions of an experiment and may change its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import make_job, make_machine

from orchestrator.core.paths import RunPaths
from orchestrator.machine import imported_code, provenance

HERE = {
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "numpy": "2.4.6",
    "psutil": "7.2.2",
    "sb3-contrib": "2.9.2",
    provenance.CODE: "abc",
}


class NoRepository(provenance.Repository):
    """Starts no git."""

    def __init__(self) -> None:
        pass

    def facts(self) -> None:
        return None


class Sessions:
    """Records sessions of one run directory on a machine that the test changes between them."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.paths, self._patch = RunPaths(root), patch

    def next(
        self, *, cpu: str = "A", user_code: dict[str, str] | None = None, **facts: Any
    ) -> list[str]:
        versions = HERE | facts.pop("versions", {})
        self._patch.setattr(provenance, "installed_versions", lambda: versions)
        self._patch.setattr(provenance, "cpu_model", lambda: cpu)
        return provenance.record(
            self.paths,
            experiment="robots",
            command=["orchestrator", "run"],
            thread_variables={},
            machine=make_machine(1),
            jobs_at_once=1,
            repository=NoRepository(),
            started_with={},
            backend={"executor": "local", **facts},
            user_code=user_code or {},
        )


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    return Sessions(tmp_path, monkeypatch)


def test_the_first_session_and_an_unchanged_one_report_nothing(sessions: Sessions) -> None:
    assert sessions.next(user_code={"/exp": "1"}) == []
    assert sessions.next(user_code={"/exp": "1"}) == []


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"versions": {"numpy": "2.5.0"}}, "numpy 2.4.6, now 2.5.0"),
        ({"versions": {"sb3-contrib": "2.9.0"}}, "sb3-contrib 2.9.2, now 2.9.0"),
        ({"versions": {"python": "3.12.1"}}, "python 3.11.7, now 3.12.1"),
        ({"versions": {provenance.CODE: "abd"}}, f"{provenance.CODE} abc, now abd"),
        ({"cpu": "B"}, "CPU A, now B"),
        ({"user_code": {"/exp": "2"}}, "Python files below /exp"),
        ({"nodes": [{"cpu_model": "A"}, {"cpu_model": "B"}]}, "CPU A, now A and B"),
    ],
)
def test_what_may_change_results_is_reported_once(
    sessions: Sessions, changed: dict[str, Any], line: str
) -> None:
    sessions.next(user_code={"/exp": "1"})
    assert sessions.next(**{"user_code": {"/exp": "1"}, **changed}) == [line]
    assert sessions.next(**{"user_code": {"/exp": "1"}, **changed}) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"versions": {"psutil": "8.0.0"}},
        {"versions": {"python": "3.11.9"}},
        {"versions": {"torch": "2.13.0+cu130"}},
        {"user_code": {"/moved": "1"}},
        {"nodes": [{"cpu_model": "A"}]},
    ],
)
def test_what_changes_no_result_is_not_reported(
    sessions: Sessions, changed: dict[str, Any]
) -> None:
    sessions.next(user_code={"/exp": "1"})
    assert sessions.next(**{"user_code": {"/exp": "1"}, **changed}) == []


@pytest.mark.parametrize(
    "earlier", ['[{"versions": {"numpy": "2.4.6"}, "host": "here"}]', "[]", "nonsense", '["?"]']
)
def test_what_was_not_recorded_is_not_compared(sessions: Sessions, earlier: str) -> None:
    sessions.paths.provenance.write_text(earlier)
    assert sessions.next(user_code={"/exp": "1"}) == []
    assert json.loads(sessions.paths.provenance.read_text())[-1]["cpu_model"] == "A"


def test_the_hash_of_the_users_code_is_that_of_the_folder_that_jobs_import_from(
    tmp_path: Path,
) -> None:
    (tmp_path / "walking.py").write_text("SPEED = 1\n")
    imports, plain = (
        {"entry_point": "walking:make", "env": None, "search_path": str(tmp_path)},
        {"env": "Ant-v5"},
    )
    jobs = [make_job("a", spec=imports), make_job("b", spec=imports), make_job("c", spec=plain)]
    before = imported_code.digests(jobs)
    assert list(before) == [str(tmp_path)]
    assert imported_code.digests(jobs) == before
    (tmp_path / "walking.py").write_text("SPEED = 2\n")
    assert imported_code.digests(jobs) != before
    assert (
        imported_code.digests(
            [make_job("d", spec=imports | {"search_path": str(tmp_path / "gone")})]
        )
        == {}
    )
