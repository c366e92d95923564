"""`serve --all-users`: what the page shows of the experiments of all users, to whom, and that a server
of root reads and changes nothing in what belongs to another one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from command_helpers import invoke
from live_page_helpers import Served, Viewer, running, serving
from report_helpers import Trained, make_run_dir
from user_helpers import ANN, BOB, ROW, Acting, only_root

from orchestrator.core.errors import RunDirError
from orchestrator.experiment.directory import run_index
from orchestrator.experiment.from_outside import control, machine_runs
from orchestrator.experiment.processes import done_by_owner
from orchestrator.features.live_page import machine_reader, machine_source
from orchestrator.features.live_page.machine_reader import COMMAND
from orchestrator.machine import cpu_holders
from orchestrator.machine.cpu_holders import CpuHolders, holders_folder
from orchestrator.machine.users import ask_owner, user_name


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder within reach of all users, who say there which CPUs they hold."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("ORCHESTRATOR_CPU_HOLDERS", f"{folder}/cpu-holders")
        monkeypatch.setenv("XDG_STATE_HOME", f"{folder}/state")
        monkeypatch.setenv("XDG_CONFIG_HOME", f"{folder}/config")
        monkeypatch.setattr(
            machine_source, "LOOKS", replace(machine_source.LOOKS, every_s=0.5, share=1.0)
        )
        assert cpu_holders.prepare(holders_folder()) is None
        yield Path(folder)


def experiment(folder: Path, *rows: dict[str, Any], uid: int | None = None) -> Path:
    """A run directory with a summary, of the user ``uid``, who lets nobody else read it."""
    folder.mkdir()
    (folder / "supervisor.lock").touch()
    (folder / "summary.json").write_text(json.dumps([ROW | row for row in rows]))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o700)
        if uid is not None:
            os.chown(path, uid, uid)
    return folder


def with_token(server: Served) -> dict[str, str]:
    return {"x_orchestrator_token": server.token}


def viewer(server: Served, path: str = "/api/runs/events") -> Viewer:
    return Viewer(server.port, path, **{"x-orchestrator-token": server.token})


def runs_of(one: Viewer, folder: Path) -> dict[str, dict[str, Any]]:
    """Those of this test: the machine may have others."""
    runs = [piece for name, piece in one.pieces.items() if name.startswith("run:")]
    return {run["name"]: run for run in runs if Path(run["root"]).parent == folder}


def readers() -> list[psutil.Process]:
    """The processes that look for a server of this process."""
    children = psutil.Process().children()
    return [child for child in children if tuple(child.cmdline()) == COMMAND]


def test_without_the_token_nothing_of_any_user_is_told(shared: Path) -> None:
    run_index.note(experiment(shared / "mine", {}), "mine")
    with serving(None, all_users=True) as server:
        assert server.first_state() is None
        assert b"mine" not in server.request("/")[2]
        assert server.request("/api/runs/events")[0] == 401
        assert readers() == [], "nobody who may look has asked"
        with viewer(server) as one:
            one.until(lambda _: runs_of(one, shared))
            key = runs_of(one, shared)["mine"]["key"]
            assert server.request(f"/api/{key}/events")[0] == 401
        assert len(readers()) == 1
    assert readers() == [], "it ends with the server"


def test_own_experiments_are_shown_and_opened(shared: Path) -> None:
    run_index.note(experiment(shared / "waiting", {"state": "PENDING"}), "waiting")
    with running(shared / "mine") as (paths, _):
        run_index.note(paths.root, "<b>mine")
        with serving(None, may_control=True, all_users=True) as server, viewer(server) as one:
            one.until(lambda _: len(runs_of(one, shared)) == 2)
            runs = runs_of(one, shared)
            assert runs["waiting"]["state"] == "interrupted"
            assert runs["waiting"]["counts"] == {"PENDING": 1}
            mine = runs["<b>mine"]
            assert (mine["state"], mine["may_open"]) == ("running", True)
            assert mine["user"] == user_name(os.geteuid())
            assert one.pieces["head"]["machine"]["cpus"] == os.cpu_count()
            with viewer(server, f"/api/{mine['key']}/events") as page:
                page.next()
                assert page.job("j0-s0")["state"] == "RUNNING"
            asked = {"verb": "pause", "jobs": ["j0-s0"]}
            status, answer = server.post(f"/api/{mine['key']}/control", asked)
            assert (status, "pause" in answer["message"]) == (200, True)


@only_root
def test_a_server_of_root_shows_what_others_run_and_refuses_to_open_or_stop_it(
    shared: Path,
) -> None:
    walkers = experiment(shared / "walkers", {}, {"state": "PENDING", "env_steps": 0}, uid=ANN)
    lock = walkers / "supervisor.lock"
    with Acting(ANN, walkers, {3: 1, 5: 2}):
        before = lock.read_bytes()
        with serving(None, may_control=True, all_users=True) as server, viewer(server) as one:
            one.until(lambda _: runs_of(one, shared))
            [run] = runs_of(one, shared).values()
            assert (run["user"], run["cpus"], run["eta_s"]) == (f"uid {ANN}", [3, 5], 80)
            assert run["memory_mib"] > 1
            assert run["may_open"] is False
            held = {3, 5}.intersection(range(os.cpu_count() or 1))
            assert one.pieces["head"]["machine"]["held"] == len(held)
            for path in ("events", "jobs/j0-s0", "jobs/j0-s0/log", "jobs/j0-s0/preview.png"):
                status, _, body = server.request(f"/api/{run['key']}/{path}", **with_token(server))
                assert status == 403
                assert f"belongs to uid {ANN}" in body.decode()
            status, answer = server.post(f"/api/{run['key']}/control", {"verb": "stop"})
            assert (status, "belongs to" in answer["problem"]) == (403, True)
        assert lock.read_bytes() == before
        assert {path.name for path in walkers.iterdir()} == {"summary.json", "supervisor.lock"}


class Liar(Acting):
    """A process of a user that says that it holds CPUs for another one's run."""

    @contextlib.contextmanager
    def held(self, run_dir: Path, cpus: dict[int, int]) -> Iterator[None]:
        holders = CpuHolders(holders_folder(), experiment="a lie", run_dir=str(run_dir))
        holders.publish(cpus)
        yield


@only_root
def test_who_names_the_run_directory_of_another_user_does_not_stand_in_its_place(
    shared: Path,
) -> None:
    mine = experiment(shared / "mine", {})
    run_index.note(mine, "mine")
    with Liar(BOB, mine, {1: 1}), serving(None, all_users=True) as server, viewer(server) as one:
        one.until(lambda _: len(runs_of(one, shared)) == 2)
        runs = {run["user"]: run for run in runs_of(one, shared).values()}
        told = runs[f"uid {BOB}"]
        assert (told["root"], told["cpus"], told["may_open"]) == (str(mine), [1], False)
        assert (runs["root"]["cpus"], runs["root"]["may_open"]) == ([], True)


@only_root
def test_who_may_only_read_the_run_of_another_user_is_told_whose_it_is(shared: Path) -> None:
    run_dir = make_run_dir(shared / "walkers", [Trained(state="PENDING")]).root
    for path in (run_dir, *run_dir.rglob("*")):
        path.chmod(0o755)
        os.chown(path, ANN, ANN)
    with pytest.raises(RunDirError, match=f"it belongs to uid {ANN}: ask uid {ANN}, or do it as"):
        done_by_owner.done_by(BOB, lambda: [control.ask(run_dir, ["j0-s0"], "pause")])


def test_nothing_is_imported_from_the_current_folder(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "json.py").write_text(f"open({str(shared / 'imported')!r}, 'w')\nimport nothing")
    run_index.note(experiment(shared / "mine", {}), "mine")
    monkeypatch.chdir(shared)
    with serving(None, all_users=True) as server, viewer(server) as one:
        one.until(lambda _: "runs" in one.pieces.get("head", {}))
        assert runs_of(one, shared).keys() == {"mine"}
    assert not (shared / "imported").exists()


class Giant(Acting):
    """A process of a user that says that it is one with an impossible number."""

    @contextlib.contextmanager
    def held(self, run_dir: Path, cpus: dict[int, int]) -> Iterator[None]:
        holders = CpuHolders(holders_folder(), experiment="giant", run_dir=str(run_dir))
        pytest.MonkeyPatch().setattr(os, "getpid", lambda: 1 << 80)
        holders.publish(cpus)
        yield


@only_root
def test_no_holder_of_a_user_makes_the_look_fail(shared: Path) -> None:
    run_index.note(experiment(shared / "mine", {}), "mine")
    walkers = experiment(shared / "walkers", {}, uid=ANN)
    with (
        Giant(BOB, walkers, {1: 1}),
        Acting(ANN, walkers, {3: 1}),
        serving(None, all_users=True) as server,
        viewer(server) as one,
    ):
        one.until(lambda _: runs_of(one, shared))
        assert runs_of(one, shared).keys() == {"mine", "walkers"}
        assert "process that looks" not in one.pieces["head"]["note"]


@only_root
def test_a_server_of_root_does_not_open_its_run_in_a_folder_of_another_user(shared: Path) -> None:
    (shared / "ann").mkdir()
    run_index.note(experiment(shared / "ann/walkers", {}), "walkers")
    os.chown(shared / "ann", ANN, ANN)
    with serving(None, may_control=True, all_users=True) as server, viewer(server) as one:
        one.until(lambda _: runs_of(one, shared / "ann"))
        [run] = runs_of(one, shared / "ann").values()
        assert (run["user"], run["may_open"], run["counts"]) == ("root", False, {})
        status, answer = server.post(f"/api/{run['key']}/control", {"verb": "stop"})
        assert (status, "others than root" in answer["problem"]) == (403, True)


@only_root
def test_the_owner_of_what_may_not_be_entered_is_named_and_root_is_asked_nothing(
    shared: Path,
) -> None:
    run_dir = experiment(shared / "walkers", {}, uid=ANN)
    summary = run_dir / "summary.json"
    assert done_by_owner.done_by(BOB, lambda: [ask_owner(summary)]) == [
        f"it belongs to uid {ANN}: ask uid {ANN}, or do it as uid {ANN}"
    ]
    assert ask_owner(summary) == ""


@only_root
def test_what_a_user_may_not_enter_is_not_opened_for_them(shared: Path) -> None:
    facts = machine_runs.RunFacts(
        run_dir=str(experiment(shared / "walkers", {}, uid=ANN)), name="walkers", state="running"
    )
    of_ann = machine_runs.MachineRun(uid=ANN, facts=facts)
    pilot = replace(of_ann, facts=replace(facts, run_dir=""))

    def opened() -> list[str]:
        return [str(machine_source._may_open(run)) for run in (of_ann, pilot)]

    assert done_by_owner.done_by(ANN, opened) == ["True", "False"]
    assert done_by_owner.done_by(BOB, opened) == ["False", "False"]


@pytest.mark.parametrize(
    ("accepted", "is_taken"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip; q=0", False),
        ("x-gzip", False),
        ("", False),
    ],
)
def test_a_page_is_compressed_for_who_takes_it_so(
    shared: Path, accepted: str, is_taken: bool
) -> None:
    with serving(shared) as server:
        headers = server.request("/assets/page.css", accept_encoding=accepted)[1]
    assert ("content-encoding" in headers) == is_taken


def test_a_reader_that_answers_wrongly_is_told_and_replaced(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = (sys.executable, "-c", "input(); print('[]', flush=True); input()")
    monkeypatch.setattr(machine_reader, "COMMAND", wrong)
    with serving(None, all_users=True) as server, viewer(server) as one:
        one.until(lambda _: "answered wrongly" in one.pieces.get("head", {}).get("note", ""))
        monkeypatch.setattr(machine_reader, "COMMAND", COMMAND)
        one.until(lambda _: one.pieces["head"]["note"] == "")


def test_a_reader_that_was_killed_is_told_and_replaced(shared: Path) -> None:
    run_index.note(experiment(shared / "mine", {}), "mine")
    with serving(None, all_users=True) as server, viewer(server) as one:
        one.until(lambda _: runs_of(one, shared))
        [first] = readers()
        first.send_signal(signal.SIGKILL)
        one.until(lambda _: "has ended" in one.pieces["head"]["note"])
        assert "mine" in runs_of(one, shared), "what was known is shown on"
        one.until(lambda _: one.pieces["head"]["note"] == "")
        [second] = readers()
        assert second.pid != first.pid


def test_experiments_that_are_gone_go_and_new_ones_come(shared: Path) -> None:
    run_index.note(experiment(shared / "mine", {}), "mine")
    with serving(None, all_users=True) as server, viewer(server) as one:
        one.until(lambda _: runs_of(one, shared))
        (shared / "mine").rename(shared / "other")
        run_index.note(shared / "other", "other")
        one.until(lambda _: runs_of(one, shared).keys() == {"other"})


def test_a_folder_and_all_users_cannot_both_be_shown(shared: Path) -> None:
    refused = invoke("serve", str(shared), "--all-users", cwd=shared)
    assert refused.returncode == 2
    assert "either --all-users or" in refused.stderr
