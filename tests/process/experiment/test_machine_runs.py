"""`list --all-users`: what root and others see of the experiments of all users, and that nothing in a
user's files makes root read, wait for or believe what it should not."""

from __future__ import annotations

import errno
import json
import os
import pwd
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_helpers import invoke
from supervisor_helpers import Experiment, make_job
from user_helpers import ANN, BOB, NAMES, ROW, Acting, only_root

from orchestrator.core.errors import RunDirError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory, run_index
from orchestrator.experiment.from_outside import machine_runs, resume_all
from orchestrator.experiment.from_outside.machine_runs import MachineRun
from orchestrator.experiment.processes import done_by_owner
from orchestrator.experiment.processes.done_by_owner import UnfinishedError
from orchestrator.ledger import summary
from orchestrator.machine import cpu_holders
from orchestrator.machine.cpu_holders import holders_folder


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ORCHESTRATOR_CPU_HOLDERS", str(tmp_path / "cpu-holders"))


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the homes of Ann and Bob, who are the only users besides root."""
    with tempfile.TemporaryDirectory() as folder:  # unlike pytest's, within reach of others
        Path(folder).chmod(0o755)
        accounts = []
        for uid, name in NAMES.items():
            home = Path(folder) / name
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
            fields = (name, "x", uid, uid, "", str(home), "/bin/sh")
            accounts.append(pwd.struct_passwd(fields))
        monkeypatch.setenv("ORCHESTRATOR_CPU_HOLDERS", f"{folder}/cpu-holders")
        assert cpu_holders.prepare(holders_folder()) is None
        monkeypatch.setattr(machine_runs.pwd, "getpwall", lambda: accounts)
        yield Path(folder)


def run_of(uid: int, homes: Path, name: str, *rows: dict[str, Any]) -> Path:
    """A run directory in a user's home, and in the index there."""
    home = homes / NAMES[uid]
    run_dir = home / "runs" / name
    run_dir.mkdir(parents=True)
    (run_dir / "supervisor.lock").touch()
    (run_dir / "summary.json").write_text(json.dumps([ROW | row for row in rows]))
    for path in (home, *home.rglob("*")):
        os.lchown(path, uid, uid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
        done_by_owner.done_by(uid, lambda: [str(run_index.note(run_dir, name))])
    return run_dir


def secret_of_root(homes: Path) -> Path:
    """A summary that root alone may read."""
    secret = homes / "secret.json"
    secret.write_text(json.dumps([ROW | {"state": "SUCCEEDED"}] * 7))
    secret.chmod(0o600)
    return secret


def found() -> dict[str, MachineRun]:
    runs = machine_runs.all_runs()
    assert runs.problems == []
    return {run.facts.name: run for run in runs.runs}


@only_root
def test_root_sees_the_runs_of_all_users_with_what_they_hold(homes: Path) -> None:
    walkers = run_of(ANN, homes, "walkers", {}, {"state": "PENDING", "env_steps": 0})
    run_of(BOB, homes, "hoppers", {"state": "PENDING"}, {"state": "SUCCEEDED"})
    run_of(BOB, homes, "done", {"state": "SUCCEEDED"}, {"state": "PAUSED", "cause": "rung"})
    run_of(BOB, homes, "resting", {"state": "PAUSED"})
    with Acting(ANN, walkers, {3: 1, 5: 2}) as ann:
        seen = found()
        assert seen.keys() == {"walkers", "hoppers", "done", "resting"}
        of_ann = seen["walkers"]
        assert (of_ann.uid, of_ann.facts.pid, of_ann.cpus) == (ANN, ann.pid, (3, 5))
        assert of_ann.facts.jobs == {"RUNNING": 1, "PENDING": 1}
        assert of_ann.facts.eta_s == (600 + 1000) / 20
        assert of_ann.memory_mib is not None
        assert of_ann.memory_mib > 1
        assert of_ann.load is not None
    states = {name: run.facts.state for name, run in seen.items()}
    assert states == {
        "walkers": "running",
        "hoppers": "interrupted",
        "done": "finished",
        "resting": "paused",
    }
    killed = found()["walkers"].facts
    assert (killed.state, killed.jobs) == ("interrupted", {"PENDING": 2}), (
        "its supervisor was killed"
    )


def killed_run(run_dir: Path, *running: str) -> Path:
    """A run directory with two jobs, of which a killed supervisor has left some running."""
    run_dir.mkdir()
    (run_dir / "supervisor.lock").touch()
    jobs = Experiment(run_dir, [make_job("one"), make_job("two")])
    for job_id in running:
        jobs.begin(job_id)
    summary.write(jobs.paths, jobs.ledger)
    jobs.ledger.close()
    run_index.note(run_dir, run_dir.name)
    return run_dir


def test_it_agrees_with_list_on_runs_that_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_runs.pwd, "getpwall", list)
    examining = tmp_path / "examining"
    examining.mkdir()
    (examining / "supervisor.lock").touch()
    run_index.note(examining, "examining")
    killed_run(tmp_path / "training", "one")
    listed = {run.entry.name: run for run in run_index.listed_runs()}
    seen = found()
    assert {name: (run.state, run.jobs) for name, run in listed.items()} == {
        "examining": ("interrupted", {}),
        "training": ("interrupted", {"PENDING": 2}),
    }
    for name, run in listed.items():
        facts = seen[name].facts
        assert (facts.state, facts.jobs, facts.problem) == (run.state, run.jobs, "")
    with run_directory.claim(examining):
        facts = found()["examining"].facts
        assert (facts.state, facts.pid, facts.problem) == ("running", os.getpid(), "")


@only_root
def test_a_run_with_a_long_path_and_odd_blanks_is_one_row_with_its_cpus(homes: Path) -> None:
    run_dir = run_of(ANN, homes, f"two  blanks\nand {'x' * 220}", {})
    with Acting(ANN, run_dir, {3: 1}):
        (run,) = machine_runs.all_runs().runs
    assert (run.facts.run_dir, run.facts.state, run.cpus) == (str(run_dir), "running", (3,))


@only_root
def test_others_see_what_runs_and_no_more_than_they_may_read(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walkers = run_of(ANN, homes, "walkers", {})
    run_of(BOB, homes, "hoppers", {"state": "PENDING"})
    monkeypatch.setenv("XDG_STATE_HOME", str(homes / "bob/.local/state"))

    def as_bob() -> list[str]:
        return [repr((run.uid, run.facts, run.cpus)) for run in machine_runs.all_runs().runs]

    with Acting(ANN, walkers, {3: 1}) as ann:
        hidden = done_by_owner.done_by(BOB, as_bob)
        (homes / "ann").chmod(0o755)
        shown = done_by_owner.done_by(BOB, as_bob)
    (of_ann,) = [line for line in hidden if f"({ANN}" in line]
    assert f"pid={ann.pid}" in of_ann
    assert "Permission denied" in of_ann
    assert "(3,)" in of_ann
    assert any("hoppers" in line and "interrupted" in line for line in hidden)
    (of_ann,) = [line for line in shown if f"({ANN}" in line]
    assert "'RUNNING': 1" in of_ann


@only_root
def test_nothing_in_a_users_files_leads_root_astray(homes: Path) -> None:
    secret = secret_of_root(homes)
    of_root = homes / "of-root"
    of_root.mkdir(mode=0o700)
    (of_root / "supervisor.lock").touch()
    (of_root / "summary.json").write_text(secret.read_text())
    contents = ("link", "pipe", "large", "deep", "odd", "alien", "behind", "endless")
    places = {name: run_of(ANN, homes, name, {}) for name in contents}
    for name in ("link", "pipe", "large", "endless"):
        (places[name] / "summary.json").unlink()
    (places["link"] / "summary.json").symlink_to(secret)
    os.mkfifo(places["pipe"] / "summary.json", 0o666)
    (places["pipe"] / "supervisor.lock").unlink()
    os.mkfifo(places["pipe"] / "supervisor.lock", 0o666)
    (places["large"] / "summary.json").touch()
    os.truncate(places["large"] / "summary.json", machine_runs.LARGEST_SUMMARY_BYTES + 1)
    (places["endless"] / "summary.json").symlink_to("/dev/zero")
    (places["deep"] / "summary.json").write_text("[" * 100_000)
    (places["odd"] / "summary.json").write_text('[{"state": "FLYING"}, 3]')
    (places["alien"] / "supervisor.lock").write_text(
        json.dumps({"pid": os.getpid(), "pid_start": 1.0, "host": "\x1b[31m", "since": "ever"})
    )
    for path in places["behind"].iterdir():
        path.unlink()
    places["behind"].rmdir()
    places["behind"].symlink_to(of_root)
    for path in (homes / "ann").rglob("*"):
        os.lchown(path, ANN, ANN)
    seen = found()
    problems = {name: run.facts.problem for name, run in seen.items() if run.facts.problem}
    assert problems.keys() == {"link", "pipe", "large", "deep", "odd", "behind", "endless"}
    for name in ("link", "behind"):
        assert "Permission denied" in problems[name], "to Ann, whose link it is"
    assert all(run.facts.jobs == {} for name, run in seen.items() if name in problems)
    assert all(run.load is None for run in seen.values()), "no process is Ann's"


def noted_by_root(run_dir: Path) -> Path:
    """A run directory that root has made and run."""
    run_dir.mkdir()
    (run_dir / "supervisor.lock").touch()
    (run_dir / "summary.json").write_text(json.dumps([ROW]))
    run_index.note(run_dir, run_dir.name)
    return run_dir


def put_in_its_place(run_dir: Path, secret: Path) -> None:
    """What Ann can do with a run of root in her folder: another one that leads to ``secret``."""
    run_dir.rename(run_dir.with_name("away"))
    run_dir.mkdir()
    (run_dir / "supervisor.lock").touch()
    (run_dir / "summary.json").symlink_to(secret)
    os.chown(run_dir, ANN, ANN)


@only_root
def test_root_does_not_read_what_a_user_has_put_in_the_place_of_its_run(homes: Path) -> None:
    noted_by_root(homes / "its-own")
    put_in_its_place(noted_by_root(homes / "ann/walkers"), secret_of_root(homes))
    assert found().keys() == {"its-own"}
    assert [run.entry.name for run in run_index.listed_runs()] == ["its-own"]
    assert [one.name for one in resume_all.resume_all()] == ["its-own"]


@only_root
def test_root_does_not_read_what_others_may_write_into(homes: Path) -> None:
    run_dir = noted_by_root(homes / "ann/walkers")
    run_dir.rename(run_dir.with_name("away"))
    shared = homes / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "supervisor.lock").touch()
    run_dir.symlink_to(shared)
    assert run_index.listed_runs() == []
    assert list(resume_all.resume_all()) == []


@only_root
def test_root_is_told_of_its_runs_that_are_passed_over_as_all_may_write_into_them(
    homes: Path,
) -> None:
    noted_by_root(homes / "its-own")
    assert run_index.passed_over() == ""
    for name in ("open", "wide"):
        noted_by_root(homes / name).chmod(0o777)
    put_in_its_place(noted_by_root(homes / "ann/walkers"), secret_of_root(homes))
    (homes / "ann/walkers").chmod(0o777)
    (problem,) = machine_runs.all_runs().problems
    for command in (("list",), ("list", "--all-users"), ("resume", "--all")):
        (warning,) = invoke(*command, cwd=homes).stderr.splitlines()
        for told in (problem, warning):
            assert "2 run directories" in told
            assert "chmod o-w" in told
            assert str(homes / "open") in told
            assert str(homes / "wide") in told
            assert "walkers" not in told, "that is Ann's"
    (homes / "wide").chmod(0o755)
    (homes / "open").chmod(0o755)
    assert run_index.passed_over() == ""


def test_others_than_root_do_not_look_for_what_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted_by_root(tmp_path / "walkers")
    looked_at: list[Path] = []
    monkeypatch.setattr(os, "geteuid", lambda: ANN)
    monkeypatch.setattr(run_index, "is_gone", looked_at.append)
    assert run_index.passed_over() == ""
    assert looked_at == []


@only_root
def test_root_reads_its_run_in_a_users_folder_with_the_rights_of_this_user(homes: Path) -> None:
    run_dir = noted_by_root(homes / "ann/walkers")
    assert found()["walkers"].facts.jobs == {"PENDING": 1}, "all may read it"
    (run_dir / "summary.json").chmod(0o600)
    assert "Permission denied" in found()["walkers"].facts.problem


@only_root
def test_root_with_the_environment_of_a_user_has_its_own_index(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = pwd.struct_passwd(("root", "x", 0, 0, "", str(homes / "root"), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(homes / "ann"))
    noted_by_root(homes / "walkers")
    assert list((homes / "ann").iterdir()) == []
    assert run_index.folder() == homes / "root/.local/state/orchestrator/runs"
    assert [entry.name for entry in run_index.entries()] == ["walkers"]


@only_root
def test_a_home_that_cannot_be_looked_at_hides_nobody_else(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(ANN, homes, "walkers", {})
    run_of(BOB, homes, "hoppers", {})
    glob = Path.glob
    is_dir = Path.is_dir
    server = os.getpid()

    def refuse(path: Path) -> None:
        if homes / "ann" in (path, *path.parents):
            assert os.getpid() != server, "root's own process does not touch it"
            raise OSError(errno.ESTALE, "Stale file handle")

    def refusing_is_dir(path: Path, **options: bool) -> bool:
        refuse(path)
        return is_dir(path, **options)

    def refusing_glob(path: Path, pattern: str) -> Iterator[Path]:
        refuse(path)
        return iter(glob(path, pattern))

    monkeypatch.setattr(Path, "is_dir", refusing_is_dir)
    monkeypatch.setattr(Path, "glob", refusing_glob)
    assert found().keys() == {"hoppers"}


@only_root
def test_a_process_that_is_not_the_users_is_not_measured_for_them(homes: Path) -> None:
    run_dir = run_of(ANN, homes, "walkers", {})
    with Acting(ANN, run_dir, {0: 1}):
        lock = run_dir / "supervisor.lock"
        (pid,) = {run.facts.pid for run in found().values()}
        lock.write_text(lock.read_text().replace(f'"pid": {pid}', f'"pid": {os.getpid()}'))
        (run,) = found().values()
        assert (run.facts.pid, run.load, run.memory_mib) == (os.getpid(), None, None)


def hang_at_first_touch(
    homes: Path, is_meant: Callable[[Path], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run directories whose disk does not answer."""
    pipe = homes / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    is_run_directory = run_directory.is_run_directory
    root = os.getpid()

    def hanging(paths: RunPaths) -> bool:
        if os.getpid() != root and is_meant(paths.root):
            os.open(pipe, os.O_RDONLY)
        return is_run_directory(paths)

    monkeypatch.setattr(run_directory, "is_run_directory", hanging)


@only_root
def test_a_user_who_keeps_root_waiting_is_named_and_the_others_are_shown(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("walkers", "runners", "crawlers")
    runs_of_ann = [run_of(ANN, homes, name, {}) for name in names]
    run_of(BOB, homes, "hoppers", {})
    monkeypatch.setattr(machine_runs, "LIMIT_S", 5.0)
    touched = Counter[int]()

    def is_second_of_ann(run_dir: Path) -> bool:
        touched[os.getpid()] += 1
        return run_dir in runs_of_ann and touched[os.getpid()] == 2

    hang_at_first_touch(homes, is_second_of_ann, monkeypatch)
    users = machine_runs.LateUsers()
    for _ in range(2):  # the second time Ann is not waited for
        runs = machine_runs.all_runs(users)
        states = {run.facts.name: (run.facts.state, run.facts.problem) for run in runs.runs}
        assert states.pop("hoppers") == ("interrupted", "")
        assert states.keys() == set(names)
        assert Counter(states.values()) == {
            ("interrupted", ""): 1,
            ("unreadable", machine_runs.NO_TIME): 2,
        }
        (problem,) = runs.problems
        assert f"uid {ANN}" in problem
        assert "within 5 s" in problem
        assert f"sudo -u '#{ANN}'" in problem, "what to do"


@only_root
def test_a_run_of_root_that_is_read_as_a_user_and_is_late_hides_no_run_of_this_user(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(ANN, homes, "walkers", {})
    of_root = noted_by_root(homes / "ann/of-root")
    monkeypatch.setattr(machine_runs, "LIMIT_S", 2.0)
    monkeypatch.setattr(machine_runs, "LATE_LIMIT_S", 60.0)
    hang_at_first_touch(homes, of_root.__eq__, monkeypatch)
    users = machine_runs.LateUsers()
    for _ in range(2):  # the second time root's run is not waited for
        runs = machine_runs.all_runs(users)
        assert sorted((run.uid, run.facts.name, run.facts.problem) for run in runs.runs) == [
            (0, "of-root", machine_runs.NO_TIME),
            (ANN, "walkers", ""),
        ]
        assert len(runs.problems) == 1


@only_root
def test_what_is_gone_is_not_shown_but_for_what_holds_cpus(homes: Path) -> None:
    run_of(ANN, homes, "hoppers", {})
    gone = run_of(ANN, homes, "gone", {})
    walkers = run_of(ANN, homes, "walkers", {})
    with Acting(ANN, walkers, {3: 1}):
        for run_dir in (gone, walkers):
            run_dir.rename(homes / run_dir.name)
        seen = found()
    assert seen.keys() == {"hoppers", "walkers"}
    assert (seen["walkers"].facts.state, seen["walkers"].cpus) == ("running", (3,))
    assert "No such file" in seen["walkers"].facts.problem


@only_root
def test_what_was_read_before_the_process_was_killed_is_shown(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("walkers", "runners"):
        run_of(ANN, homes, name, {})
    facts = machine_runs._facts
    read: list[str] = []

    def killed(run_dir: Path, name: str) -> machine_runs.RunFacts:
        read.append(name)
        if len(read) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return facts(run_dir, name)

    monkeypatch.setattr(machine_runs, "_facts", killed)
    users = machine_runs.LateUsers()
    for _ in range(2):  # it may be read the next time
        runs = machine_runs.all_runs(users)
        assert Counter((run.facts.state, run.facts.problem) for run in runs.runs) == {
            ("interrupted", ""): 1,
            ("unreadable", machine_runs.NO_TIME): 1,
        }
        (problem,) = runs.problems
        assert f"uid {ANN}" in problem
        assert "before its work" in problem
    monkeypatch.setattr(machine_runs, "_facts", facts)
    assert machine_runs.all_runs(users).problems == []


@only_root
@pytest.mark.parametrize("is_late", [False, True])
def test_an_answer_that_is_none_of_ours_is_a_problem_of_its_user(
    is_late: bool, homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(*_: object, **__: object) -> list[str]:
        if is_late:
            raise UnfinishedError("too late", done=["{}"], is_late=True)
        return ["{}"]

    monkeypatch.setattr(machine_runs, "done_by", another)
    users = machine_runs.LateUsers()
    for _ in range(2):
        runs = machine_runs.all_runs(users)
        assert runs.runs == []
        for uid, problem in zip((ANN, BOB), runs.problems, strict=True):
            assert f"uid {uid} cannot be read" in problem


@only_root
def test_who_was_late_is_not_waited_for_in_the_next_looks_and_shortens_this_one(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, float | None]] = []

    def late(owner: int, _: object, *, limit_s: float | None = None) -> list[str]:
        asked.append((owner, limit_s))
        raise UnfinishedError("too late", is_late=True)

    monkeypatch.setattr(machine_runs, "done_by", late)
    users = machine_runs.LateUsers()
    for _ in range(2):
        problems = machine_runs.all_runs(users).problems
        assert [f"uid {uid}" in one for uid, one in zip((ANN, BOB), problems, strict=True)] == [
            True,
            True,
        ]
    limit_s = machine_runs.LIMIT_S
    assert asked == [(ANN, limit_s), (BOB, machine_runs.LATE_LIMIT_S), (BOB, limit_s)]


class Clock(SimpleNamespace):
    """In place of the module ``time``: goes on only where a test says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None: ...


@only_root
def test_where_time_is_short_disk_space_is_left_out_first(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("walkers", "runners"):
        run_of(ANN, homes, name, {})
    clock = Clock()
    monkeypatch.setattr(machine_runs, "time", clock)
    monkeypatch.setattr(machine_runs, "MOST_FILES", 1 << 60)

    def without_end(folder: Path) -> Iterator[os.stat_result]:
        while True:
            clock.now += 1.0
            yield folder.stat()

    monkeypatch.setattr(machine_runs, "_statuses", without_end)
    seen = found()
    assert {name: (run.facts.jobs, run.facts.disk_mib) for name, run in seen.items()} == {
        "walkers": ({"PENDING": 1}, None),
        "runners": ({"PENDING": 1}, None),
    }


@only_root
def test_what_there_is_no_time_for_is_named_and_the_rest_is_shown(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("walkers", "runners", "hoppers"):
        run_of(ANN, homes, name, {})
    clock = Clock()
    monkeypatch.setattr(machine_runs, "time", clock)
    facts = machine_runs._facts

    def slow(run_dir: Path, name: str) -> machine_runs.RunFacts:
        clock.now += machine_runs.LIMIT_S / 2
        return facts(run_dir, name)

    monkeypatch.setattr(machine_runs, "_facts", slow)
    seen = found()
    assert seen.keys() == {"walkers", "runners", "hoppers"}
    states = Counter((run.facts.state, run.facts.problem) for run in seen.values())
    assert states == {("interrupted", ""): 2, ("unreadable", machine_runs.NO_TIME): 1}


@only_root
def test_what_fails_as_another_user_is_said_with_its_path_and_whom_to_ask(homes: Path) -> None:
    secret = secret_of_root(homes)
    missing = homes / "ann/missing"
    for path, expected in (
        (secret, f"{secret}: Permission denied; it belongs to root: ask root"),
        (missing, f"{missing}: No such file or directory; ask uid {ANN}"),
    ):
        with pytest.raises(RunDirError) as failed:
            done_by_owner.done_by(ANN, lambda path=path: [path.read_text()])
        assert str(failed.value).startswith(expected)


@only_root
def test_who_acts_for_a_user_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(done_by_owner, "MOST_BYTES", 1000)
    with pytest.raises(RunDirError, match="without end"):
        done_by_owner.done_by(ANN, lambda: ["x" * 100_000])
    with pytest.raises(UnfinishedError) as late:  # long before the test's own limit
        done_by_owner.done_by(ANN, lambda: [str(time.sleep(6000))], limit_s=0.2)
    assert late.value.is_late


@only_root
def test_who_has_ended_before_its_work_or_failed_has_done_a_part() -> None:
    def ended() -> Iterator[str]:
        yield "a part"
        os._exit(0)

    def failed() -> Iterator[str]:
        yield "a part"
        raise RunDirError("no more")

    for work, why in ((ended, "before its work"), (failed, "no more")):
        with pytest.raises(UnfinishedError, match=why) as unfinished:
            done_by_owner.done_by(ANN, work)
        assert (unfinished.value.done, unfinished.value.is_late) == (["a part"], False)


@only_root
@pytest.mark.parametrize("answer", [b'{"done": "a\n', b"[]\n", b'{"error": ["a"]}\n', b"\xff\n"])
def test_an_answer_that_is_none_of_ours_is_told_as_such(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_to_end = done_by_owner._read_to_end

    def another(pipe: int, content: bytearray, limit_s: float | None) -> bool:
        has_ended = read_to_end(pipe, content, limit_s)
        content[:] = answer
        return has_ended

    monkeypatch.setattr(done_by_owner, "_read_to_end", another)
    with pytest.raises(RunDirError, match="has not answered as it should"):
        done_by_owner.done_by(ANN, lambda: ["a"])


def test_the_command_filters_and_sorts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The homes of all users of this machine are looked at by a process each.
    monkeypatch.setattr(machine_runs.pwd, "getpwall", list)
    for number, name in enumerate(("b", "a", "c")):
        run_dir = tmp_path / name
        run_dir.mkdir()
        (run_dir / "supervisor.lock").touch()
        (run_dir / "filling").write_bytes(b"x" * (number << 16))
        state = "SUCCEEDED" if name == "c" else "PENDING"
        (run_dir / "summary.json").write_text(json.dumps([ROW | {"state": state}]))
        run_index.note(run_dir, name)

    def listed(*options: str) -> list[str]:
        done = invoke("list", "--all-users", "--json", *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return [row["name"] for row in json.loads(done.stdout)]

    mine = ("--filter", str(tmp_path))
    assert listed(*mine) == ["a", "b"]
    assert listed(*mine, "--all", "--sort", "disk") == ["c", "a", "b"]
    # Others may have experiments on this machine, too.
    interrupted = listed("--filter", "interrupted")
    assert [name for name in interrupted if name in ("a", "b", "c")] == ["a", "b"]
    assert listed("--filter", f"INTERrupted {str(tmp_path).upper()}") == ["a", "b"]
    assert listed("--filter", "no such thing") == []
    shown = invoke("list", "--all-users", *mine, cwd=tmp_path).stdout
    assert "2 experiments of 1 user; 0 CPUs are held" in shown
    assert "1 experiment that finished (--all" in shown
    shown = invoke("list", "--all-users", "--filter", f"{tmp_path}/c", cwd=tmp_path).stdout
    assert "1 experiment that finished (--all" in shown, "although none is shown"
    shown = invoke("list", "--all-users", "--all", "--filter", "no such thing", cwd=tmp_path).stdout
    assert "without the words of --filter" in shown
    assert "of any user" not in shown
    assert invoke("list", "--sort", "disk", cwd=tmp_path).returncode == 2
    assert invoke("list", "--all-users", "--sort", "colour", cwd=tmp_path).returncode == 2
