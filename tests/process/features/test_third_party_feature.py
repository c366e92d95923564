"""The package in ``examples/third_party_feature``, as somebody else would install and use it."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from command_helpers import DOCTOR, HOPPER, INSTANT, invoke, summary, write_experiment
from stable_baselines3 import PPO

from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory

REPOSITORY = Path(__file__).parents[3]


EXAMPLE = REPOSITORY / "examples/third_party_feature"


ENTRY_POINTS = "[orchestrator.features]\nprefixed = prefixed\n"


NOTING = """#!/bin/sh
# Notes its pid and what it is to start, in the last argument but one, which is a job directory;
# becomes a worker that succeeds at once.
file=$1; shift
for argument; do before=$last; last=$argument; done
echo "$$ $*" > "$before/$file"
exec {python} -I -S "$0.py" "$before" "$last"
"""


JOB = {"name": "hopper", "xml": HOPPER, "total_timesteps": 512}


TASK = {
    "task": "prefixed.settle:Settle",
    "task_options": {"still": 2.0, "max_episode_steps": 25},
}
"""Its task, in episodes that are short enough for their returns to be known early."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has it as pip would leave it there."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE / "prefixed", folder / "prefixed")
    facts = folder / "prefixed_jobs-1.0.dist-info"
    facts.mkdir()
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture
def installed(packages: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return shutil.copytree(packages, tmp_path / "installed")


@pytest.fixture(scope="module")
def calmed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two jobs that have its table and its task."""
    folder = tmp_path_factory.mktemp("calmed")
    done = orchestrator(packages, "run", calm_jobs(folder), "--run-dir", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def calm_jobs(folder: Path, above: float = -1e9) -> Path:
    """The job file of :func:`calmed`."""
    keys = {
        "ppo": {"n_steps": 16, "batch_size": 32, "ent_coef": 0.5},
        "policy_kwargs": {"net_arch": [8]},
        **TASK,
    }
    calm = {"calm": {"above": above}, "resources": {"start": "exec"}}
    never = {"name": "never", "calm": {"above": 1e9}, "resources": {"start": "fork"}}
    return write_experiment(folder, JOB | keys | calm, JOB | keys | never)


@pytest.fixture
def with_note(installed: Path) -> Path:
    """And beside it the feature of docs/extending.md, word for word."""
    blocks = re.findall(
        r"```python\n(.*?)```", (REPOSITORY / "docs/extending.md").read_text(), re.S
    )
    (code,) = (block for block in blocks if block.startswith("# end_note.py"))
    (installed / "end_note.py").write_text(code)
    facts = installed / "end_note-1.0.dist-info"
    facts.mkdir()
    (facts / "entry_points.txt").write_text(ENTRY_POINTS.replace("prefixed", "end_note"))
    return installed


def orchestrator(
    folder: Path, *arguments: str | Path, cwd: Path, wanted: str = "prefixed"
) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "orchestrator", *arguments, cwd=cwd, wanted=wanted)


def search_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), str(REPOSITORY)])


def python(
    folder: Path, *arguments: str | Path, cwd: Path, wanted: str = "prefixed"
) -> subprocess.CompletedProcess[str]:
    path = search_path(folder)
    environment = {**os.environ, "PYTHONPATH": path, "ORCHESTRATOR_FEATURES": wanted}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
def test_its_executor_starts_workers_by_another_program_and_is_kept(
    with_note: Path, tmp_path: Path
) -> None:
    installed = with_note
    noting = tmp_path / "noting"
    noting.write_text(NOTING.format(python=sys.executable))
    noting.chmod(0o755)
    (tmp_path / "noting.py").write_text(INSTANT)
    jobs = write_experiment(tmp_path, JOB)
    jobs.write_text(
        jobs.read_text() + f'\n[prefixed]\ncommand = ["{noting}", "notes"]\nevents = true\n'
    )
    first = ("run", jobs, "--run-dir", "run", "--executor", "prefixed")
    done = orchestrator(installed, *first, cwd=tmp_path, wanted="prefixed, end_note")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/ended.txt").exists()
    (job,) = summary(tmp_path / "run").values()
    assert job["state"] == "SUCCEEDED"
    pid, command = (tmp_path / "run/jobs" / job["job_id"] / "notes").read_text().split(" ", 1)
    assert "-m orchestrator.worker" in command
    with run_directory.reading_ledger(RunPaths(tmp_path / "run")) as ledger:
        attempt = ledger.last_attempt(job["job_id"])
    assert attempt.pid == int(pid), "the worker is what the supervisor has started"
    (session,) = json.loads((tmp_path / "run/provenance.json").read_text())
    assert (session["executor"], session["prefix"]) == ("prefixed", "")
    assert session["worker_prefix"] == f"{noting} notes"
    lines = (tmp_path / "run/events.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds.index("launched") < kinds.index("succeeded")

    again = orchestrator(
        installed, "run", "run", "--prefix", "env COLOUR=blue", "--dry-run", cwd=tmp_path
    )
    assert again.returncode == 0, again.stderr
    gone = invoke("run", "run", cwd=tmp_path)  # this process has no feature of others
    assert gone.returncode == 2
    assert "prefixed: unknown key" in gone.stderr
    assert invoke("status", "run", cwd=tmp_path).returncode == 0


@pytest.mark.nightly
def test_help_and_doctor_name_it(installed: Path, tmp_path: Path) -> None:
    shown = orchestrator(installed, "run", "--help", cwd=tmp_path).stdout
    assert "--prefix" in shown
    advice = python(installed, "-c", DOCTOR, "doctor", cwd=tmp_path).stdout
    assert "run --executor prefixed" in advice
    schema = json.loads(orchestrator(installed, "schema", cwd=tmp_path).stdout)
    assert schema["properties"]["prefixed"]["default"] == {}


@pytest.mark.nightly
def test_its_table_of_jobs_acts_in_the_training_and_has_a_column_of_status(
    packages: Path, calmed: Path
) -> None:
    rows = summary(calmed / "run")
    since = rows["hopper-s0"]["calm since"]
    assert 0 < since < 512
    assert rows["never-s0"]["calm since"] is None
    assert rows["hopper-s0"]["weights_sha256"] != rows["never-s0"]["weights_sha256"]
    header = (calmed / "run/summary.csv").read_text().splitlines()[0].split(",")
    assert "calm since" in header
    assert "calm since" in orchestrator(packages, "status", "run", cwd=calmed).stdout
    paths = RunPaths(calmed / "run").job("hopper-s0")
    assert json.loads(paths.spec.read_text())["parts"]["calm"]["above"] == -1e9
    assert json.loads(paths.attempt(0).exit.read_text())["parts"]["calm"]["calm_since"] == since
    policy = PPO.load(paths.model, device="cpu")
    assert policy.ent_coef == 0.0


@pytest.mark.nightly
def test_what_its_table_did_to_a_job_is_still_done_when_the_job_is_extended(
    packages: Path, calmed: Path, tmp_path: Path
) -> None:
    """``ent_coef`` is another one for the rest of the training, also after it was stopped."""
    shutil.copytree(calmed / "run", tmp_path / "run")
    before = summary(tmp_path / "run")
    jobs = calm_jobs(tmp_path)
    jobs.write_text(jobs.read_text().replace("512", "1024"))
    longer = ("run", jobs, "--run-dir", "run", "--on-change", "extend")
    done = orchestrator(packages, *longer, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = orchestrator(packages, "run", jobs, "--run-dir", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    for job_id, row in summary(tmp_path / "whole").items():
        extended = summary(tmp_path / "run")[job_id]
        assert extended["weights_sha256"] == row["weights_sha256"]
        assert extended["calm since"] == row["calm since"] == before[job_id]["calm since"]


@pytest.mark.nightly
def test_it_is_built_installed_into_a_fresh_environment_and_trains(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # What mujoco-orchestrator needs is not installed a second time.
    here = [sysconfig.get_path("purelib"), *site.getsitepackages(), str(REPOSITORY)]
    (purelib / "what-is-here.pth").write_text("\n".join(dict.fromkeys(here)) + "\n")
    copy = tmp_path / "example"
    shutil.copytree(EXAMPLE, copy)
    pip = [str(python), "-m", "pip", "install", "--no-deps", str(copy)]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    jobs = write_experiment(tmp_path, JOB | TASK)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    del variables["ORCHESTRATOR_FEATURES"]  # all that are installed
    command = [str(python), "-m", "orchestrator", "run", str(jobs), "--run-dir", "run"]
    command += ["--executor", "prefixed", "--prefix", "env COLOUR=blue"]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [job["state"] for job in summary(tmp_path / "run").values()] == ["SUCCEEDED"]
