"""``run`` with ``[search]``: trials are made as the search goes on, and it survives whatever ends
its processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import HOPPER, LONG_PATIENCE_S, TINY, give, wait_until
from kill_helpers import killable
from searcher_helpers import examine_here

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment import run_directory
from orchestrator.features.search import search_events
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher import samplers
from orchestrator.jobfile import load

SPACE = """
[search.space]
"ppo.learning_rate" = { low = 1e-4, high = 1e-2, log = true }
"model.geom.*thigh*.size" = { low = 0.8, high = 1.2, multiply = true }
"""


def search_file(folder: Path, table: str, seeds: Sequence[int] = (0,), settings: str = "") -> Path:
    path = folder / "jobs.toml"
    header = f'name = "search"\nmax_parallel = 2\n{TINY}'
    job = f'[[jobs]]\nname = "hopper"\nxml = "{HOPPER}"\ntask = "forward"\nseeds = {list(seeds)}\n{settings}'
    path.write_text(f"{header}\n{job}\n[search]\n{table}\n{SPACE}")
    return path


def events(run_dir: Path) -> list[SearchEvent]:
    return search_events.events(RunPaths(run_dir))


def finish(jobs: Path, patience_s: float = LONG_PATIENCE_S) -> subprocess.CompletedProcess[str]:
    done = give("run", jobs, "--run-dir", "run", cwd=jobs.parent, patience_s=patience_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def weights(run_dir: Path) -> dict[str, Any]:
    return {job_id: row["weights_sha256"] for job_id, row in commands.summary(run_dir).items()}


def outcomes(run_dir: Path) -> tuple[dict[str, Any], dict[int, list[tuple[str, Any]]]]:
    """State, env_steps and weights of every job, and what has become of every trial, in its
    order."""
    of_trials: dict[int, list[tuple[str, Any]]] = {}
    for event in events(run_dir):
        if event.trial is not None:
            of_trials.setdefault(event.trial, []).append((event.kind, event.content))
    rows = commands.summary(run_dir)
    return {
        id_: (row["state"], row["env_steps"], row["weights_sha256"]) for id_, row in rows.items()
    }, of_trials


def points(run_dir: Path) -> list[Mapping[str, Any]]:
    return [event.content["point"] for event in events(run_dir) if event.kind == "asked"]


def test_a_search_makes_its_trials_one_by_one_and_goes_on_with_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine_here(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)
    table = 'sampler = "random"\ntrials = 2\nobjective = "ep_rew_mean"'
    jobs = search_file(tmp_path, table, settings='resources.start = "exec"')
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    before = points(tmp_path / "run")
    assert len(before) == 2
    jobs.write_text(jobs.read_text().replace("trials = 2", "trials = 3"))
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert points(tmp_path / "run")[:2] == before
    rows = commands.summary(tmp_path / "run")
    assert list(rows) == [f"hopper-t{number:05d}-s0" for number in range(3)]
    assert {row["state"] for row in rows.values()} == {"SUCCEEDED"}
    kinds = Counter(event.kind for event in events(tmp_path / "run"))
    assert kinds == {"began": 2, "asked": 3, "over": 3, "told": 3, "ended": 2}
    told = [event.content["values"] for event in events(tmp_path / "run") if event.kind == "told"]
    assert sorted(told) == sorted([row["ep_rew_mean"]] for row in rows.values())

    assert len({row["ppo.learning_rate"] for row in rows.values()}) == 3
    sizes = [row["model.geom.*thigh*.size"] for row in rows.values()]
    assert len(set(sizes)) == 3
    specs = [
        WorkerSpec.from_json((tmp_path / "run/jobs" / job_id / "spec.json").read_text())
        for job_id in rows
    ]
    assert [spec.model_edits["geom.*thigh*.size"] for spec in specs] == [
        f"*{size}" for size in sizes
    ]
    for job_id in rows:
        copy = tmp_path / "run/jobs" / job_id / "robot/hopper.xml"
        assert copy.is_file(), "its robot was examined, and is the one that was"


@pytest.mark.nightly
def test_a_search_that_runs_follows_set_and_reload(tmp_path: Path) -> None:
    table = 'sampler = "random"\ntrials = 2\nobjective = "ep_rew_mean"'
    jobs = search_file(tmp_path, table, settings="total_timesteps = 100_000_000\n")
    jobs.write_text(jobs.read_text().replace("max_parallel = 2", "max_parallel = 1"))

    def states() -> Counter[str]:
        paths = RunPaths(tmp_path / "run")
        with (
            contextlib.suppress(OrchestratorError),
            run_directory.opened_ledger(paths, read_only=True) as ledger,
        ):
            return Counter(row.state.name for row in ledger.jobs())
        return Counter()

    with commands.Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        wait_until(lambda: states() == {"RUNNING": 1, "PENDING": 1}, "as many wait as run")
        jobs.write_text(
            jobs.read_text()
            .replace("trials = 2", "trials = 9")
            .replace("_parallel = 1", "_parallel = 7")
        )
        told = commands.invoke("reload", "run", cwd=tmp_path)
        assert told.returncode == 0, told.stderr
        run.until("reloaded")
        assert commands.invoke("set", "run", "max_parallel=2", cwd=tmp_path).returncode == 0
        wait_until(lambda: states() == {"RUNNING": 2, "PENDING": 2}, "as many wait as run")
        jobs.write_text(jobs.read_text().replace("high = 1e-2", "high = 1e-3"))
        refused = commands.invoke("reload", "run", cwd=tmp_path)
        assert refused.returncode == 2
        run.popen.send_signal(signal.SIGINT)
        assert run.end() == 130
    assert Counter(event.kind for event in events(tmp_path / "run"))["asked"] == 4


RUNGS = """sampler = "random"
trials = 6
objective = "ep_rew_mean"
[search.scheduler]
kind = "asha"
min_env_steps = 128
factor = 2
"""


BY = "distance_m - 0.001 * energy_j"


BY_MEASURE = RUNGS.replace('"ep_rew_mean"', f'"{BY}"') + f'by = "{BY}"\n'


Kills = tuple[tuple[str, ...], ...]
"""What is killed in each run of a search before its supervisor is. A start costs more than all
else."""


A_DOZEN: Kills = (
    ("worker", "searcher", "worker"),
    ("searcher", "worker"),
    (),
    ("searcher", "worker", "searcher"),
)


FOUR: Kills = (("searcher", "worker", "searcher"),)


ENDLESS = 100_000
"""Trials of a search that is to be killed before it has made them."""


RETRIES = "retry = { max_retries = 20 }"
"""All kills may be of the same job."""


EVALUATED = "eval_episodes = 1\n"


BLIND = 8
"""Trials that are asked for before any value is told: two brackets of four."""


FEWEST = 12
"""Trials of which some follow what the sampler was told, however few were made before all kills."""


LONG_S = 900.0
"""Patience with a search of so many trials."""


def kill_and_finish(jobs: Path, kills: Kills) -> int:
    """Run an endless search with these ``kills``, each at a random moment, and let it come to its
    end with the trials that it has by then, and one more, but :data:`FEWEST` at least. Returns
    their number.
    """
    folder, chance = jobs.parent, random.Random(18)
    for kinds in kills:
        command = commands.command("run", jobs, "--run-dir", folder / "run")
        with commands.start(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                for kind in (*kinds, "supervisor"):
                    kill_one(kind, folder, process, chance)
            finally:
                process.kill()
        wait_until(lambda: "worker" not in killable(folder), "no worker is left")
    trials = max(len(points(folder / "run")) + 1, FEWEST)
    jobs.write_text(jobs.read_text().replace(f"trials = {ENDLESS}", f"trials = {trials}"))
    finish(jobs, LONG_S)
    return trials


def kill_one(kind: str, folder: Path, run: subprocess.Popen[bytes], chance: random.Random) -> None:
    before, new = known_events(folder / "run"), chance.randrange(3)
    is_starting = not killable(folder).keys() - {"supervisor"}

    def is_due() -> bool:
        return run.poll() is not None or known_events(folder / "run") >= before + new

    wait_until(is_due, "events", LONG_S)
    time.sleep(chance.uniform(0.0, 2.0 if is_starting and not new else 0.3))
    pid = wait_until(
        lambda: run.poll() is not None or killable(folder).get(kind), f"a {kind}", LONG_S
    )
    assert run.poll() is None, (
        f"the run has ended before its {kind} was killed, after {before} events"
    )
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def known_events(run_dir: Path) -> int:
    with contextlib.suppress(OrchestratorError):
        return len(events(run_dir))
    return 0


@pytest.mark.nightly
@pytest.mark.timeout(2 * LONG_S)
def test_killed_a_dozen_times_a_search_in_fixed_order_has_the_same_trials_and_weights(
    tmp_path: Path,
) -> None:
    """Trials are compared at rungs by a measure of their training."""
    options = 'order = "fixed"\nsampler_options = { population_size = 4 }'
    table = BY_MEASURE.replace(
        'sampler = "random"\ntrials = 6', f'sampler = "cmaes"\ntrials = {ENDLESS}\n{options}'
    )
    quiet, rough = tmp_path / "quiet", tmp_path / "rough"
    for folder in (quiet, rough):
        folder.mkdir()
    trials = kill_and_finish(search_file(rough, table, settings=f"{EVALUATED}{RETRIES}"), A_DOZEN)
    quiet_table = table.replace(str(ENDLESS), str(trials))
    finish(search_file(quiet, quiet_table, settings=EVALUATED), LONG_S)
    assert points(rough / "run") == points(quiet / "run")
    assert outcomes(rough / "run") == outcomes(quiet / "run")
    search = declaration_of(load(quiet / "jobs.toml")).search
    assert search is not None
    told_nothing = samplers.make(search)
    blind = [told_nothing.ask(number) for number in range(trials)]
    assert points(quiet / "run")[:BLIND] == blind[:BLIND]
    assert points(quiet / "run")[BLIND:] != blind[BLIND:], (
        "points depend on what the sampler was told"
    )


@pytest.mark.nightly
@pytest.mark.timeout(2 * LONG_S)
def test_killed_a_search_with_constraints_and_a_reference_proposes_and_trains_the_same(
    tmp_path: Path,
) -> None:
    table = f"""sampler = "cmaes"
trials = {ENDLESS}
objective = "ep_rew_mean"
order = "fixed"
start = "reference"
initial = [{{ "model.geom.*thigh*.size" = 0.9 }}]
constraints = {{ mass_kg = {{ high = 15.7 }} }}
"""
    quiet, rough = tmp_path / "quiet", tmp_path / "rough"
    for folder in (quiet, rough):
        folder.mkdir()
    jobs = search_file(rough, table, seeds=(0, 1), settings=RETRIES)
    trained = kill_and_finish(jobs, FOUR)
    quiet_table = table.replace(str(ENDLESS), str(trained))
    finish(search_file(quiet, quiet_table, seeds=(0, 1)), LONG_S)
    assert points(rough / "run") == points(quiet / "run")
    assert outcomes(rough / "run") == outcomes(quiet / "run")
    asked = [event.content for event in events(rough / "run") if event.kind == "asked"]
    assert [content.get("rejected", []) for content in asked] == [
        event.content.get("rejected", [])
        for event in events(quiet / "run")
        if event.kind == "asked"
    ]
    assert any(content.get("rejected") for content in asked)
    assert {content.get("parent") for content in asked[1:]} == {0}


@pytest.mark.nightly
@pytest.mark.timeout(2 * LONG_S)
def test_killed_a_dozen_times_an_asynchronous_search_loses_and_doubles_no_trial(
    tmp_path: Path,
) -> None:
    """Points are those of random search, so that each job has the weights of one that nothing has
    paused or killed."""
    table = RUNGS.replace("trials = 6", f"trials = {ENDLESS}")
    quiet, rough = tmp_path / "quiet", tmp_path / "rough"
    for folder in (quiet, rough):
        folder.mkdir()
    trials = kill_and_finish(search_file(rough, table, settings=RETRIES), A_DOZEN)
    undisturbed = table.replace(str(ENDLESS), str(trials)).partition("[search.scheduler]")[0]
    finish(search_file(quiet, undisturbed), LONG_S)
    assert points(rough / "run") == points(quiet / "run")
    ids = [event.content["jobs"] for event in events(rough / "run") if event.kind == "asked"]
    assert ids == [[f"hopper-t{number:05d}-s0"] for number in range(trials)]
    told = Counter(event.trial for event in events(rough / "run") if event.kind == "told")
    assert told == dict.fromkeys(range(trials), 1)
    trained, whole = commands.summary(rough / "run"), weights(quiet / "run")
    assert list(trained) == [job_id for (job_id,) in ids]
    assert {row["state"] for row in trained.values()} == {"SUCCEEDED", "PAUSED"}
    ended = {
        job_id: row["weights_sha256"]
        for job_id, row in trained.items()
        if row["state"] == "SUCCEEDED"
    }
    assert ended == {job_id: whole[job_id] for job_id in ended}
