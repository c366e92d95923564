"""``run`` with ``[search]``: trials are made as the search goes on, and it survives whatever ends
its processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
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

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
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
    paths = RunPaths(run_dir)
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        return search_events.events(ledger)


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


def test_a_search_makes_its_trials_one_by_one_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    table = 'sampler = "random"\ntrials = 3\nobjective = "ep_rew_mean"'
    jobs = search_file(tmp_path, table, settings='resources.start = "exec"')
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    rows = commands.summary(tmp_path / "run")
    assert list(rows) == [f"hopper-t{number:05d}-s0" for number in range(3)]
    assert {row["state"] for row in rows.values()} == {"SUCCEEDED"}
    kinds = Counter(event.kind for event in events(tmp_path / "run"))
    assert kinds == {"began": 1, "asked": 3, "over": 3, "told": 3, "ended": 1}
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
def test_more_trials_are_taken_over_and_another_space_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    table = 'sampler = "random"\ntrials = 2\nobjective = "ep_rew_mean"'
    jobs = search_file(tmp_path, table, settings='resources.start = "exec"')
    assert commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    before = outcomes(tmp_path / "run")
    jobs.write_text(jobs.read_text().replace("trials = 2", "trials = 4"))
    assert commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    after = outcomes(tmp_path / "run")
    assert len(after[0]) == len(after[1]) == 4
    assert all(
        earlier.items() <= later.items() for earlier, later in zip(before, after, strict=True)
    )

    jobs.write_text(jobs.read_text().replace("high = 1e-2", "high = 1e-3"))
    refused = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert '"ppo.learning_rate".high: 0.01 → 0.001' in refused.stderr
    assert outcomes(tmp_path / "run") == after


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
        assert "declares the same search" in commands.invoke("reload", "run", cwd=tmp_path).stdout
        jobs.write_text(
            jobs.read_text()
            .replace("trials = 2", "trials = 9")
            .replace("_parallel = 1", "_parallel = 7")
        )
        told = commands.invoke("reload", "run", cwd=tmp_path)
        assert (told.returncode, told.stderr) == (0, "")
        assert "the search goes on with trials: 2 → 9" in told.stdout
        run.until("reloaded")
        assert commands.invoke("set", "run", "max_parallel=2", cwd=tmp_path).returncode == 0
        wait_until(lambda: states() == {"RUNNING": 2, "PENDING": 2}, "as many wait as run")
        jobs.write_text(jobs.read_text().replace("high = 1e-2", "high = 1e-3"))
        refused = commands.invoke("reload", "run", cwd=tmp_path)
        assert refused.returncode == 2
        assert '"ppo.learning_rate".high: 0.01 → 0.001' in refused.stderr
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


@pytest.mark.nightly
def test_asha_trains_the_best_to_the_end_and_leaves_the_others_paused(tmp_path: Path) -> None:
    jobs = search_file(tmp_path, RUNGS, seeds=[0, 1])
    finish(jobs)
    rows = commands.summary(tmp_path / "run")
    assert len(rows) == 12
    counts = Counter(row["state"] for row in rows.values())
    assert set(counts) == {"SUCCEEDED", "PAUSED"}
    assert 2 <= counts["SUCCEEDED"] < 12
    reached = {row["env_steps"] for row in rows.values() if row["state"] == "PAUSED"}
    assert reached <= {128, 256}
    for first in range(0, 12, 2):  # the seeds of a trial go together
        pair = list(rows.values())[first : first + 2]
        assert pair[0]["env_steps"] == pair[1]["env_steps"]
    trials = {event.trial for event in events(tmp_path / "run") if event.kind == "reached"}
    assert trials == set(range(6))


BY = "distance_m - 0.001 * energy_j"
BY_MEASURE = RUNGS.replace('"ep_rew_mean"', f'"{BY}"') + f'by = "{BY}"\n'


def told_at_rung(run_dir: Path, job_id: str) -> dict[int, float]:
    """env_steps of the rungs of a job → the value that follows from its exit records."""
    told = {}
    for path in sorted((run_dir / "jobs" / job_id / "attempts").glob("*/exit.json")):
        record = json.loads(path.read_text())
        if record["code"] == ExitCode.PAUSED:
            measures = record["training_measures"]
            told[record["env_steps"]] = measures["distance_m"] - 0.001 * measures["energy_j"]
    return told


@pytest.mark.nightly
def test_trials_are_compared_at_rungs_by_measures_of_their_training(tmp_path: Path) -> None:
    jobs = search_file(tmp_path, BY_MEASURE, seeds=[0, 1], settings="eval_episodes = 1")
    done = finish(jobs)
    assert f"trials are compared by {BY} at 128" in " ".join(
        commands.invoke("run", jobs, "--dry-run", "--run-dir", "other", cwd=tmp_path).stdout.split()
    ), done.stdout
    of_trials: dict[int, list[SearchEvent]] = {}
    for event in events(tmp_path / "run"):
        if event.kind == "reached":
            of_trials.setdefault(event.trial or 0, []).append(event)
    assert of_trials.keys() == set(range(6))
    for trial, reached in of_trials.items():
        told = [told_at_rung(tmp_path / "run", f"hopper-t{trial:05d}-s{seed}") for seed in (0, 1)]
        for place, event in enumerate(reached):
            both = [list(one.values())[place] for one in told]
            assert event.content["value"] == pytest.approx(sum(both) / 2)
    firsts = {trial: reached[0].content["value"] for trial, reached in of_trials.items()}
    promoted = {event.trial for event in events(tmp_path / "run") if event.kind == "promoted"}
    assert promoted >= {max(firsts, key=firsts.__getitem__)}
    told_of = [event for event in events(tmp_path / "run") if event.kind == "told"]
    assert sorted(event.trial or 0 for event in told_of) == list(range(6)), (
        "the value at the rung stands for that at the end"
    )


@pytest.mark.nightly
def test_the_jobs_of_a_matrix_are_compared_by_a_measure_and_only_then_measured(
    tmp_path: Path,
) -> None:
    for name, by, key in (
        ("plain", "", ""),
        ("by", '\nby = "-energy_j"', ""),
        ("key", "", "\nmeasure_training = true"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        job = f'name = "hopper"\nxml = "{HOPPER}"\ntask = "forward"{key}'
        matrix = '[jobs.matrix]\n"ppo.learning_rate" = [1e-4, 1e-3]'
        scheduler = f"[scheduler]\nmin_env_steps = 128\nfactor = 2{by}"
        path = folder / "jobs.toml"
        path.write_text(f'name = "m"\n{TINY}\n[[jobs]]\n{job}\n{matrix}\n{scheduler}\n')
        done = commands.invoke("run", path, "--run-dir", "run", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        for spec in (folder / "run/jobs").glob("*/spec.json"):
            assert ("measure_training" in json.loads(spec.read_text())) == bool(by or key)
        reached = [event for event in events(folder / "run") if event.kind == "reached"]
        assert reached
        if by:
            assert all(event.content["value"] < 0 for event in reached)


@pytest.mark.nightly
def test_a_trial_inherits_the_policy_of_the_nearest_finished_one(tmp_path: Path) -> None:
    jobs = search_file(
        tmp_path, 'sampler = "random"\ntrials = 5\nobjective = "ep_rew_mean"\nstart = "nearest"'
    )
    finish(jobs)
    parents = [
        event.content["parent"] for event in events(tmp_path / "run") if event.kind == "asked"
    ]
    assert parents[0] is None
    assert any(parent is not None for parent in parents)
    for number, parent in enumerate(parents):
        spec = WorkerSpec.from_json(
            (tmp_path / f"run/jobs/hopper-t{number:05d}-s0/spec.json").read_text()
        )
        if parent is None:
            assert spec.init is None
        else:
            assert parent < number
            assert spec.init == str(tmp_path / f"run/jobs/hopper-t{parent:05d}-s0")


Kills = tuple[tuple[str, ...], ...]
"""What is killed in each run of a search before its supervisor is. A start costs more than all
else."""
A_DOZEN: Kills = (
    ("worker", "searcher", "worker"),
    ("searcher", "worker"),
    (),
    ("searcher", "worker", "searcher"),
)
TWENTY: Kills = (
    ("worker", "searcher", "worker", "searcher", "worker"),
    ("searcher", "worker", "worker", "searcher"),
    ("worker", "searcher"),
    ("searcher", "worker", "searcher", "worker", "searcher"),
)
FOUR: Kills = (("searcher", "worker", "searcher"),)
ENDLESS = 100_000
"""Trials of a search that is to be killed before it has made them."""
RETRIES = "retry = { max_retries = 20 }"
EVALUATED = "eval_episodes = 1\n"
"""All kills may be of the same job."""
BLIND = 8
"""Trials that are asked for before any value is told: two brackets of four."""
LONG_S = 900.0
"""Patience with a search of so many trials."""


def kill_and_finish(jobs: Path, kills: Kills) -> int:
    """Run an endless search with these ``kills``, each at a random moment, and let it come to its
    end with the trials that it has by then, and one more. Returns their number.
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
    trials = len(points(folder / "run")) + 1
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
        return len(events(run_dir)) if (run_dir / "ledger.sqlite3").exists() else 0
    return 0


@pytest.mark.nightly
@pytest.mark.timeout(2 * LONG_S)
def test_killed_twenty_times_a_search_in_fixed_order_has_the_same_trials_and_weights(
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
    trials = kill_and_finish(search_file(rough, table, settings=f"{EVALUATED}{RETRIES}"), TWENTY)
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


NO_IDEA = """
class Own:
    def __init__(self, space, seed, directions):
        self.space = space

    def ask(self, number):
        if number == 4:
            raise ValueError("no idea")
        return self.space.decode([0.2 * number, 0.5])

    def tell(self, number, point, outcome):
        pass
"""


@pytest.mark.nightly
def test_a_search_that_stops_with_a_problem_while_trials_wait_at_rungs_has_failed(
    tmp_path: Path,
) -> None:
    """A script that repeats what ends with 130 would repeat it without end."""
    jobs, run_dir = search_file(tmp_path, RUNGS.replace('"random"', '"own:Own"')), tmp_path / "run"
    (tmp_path / "own.py").write_text(NO_IDEA)
    for _ in range(2):
        done = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "ValueError: no idea" in " ".join(done.stdout.split())
        assert "PAUSED" in {row["state"] for row in commands.summary(run_dir).values()}
        assert commands.invoke("status", "run", "--exit-code", cwd=tmp_path).returncode == 1
    with contextlib.closing(sqlite3.connect(RunPaths(run_dir).ledger)) as connection:
        connection.execute("UPDATE search SET trial = 99 WHERE kind = 'reached'")
        connection.commit()
    done = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = " ".join((done.stdout + done.stderr).split())
    assert "the search has stopped" in shown
    assert "there is no trial 99" in shown
    assert "it is started again" not in shown, "reading it again would be no use"
    assert "Traceback" not in shown


@pytest.mark.nightly
def test_a_function_that_refuses_all_bodies_stops_a_search_with_its_reason(
    tmp_path: Path,
) -> None:
    jobs = search_file(tmp_path, 'sampler = "random"\ntrials = 60\nobjective = "ep_rew_mean"')
    (tmp_path / "bodies.py").write_text(f"""
import shutil
def make(params, folder):
    if params["length"] not in (0.8, 1.0):  # those that are examined before the launch
        raise ValueError("no such leg")
    return shutil.copy({str(HOPPER)!r}, folder / "hopper.xml")
""")
    text = jobs.read_text().replace(f'xml = "{HOPPER}"', 'xml = "bodies:make"')
    jobs.write_text(
        text.replace('"model.geom.*thigh*.size"', '"params.length"').replace(
            ", multiply = true", ""
        )
    )
    done = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = " ".join((done.stdout + done.stderr).split())
    assert "none of 1,000 points in a row makes a job; the last one: " in shown
    assert "no such leg" in shown
    assert not any(event.kind == "asked" for event in events(tmp_path / "run"))


@pytest.mark.nightly
def test_a_search_by_an_expression_of_measures_has_its_value_of_every_job(tmp_path: Path) -> None:
    text = "distance_m / energy_j + 0 * min(mass_kg, torque_rms)"
    table = f'sampler = "random"\ntrials = 2\nobjective = "{text}"'
    jobs = search_file(tmp_path, table, seeds=(0, 1), settings="eval_episodes = 2")
    done = finish(jobs)
    assert f"best {text} " in " ".join(done.stdout.split())
    over = [event for event in events(tmp_path / "run") if event.kind == "over"]
    assert len(over) == 2
    for event in over:
        ratios = []
        for seed in (0, 1):
            folder = tmp_path / f"run/jobs/hopper-t{event.trial:05d}-s{seed}"
            told = json.loads((folder / "eval.json").read_text())["deterministic"]["measures"]
            ratios.append(told["distance_m"]["mean"] / told["energy_j"]["mean"])
        assert event.content["values"] == [pytest.approx(sum(ratios) / 2)]
    row = commands.summary(tmp_path / "run")["hopper-t00000-s0"]
    assert min(row["measures"][name] for name in ("energy_j", "mass_kg", "torque_rms")) > 0
    best = json.loads(commands.invoke("best", "run", "--json", cwd=tmp_path).stdout)
    values = [event.content["values"][0] for event in over]
    assert best[0]["values"] == {text: max(values)}


@pytest.mark.nightly
def test_a_trial_whose_objective_divides_by_zero_has_no_value_and_says_so(tmp_path: Path) -> None:
    table = 'sampler = "random"\ntrials = 1\nobjective = "eval_mean / (attempts - 1)"'
    jobs = search_file(tmp_path, table, settings="eval_episodes = 1")
    done = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    [why] = [event.content["why"] for event in events(tmp_path / "run") if event.kind == "over"]
    assert why == (
        "eval_mean / (attempts - 1) has no value: attempts - 1 is 0, and nothing can be divided by it"
    )
    assert "nothing can be divided by it" in " ".join(done.stdout.split())


@pytest.mark.nightly
def test_a_search_without_a_value_of_its_objective_has_failed(tmp_path: Path) -> None:
    job = {"name": "odd", "entry_point": "odd:make", "eval_episodes": 1}
    jobs = commands.write_experiment(tmp_path, job, head="max_parallel = 2")
    search = 'sampler = "random"\ntrials = 2\nobjective = "hops"\nspace."ppo.learning_rate" = {low = 1e-4, high = 1e-3}'
    jobs.write_text(f"{jobs.read_text()}\n[search]\n{search}\n")
    done = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {row["state"] for row in commands.summary(tmp_path / "run").values()} == {"SUCCEEDED"}
    shown = " ".join(done.stdout.split())
    for fact in (
        "No trial has a value of hops (trial",
        "hops has no value; there are",
        "run --fresh",
        "best run",
    ):
        assert fact in shown
    assert "did not succeed" not in shown
    assert commands.invoke("status", "run", "--exit-code", cwd=tmp_path).returncode == 1
    for command in ("wait", "best"):
        done = commands.invoke(command, "run", cwd=tmp_path)
        assert "hops has no value" in " ".join(done.stdout.split())
        assert done.returncode == 1


OWN = """
import pathlib
import odd

class Own(odd.Odd):
    def step(self, action):
        if self.count == 150 and pathlib.Path(__file__).with_name("broken").exists():
            raise ValueError("the knee fell off")
        return super().step(action)

def make(xml=None, seed=0):
    return Own("nothing", 0)
"""


@pytest.mark.nightly
def test_trials_that_fail_are_trained_with_all_seeds_when_they_are_retried(tmp_path: Path) -> None:
    """They fail behind their first rung, where they have a checkpoint."""
    jobs = commands.write_experiment(
        tmp_path, {"name": "odd", "entry_point": "own:make", "seeds": [0, 1]}
    )
    table = RUNGS.replace("trials = 6", "trials = 3").replace(
        "min_env_steps = 128", "min_env_steps = 256"
    )
    jobs.write_text(f"{jobs.read_text()}\n[search]\n{table}\n{SPACE}")
    jobs.write_text(
        "\n".join(line for line in jobs.read_text().splitlines() if "thigh" not in line)
    )
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken").touch()
    done = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    before = commands.summary(tmp_path / "run")
    failed = {
        job_id.rpartition("-")[0] for job_id, row in before.items() if row["state"] == "FAILED"
    }
    assert failed, done.stdout + done.stderr
    (tmp_path / "broken").unlink()
    commands.succeed("retry", "run", cwd=tmp_path)
    finish(jobs)
    after = commands.summary(tmp_path / "run")
    assert list(after) == list(before), "there are no further trials"
    assert {after[f"{name}-s{seed}"]["state"] for name in failed for seed in (0, 1)} <= {
        "SUCCEEDED",
        "PAUSED",
    }
    kinds = Counter(event.kind for event in events(tmp_path / "run"))
    assert (kinds["retried"], kinds["told"]) == (len(failed), 3)
