"""The command with ``--executor slurm``, in a Slurm whose commands are fake; ``tests/slurm`` has a
real one."""

from __future__ import annotations

import contextlib
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import (
    Experiment,
    Run,
    give,
    invoke,
    odd,
    summary,
    wait_until,
    write_experiment,
)
from run_helpers import weights
from slurm_helpers import FakeSlurm

import orchestrator

pytestmark = pytest.mark.nightly

SLURM = (
    '[slurm]\narray = 2\ncpus_per_task = 1\ntime = "2h"\nmem = "4 GiB"\nsetup = ["echo set up"]\n'
)


def with_slurm(cwd: Path, *jobs: dict[str, object]) -> Path:
    return write_experiment(cwd, *jobs, defaults=f"{commands.TINY}{SLURM}")


@contextlib.contextmanager
def queued(cwd: Path, slurm: FakeSlurm) -> Iterator[Run]:
    """A run whose pilots wait in the queue."""
    slurm.put("hold", "Resources")
    jobs = with_slurm(cwd, {"name": "hopper", "xml": commands.HOPPER})
    with Run(jobs, "--run-dir", "run", "--executor", "slurm", cwd=cwd) as run:
        run.until("submitted")
        yield run


@pytest.mark.nightly
def test_an_experiment_in_two_pilots_has_the_same_weights_as_on_one_machine(
    tmp_path: Path, fake_slurm: FakeSlurm, finished_once: Experiment
) -> None:
    jobs = with_slurm(
        tmp_path,
        {"name": "hopper", "xml": commands.HOPPER},
        {"name": "balancer", "xml": commands.BALANCER, "task": "balance", "eval_episodes": 1},
    )
    with Run(jobs, "--run-dir", "run", "--executor", "slurm", cwd=tmp_path) as run:
        assert run.end() == 0, run.stderr
    assert weights(tmp_path / "run") == weights(finished_once.run_dir)
    assert {row["node"] for row in summary(tmp_path / "run").values()} == {"node-0", "node-1"}
    assert len(fake_slurm.calls("sbatch")) == 1
    assert "set up" in (tmp_path / "run/slurm/pilot-100_0.log").read_text()
    assert set(fake_slurm.states().values()) == {"COMPLETED"}


@pytest.mark.nightly
def test_a_killed_supervisor_finds_its_pilots_again_and_loses_nothing(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    # It stands until there is a file ``go``: after the next supervisor has begun.
    jobs = with_slurm(tmp_path, odd("long", "stand", env_kwargs={"deed": "stand", "at": 100}))
    command = (jobs, "--run-dir", "run", "--executor", "slurm")
    with Run(*command, cwd=tmp_path) as run:
        run.until("launched")
        wait_until(
            lambda: list((tmp_path / "run/jobs/long-s0/checkpoints").glob("*.pt")), "a checkpoint"
        )
        run.kill_supervisor()
    pids = fake_slurm.pids()
    with Run("run", cwd=tmp_path) as run:
        run.until("launched")
        assert set(fake_slurm.pids()) == set(pids)
        (tmp_path / "go").touch()
        assert run.end() == 0, run.stderr
    assert len(fake_slurm.calls("sbatch")) == 1
    assert summary(tmp_path / "run")["long-s0"]["attempts"] == 2
    assert give("run", jobs, "--run-dir", "alone", cwd=tmp_path).returncode == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "alone")


@pytest.mark.nightly
def test_ctrl_c_leaves_nothing_queued_and_the_run_directory_resumes(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    with queued(tmp_path, fake_slurm) as run:
        run.signal(signal.SIGINT)
        assert run.end() == 130
    assert set(fake_slurm.states().values()) == {"CANCELLED"}
    fake_slurm.remove("hold")
    done = give("run", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--executor=slurm, as in the run before" in done.stdout
    assert summary(tmp_path / "run")["hopper-s0"]["node"] in ("node-0", "node-1"), (
        "whichever pilot was there first"
    )
    assert len(fake_slurm.pids()) == 0


def test_a_dry_run_shows_the_script_and_submits_nothing(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    jobs = with_slurm(tmp_path, {"name": "hopper", "xml": commands.HOPPER})
    done = invoke("run", jobs, "--dry-run", "--executor", "slurm", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 at once on 2 pilots" in done.stdout
    assert "#SBATCH --array=0-1" in done.stdout
    assert "#SBATCH --time=0-02:00:00" in done.stdout
    assert not (
        fake_slurm.root / "calls.log"
    ).exists()  # pilots of a run that is under way have the same name
    assert not (tmp_path / "run").exists()


def test_a_job_that_needs_more_than_a_pilot_is_refused(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    jobs = with_slurm(
        tmp_path,
        {"name": "hopper", "xml": commands.HOPPER, "resources": {"cores": 2, "memory": "8 GiB"}},
    )
    done = invoke("run", jobs, "--executor", "slurm", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "jobs[0].resources.cores: asks for 2 cores" in done.stderr
    assert "jobs[0].resources.memory: asks for 8192 MiB" in done.stderr
    assert not fake_slurm.calls("sbatch")


@pytest.mark.nightly
def test_python_gives_the_table_as_an_argument(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = tomllib.loads(commands.TINY)["defaults"]
    results = orchestrator.train(
        [commands.HOPPER], run_dir="run", executor="slurm", slurm={"array": 2}, **tiny
    )
    assert [result.ok for result in results] == [True]
    assert "#SBATCH --array=0-1\n" in (tmp_path / "run/slurm/pilots.sh").read_text()
