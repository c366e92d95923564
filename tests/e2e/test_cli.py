"""The command line: what is printed where, and with which exit code."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import tomllib
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import (
    HOPPER,
    Experiment,
    Run,
    give,
    invoke,
    odd,
    succeed,
    wait_until,
    write_experiment,
)

from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.environment_variables import THREAD_VARIABLES
from orchestrator.experiment import run_directory
from orchestrator.jobfile import json_schema

RUN_OPTIONS = (
    "--run-dir",
    "--max-parallel",
    "--learner",
    "--executor",
    "--fresh",
    "--on-change",
    "--set",
    "--grace",
    "--dry-run",
    "--json",
    "--help",
)
HELP = {
    (): (
        "run",
        "status",
        "logs",
        "stop",
        "retry",
        "pause",
        "resume",
        "set",
        "reload",
        "doctor",
        "schema",
    ),
    ("run",): RUN_OPTIONS,
    ("status",): ("RUN_DIR", "--watch", "--exit-code", "--json"),
    ("wait",): ("RUN_DIR", "[JOB]", "--timeout"),
    ("logs",): ("RUN_DIR", "JOB", "--follow", "-f", "--lines", "-n", "--attempt"),
    ("stop",): ("RUN_DIR", "[JOB]"),
    ("retry",): ("RUN_DIR", "[JOB]"),
    ("pause",): ("RUN_DIR", "JOB"),
    ("resume",): ("RUN_DIR", "[JOB]"),
    ("reload",): ("RUN_DIR", "[JOBS.toml]"),
    ("set",): ("RUN_DIR", "max_parallel=N"),
    ("doctor",): ("--json",),
    ("schema",): ("--help",),
}


@pytest.mark.parametrize("path", HELP, ids=lambda path: " ".join(path) or "orchestrator")
def test_help_names_every_option(path: tuple[str, ...], tmp_path: Path) -> None:
    done = succeed(*path, "--help", cwd=tmp_path)
    assert done.stderr == ""
    for name in HELP[path]:
        assert name in done.stdout
    assert "SpecError" not in done.stdout


def test_version_is_that_of_the_package(tmp_path: Path) -> None:
    project = tomllib.loads((commands.REPOSITORY / "pyproject.toml").read_text())["project"]
    assert give("--version", cwd=tmp_path).stdout == f"{project['name']} {project['version']}\n"


def test_schema_command_writes_the_schema_to_a_file(tmp_path: Path) -> None:
    assert not succeed("schema", "--to", "jobs.schema.json", cwd=tmp_path).stdout
    assert json.loads((tmp_path / "jobs.schema.json").read_text()) == json_schema()


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("run",), "Missing argument"),
        (("run", "jobs.toml", "--max-paralel", "2"), "--max-parallel"),
        (("run", "jobs.toml", "--max-parallel", "0"), "expected a whole number from 1 on"),
        (("run", "jobs.toml", "--on-change", "perhaps"), "restart"),
        (("frobnicate",), "No such command"),
        (("run", "job.toml"), 'did you mean "jobs.toml"?'),
        (("run", "jobs.toml", "--executor", "slrm"), "valid: local"),
        (("run", "jobs.toml", "--set", "n_envs"), "expected key=value"),
        (("run", "jobs.toml", "--set", "n_evs=3"), 'did you mean "n_envs"?'),
        (("run", "jobs.toml", "--learner", "fsat"), "--set learner"),
        (("status", "nowhere"), "no such run directory"),
        (("logs", "nowhere", "job"), "no such run directory"),
        (("stop", "nowhere"), "no such run directory"),
        (("retry", "."), "is not a run directory"),
        (("pause", "nowhere", "job"), "no such run directory"),
        (("reload", "nowhere"), "no such run directory"),
        (("set", "nowhere", "max_parallel=2"), "no such run directory"),
        (("set", "nowhere", "max_parallel"), "expected max_parallel=N"),
        (("set", "nowhere", "order=as-listed"), "expected max_parallel=N"),
        (("set", "nowhere", "max_parallel=0"), "a whole number from 1"),
        *(
            ((*given,), f"{what}; expected a value")
            for given, what in (
                (("clean", ""), "argument 2 is empty"),
                (("stop", "run", ""), "argument 3 is empty"),
                (("run", "jobs.toml", "--run-dir", ""), "argument 4 is empty"),
                (("run", "jobs.toml", "--run-dir="), "--run-dir= has no value"),
            )
        ),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_explained_on_standard_error_and_ends_with_2(
    arguments: tuple[str, ...], fragment: str, tmp_path: Path
) -> None:
    write_experiment(tmp_path, {"name": "hopper", "xml": commands.HOPPER})
    before = sorted(tmp_path.rglob("*"))
    done = invoke(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert fragment in " ".join(done.stderr.replace("│", " ").split())
    assert sorted(tmp_path.rglob("*")) == before


def test_run_ends_with_0_and_a_table_from_first_to_last_return(finished: Experiment) -> None:
    done = succeed("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
    assert done.stderr == ""
    assert "2 jobs were finished before" in done.stdout
    rows = commands.summary(finished.run_dir)
    for job_id, row in rows.items():
        first, last = f"{row['ep_rew_mean_first']:,.1f}", f"{row['ep_rew_mean']:,.1f}"
        assert re.search(
            rf"^{job_id} +SUCCEEDED +{re.escape(first)} → +{re.escape(last)} ",
            done.stdout,
            re.MULTILINE,
        )
    assert not re.search(" $", done.stdout, re.MULTILINE), "blanks at the end of a line"


def test_everything_named_in_the_design_lies_in_the_run_directory(finished: Experiment) -> None:
    for name in (
        "experiment.toml",
        "provenance.json",
        "ledger.sqlite3",
        "summary.json",
        "summary.csv",
    ):
        assert (finished.run_dir / name).is_file(), name
    assert (finished.run_dir / "experiment.toml").read_bytes() == finished.jobs.read_bytes()
    job = finished.run_dir / "jobs/balancer-s0"
    for name in (
        "spec.json",
        "robot/balancer.xml",
        "attempts/0/worker.log",
        "attempts/0/exit.json",
        "progress.csv",
        "timings.csv",
        "model.zip",
        "vecnormalize.pkl",
        "eval.json",
    ):
        assert (job / name).is_file(), name
    assert not list(finished.run_dir.rglob("*.tmp"))
    assert not (finished.run_dir / ".staging").exists()
    with (finished.run_dir / "summary.csv").open(newline="") as file:
        assert [row["job_id"] for row in csv.DictReader(file)] == ["hopper-s0", "balancer-s0"]


def test_status_json_is_the_rows_of_summary_json(finished: Experiment) -> None:
    done = succeed("status", "run", "--json", cwd=finished.cwd)
    assert json.loads(done.stdout) == json.loads((finished.run_dir / "summary.json").read_text())


def test_status_watch_ends_when_nobody_is_at_work(finished: Experiment) -> None:
    done = succeed("status", "run", "--watch", cwd=finished.cwd)
    assert "2 succeeded" in done.stdout
    assert "No supervisor is running." in done.stdout


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Run]:
    """One job that succeeded and one that failed, with the events of their run; not to be
    changed."""
    cwd = tmp_path_factory.mktemp("mixed")
    jobs = write_experiment(cwd, odd("good", "nothing"), odd("bad", "nothing"))
    with Run(jobs, "--run-dir", "run", cwd=cwd, typed=commands.instant, OMP_NUM_THREADS="7") as run:
        assert run.end() == 1
    return Experiment(cwd, jobs, cwd / "run"), run


@pytest.mark.nightly
def test_json_is_one_object_a_line_and_nothing_else(mixed: tuple[Experiment, Run]) -> None:
    _, run = mixed
    assert run.stderr == ""
    assert run.kinds("good-s0") == ["launched", "succeeded"]
    assert run.kinds("bad-s0") == ["launched", "failed"]
    assert all(event.keys() >= {"time", "event", "message"} for event in run.events)
    assert (run.events[-1]["event"], run.events[-1]["exit_code"]) == ("ended", 1)
    failed = next(event for event in run.events if event["event"] == "failed")
    assert (failed["state"], failed["cause"], failed["number"]) == ("FAILED", "error", 0)


def test_provenance_has_versions_and_machine(mixed: tuple[Experiment, Run]) -> None:
    run_dir = mixed[0].run_dir
    (session,) = json.loads((run_dir / "provenance.json").read_text())
    assert session["versions"]["stable-baselines3"]
    assert session["thread_variables"]["OMP_NUM_THREADS"] == "7"
    assert session["online_cpus"] >= len(session["cpus"]) > 0


def test_failed_jobs_are_explained_and_run_again_only_after_retry(
    mixed: tuple[Experiment, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)
    cwd = tmp_path / "mixed"
    shutil.copytree(mixed[0].cwd, cwd)
    assert "bad-s0  ValueError: the knee fell off" in invoke("status", "run", cwd=cwd).stdout
    again = invoke("run", "jobs.toml", "--run-dir", "run", cwd=cwd)
    assert again.returncode == 1
    assert "bad-s0  ValueError: the knee fell off" in again.stdout
    assert "odd.py:" in again.stdout
    assert re.search("`retry`.*: bad-s0", again.stdout)

    assert "nothing to stop" in invoke("stop", "run", cwd=cwd).stdout
    assert "1 job (bad-s0)" in invoke("retry", "run", cwd=cwd).stdout
    rows = commands.summary(cwd / "run")
    assert rows["bad-s0"]["state"] == "PENDING"
    assert json.loads(invoke("status", "run", "--json", cwd=cwd).stdout) == list(rows.values())

    with (cwd / "odd.py").open("a") as code:
        code.write("# as the user has changed it since\n")
    retried = succeed("run", "jobs.toml", "--run-dir", "run", cwd=cwd)
    assert re.search(
        f"changed .*: Python files below {cwd}.* bits", " ".join(retried.stdout.split())
    )
    refused = invoke("retry", "run", "bad-s0", cwd=cwd)
    assert refused.returncode == 2
    assert "bad-s0 is SUCCEEDED" in refused.stderr


@pytest.mark.parametrize(
    "as_json",
    [pytest.param(False, id="table", marks=pytest.mark.nightly), pytest.param(True, id="json")],
)
def test_dry_run_launches_nothing_and_leaves_nothing_behind(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "max_parallel = 1"
    short = {"name": "short", "xml": commands.HOPPER, "total_timesteps": 128}
    jobs = write_experiment(
        tmp_path / "work", short, {"name": "long", "xml": commands.HOPPER}, head=head
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)  # asks for the variable again
    before = sorted(tmp_path.rglob("*"))
    done = invoke("run", jobs, "--dry-run", *["--json"] * as_json, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.rglob("*")) == before
    if as_json:
        plan = json.loads(done.stdout)
        assert [job["job_id"] for job in plan["jobs"]] == ["long-s0", "short-s0"]
        assert plan["jobs_at_once"] == 1
        assert plan["jobs"][0]["ppo"]["n_steps"] == 64
    else:
        assert re.search(
            "^tiny: 2 jobs, 1 at once on CPU.*, in this order, into runs/tiny$", done.stdout, re.M
        )
        assert done.stdout.index("long-s0") < done.stdout.index("short-s0")


def test_overrides_reach_the_jobs(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {"name": "hopper", "xml": commands.HOPPER})
    arguments = (
        "--dry-run",
        "--json",
        "--set",
        "ppo.n_epochs=3",
        "--set",
        "total_timesteps=256",
        "--max-parallel",
        "1",
        "--learner",
        "sb3",
    )
    plan = json.loads(invoke("run", jobs, *arguments, cwd=tmp_path).stdout)
    assert plan["jobs_at_once"] == 1
    assert plan["jobs"][0]["total_timesteps"] == 256
    assert plan["jobs"][0]["ppo"]["n_epochs"] == 3
    assert plan["jobs"][0]["learner"] == "sb3"
    assert plan["jobs"][0]["resources"]["memory_mib"] == 2048


def test_logs_show_the_end_or_all_of_what_a_worker_printed(finished: Experiment) -> None:
    log = finished.run_dir / "jobs/hopper-s0/attempts/0/worker.log"
    log.write_text("".join(f"line {number} é\n" for number in range(100_000)))
    assert (
        invoke("logs", "run", "hop", "-n", "2", cwd=finished.cwd).stdout
        == "line 99998 é\nline 99999 é\n"
    )
    assert invoke("logs", "run", "hopper-s0", "-n", "0", cwd=finished.cwd).stdout == log.read_text()
    assert (
        invoke("logs", "run", "hopper-s0", "-f", "-n", "1", cwd=finished.cwd).stdout
        == "line 99999 é\n"
    )


def test_without_a_run_directory_the_only_one_is_shown_or_all_are_listed(
    finished: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "XDG_STATE_HOME", str(tmp_path / "state")
    )  # whose list no other test changes
    below = finished.cwd / "project"
    (below / "runs").mkdir(parents=True)
    finished.run_dir.rename(below / "runs/one")
    for cwd in (below, below / "runs", below / "runs/one"):
        assert "hopper-s0" in invoke("status", cwd=cwd).stdout
        assert "hopper-s0" in invoke("logs", cwd=cwd).stdout
    shutil.copytree(
        below / "runs/one", below / "runs/one.20260101T000000"
    )  # as `--fresh` leaves one
    assert "hopper-s0" in invoke("status", cwd=below).stdout
    shutil.copytree(below / "runs/one", below / "runs/two")
    for words in (["status"], ["logs"]):
        done = invoke(*words, cwd=below)
        assert (done.returncode, done.stdout) == (0, invoke("list", cwd=below).stdout)
    refused = invoke("status", "--watch", cwd=below)
    assert (refused.returncode, "name a run directory" in refused.stderr) == (2, True)


@pytest.mark.nightly
def test_logs_and_status_follow_until_all_is_over(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("deaf", "go_deaf"))
    with Run(
        jobs, "--run-dir", "run", "--grace", "0.2", cwd=tmp_path, typed=commands.stubbed
    ) as run:
        run.until("launched")
        followers = [
            commands.start(commands.command(*arguments), cwd=tmp_path, stderr=subprocess.STDOUT)
            for arguments in (("logs", "run", "deaf", "-f"), ("status", "run", "--watch"))
        ]
        logs, status = followers
        assert logs.stdout is not None
        assert status.stdout is not None
        assert "deaf\n" in logs.stdout
        assert any("1 running" in line for line in status.stdout)
        invoke("stop", "run", "deaf", cwd=tmp_path)
        assert run.end() == 1
        logs.communicate(timeout=commands.PATIENCE_S)
        last_lines, _ = status.communicate(timeout=commands.PATIENCE_S)
    assert [one.returncode for one in followers] == [0, 0]
    assert "1 cancelled" in last_lines


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("logs", "run", "hoper-s0"), "no such job; jobs here: hopper-s0"),
        (
            ("logs", "run", "hopper", "--attempt", "3"),
            "has 1 attempt, numbered from 1; there is no attempt 3",
        ),
        (("logs", "run", "-f"), "name a job"),
        (("stop", "run", "hopper"), "hopper-s0 is SUCCEEDED"),
        (("retry", "run", "nobody"), "no such job"),
    ],
    ids=" ".join,
)
def test_a_job_that_is_not_there_or_not_fit_is_named(
    arguments: tuple[str, ...], fragment: str, finished_once: Experiment
) -> None:
    done = invoke(*arguments, cwd=finished_once.cwd)
    assert (done.returncode, done.stdout) == (2, "")
    assert fragment in done.stderr


def test_stop_and_cancel_reach_a_supervisor_at_work(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "wait"), odd("two", "wait"), odd("three", "wait"))
    with Run(
        jobs, "--run-dir", "run", "--max-parallel", "2", cwd=tmp_path, typed=commands.stubbed
    ) as run:
        run.until("launched", "two-s0")
        other = ("--run-dir", "run", "--set", "total_timesteps=99")
        held = invoke("run", jobs, *other, cwd=tmp_path)
        assert held.returncode == 2
        holder = run_directory.holder(RunPaths(tmp_path / "run"))
        assert f"held by another supervisor ({holder})" in held.stderr
        shown = invoke("status", "run", cwd=tmp_path)
        assert f"Supervised by {holder}" in shown.stdout
        assert "asked its supervisor to cancel" in invoke("stop", "run", "one", cwd=tmp_path).stdout
        run.until("cancelled", "one-s0")
        run.until("launched", "three-s0")
        assert (
            "asked its supervisor to retry 1 job"
            in invoke("retry", "run", "one", cwd=tmp_path).stdout
        )
        run.until("retrying", "one-s0")
        assert "to stop; workers save a checkpoint" in invoke("stop", "run", cwd=tmp_path).stdout
        assert run.end() == 130
    states = {job_id: row["state"] for job_id, row in commands.summary(tmp_path / "run").items()}
    assert set(states.values()) == {"PENDING"}


@pytest.mark.nightly
def test_interrupted_run_says_how_it_goes_on(tmp_path: Path) -> None:
    jobs = write_experiment(
        tmp_path, {"name": "hopper", "xml": commands.HOPPER, "total_timesteps": 1_000_000}
    )
    process = commands.start(commands.stubbed("run", jobs, "--run-dir", "run"), cwd=tmp_path)
    commands.wait_until((tmp_path / "run/jobs/hopper-s0/started").exists, "a worker")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=commands.PATIENCE_S)
    assert process.returncode == 130, err
    assert "stopping (SIGINT): workers save a checkpoint" in out
    assert re.search("^hopper-s0 +PENDING ", out, re.MULTILINE)
    assert "Run the same command again to resume." in out


def test_changed_jobs_are_refused_with_the_difference(
    finished: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    text = finished.jobs.read_text()
    finished.jobs.write_text(text.replace("n_epochs = 1", "n_epochs = 2\nlearning_rate = 1e-3"))
    done = invoke("run", finished.jobs, "--run-dir", "run", cwd=finished.cwd)
    assert done.returncode == 2
    assert "2 jobs that have run here are declared differently now" in done.stderr
    # the one that trained longer, as is launched, comes first
    both = "(hopper-s0, balancer-s0|balancer-s0, hopper-s0)"
    assert re.search(f"  {both}\n", done.stderr)
    assert "ppo.n_epochs: 1 → 2" in done.stderr
    assert "ppo.learning_rate: not set → 0.001" in done.stderr
    assert "--on-change=restart" in done.stderr

    restarted = succeed(
        "run", finished.jobs, "--run-dir", "run", "--on-change=restart", cwd=finished.cwd
    )
    assert restarted.stdout.count(" launched on CPU ") == 2
    aside = sorted(path.name.split(".")[0] for path in (finished.run_dir / "replaced").iterdir())
    assert aside == ["balancer-s0", "hopper-s0"]


def test_fresh_starts_over_and_keeps_what_was(
    finished: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)
    done = succeed("run", finished.jobs, "--run-dir", "run", "--fresh", cwd=finished.cwd)
    assert done.stdout.count(" launched on CPU ") == 2
    (aside,) = finished.cwd.glob("run.*")
    assert (aside / "ledger.sqlite3").is_file()
    assert str(aside) in done.stdout
    assert "former run directories" in invoke("clean", "run", cwd=finished.cwd).stdout
    assert not aside.exists()


@pytest.mark.nightly
@pytest.mark.parametrize(("umask", "never"), [("077", 0o077), ("000", 0o002)])
def test_files_have_the_modes_of_the_users_umask_and_are_never_world_writable(
    umask: str, never: int, tmp_path: Path
) -> None:
    jobs = write_experiment(
        tmp_path, {"name": "balancer", "xml": commands.BALANCER, "task": "balance"}
    )
    shell = ["sh", "-c", f'umask {umask}; exec "$@"', "sh"]
    done = commands.finish(
        [*shell, *commands.command("run", jobs, "--run-dir", "run")], cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    made = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    wrong = [path for path in made if path.stat().st_mode & never]
    assert len(made) > 20
    assert not wrong


def test_a_worker_is_a_session_on_its_core_with_its_thread_budget(tmp_path: Path) -> None:
    hopper = {"name": "hopper", "xml": HOPPER, "total_timesteps": 10**7}
    jobs = write_experiment(tmp_path, {**hopper, "resources": {"move": False}})
    with Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        launch = run.until("launched")
        rows = tmp_path / f"run/jobs/{launch['job_id']}/timings.csv"
        wait_until(
            lambda: rows.exists() and len(rows.read_text().splitlines()) > 2,
            "it trains",
        )
        process = Path(f"/proc/{launch['pid']}")
        assert os.getsid(launch["pid"]) == launch["pid"]
        assert os.sched_getaffinity(launch["pid"]) == set(launch["cpus"])
        assert len(launch["cpus"]) == 1
        assert (process / "fd/0").readlink() == Path("/dev/null")
        variables = dict(
            text.split("=", 1) for text in (process / "environ").read_text().split("\0") if text
        )
        assert {variables[name] for name in THREAD_VARIABLES} == {"1"}
        assert len(list((process / "task").iterdir())) == 2, (
            "the main thread and the lifeline's, as doctor says"
        )
        run.signal(signal.SIGINT)
        assert run.end() == 130
