"""A search with very many finished trials: how soon it goes on when it is resumed, and what it
costs its supervisor.

The run directory is written by the functions that write one during a search, with made-up results
in the place of trainings. Its resumption is real: the command ``run`` with a larger number of
trials, and workers that train.
"""

from __future__ import annotations

import json
import pickle
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness import ORCHESTRATOR, ROOT, Line, at_most, cpu_share, cpu_timed
from orchestrator import jobfile
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import Attempt, AttemptOutcome, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import search_events
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.declared_search import declaration_of, trial_jobs
from orchestrator.features.search.history import History
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.searcher.samplers import TrialOutcome, make
from orchestrator.ledger import Ledger, Request
from orchestrator.ledger.rows import DeclaredJob

SEARCHES = (("random", 100_000), ("cmaes", 10_000))
"""Samplers and numbers of trials; that of CMA-ES is saved with what it has been told."""
ENTERED_AT_ONCE = 10_000
EVENTS = 1_000_000
MEASURED_S = 30.0
SETTLING_S = 5.0
"""Between the launch of the first job and the measurement of the supervisor's share of a core."""
GIVE_UP_S = 600.0
ENV_STEPS = 50_000_000
"""Of each training: more than is trained while the supervisor is measured."""


def job_file(folder: Path, trials: int, sampler: str) -> Path:
    """A search over three keys of a small robot."""
    path = folder / "search.toml"
    path.write_text(
        f"""name = "search"
[defaults]
total_timesteps = {ENV_STEPS}
n_envs = 8
eval_episodes = 0
ppo = {{ n_steps = 256, batch_size = 256 }}
[[jobs]]
name = "runner"
xml = {json.dumps(str(ROOT / "mjcf/runner.xml"))}
[search]
sampler = "{sampler}"
objective = "ep_rew_mean"
trials = {trials}
[search.space]
"ppo.learning_rate" = {{ low = 1e-5, high = 1e-2, log = true }}
"ppo.ent_coef" = {{ low = 0.0, high = 0.1 }}
"ppo.gae_lambda" = {{ low = 0.8, high = 1.0 }}
"""
    )
    return path


def enter_finished(paths: RunPaths, experiment: jobfile.Experiment, trials: int) -> None:
    """Make a run directory in which so many trials of a search have finished, each with its one
    job."""
    search = declaration_of(experiment).search
    assert search is not None
    sampler = make(search)
    chance = random.Random(0)
    now = time.time()
    paths.root.mkdir(parents=True, exist_ok=True)
    written.declare(paths, experiment, {})
    paths.lock.touch()
    ledger = Ledger.create(paths.ledger)
    search_events.add(ledger, [SearchEvent(kind="began", content={"lanes": 2})])
    for first in range(0, trials, ENTERED_AT_ONCE):
        events = list[SearchEvent]()
        for number in range(first, min(first + ENTERED_AT_ONCE, trials)):
            point = sampler.ask(number)
            value = chance.gauss(100.0, 10.0)
            (job,) = trial_jobs(experiment, number, point)
            ledger.put_jobs([DeclaredJob(position=number, job=job, robot_hash="0" * 64)])
            _enter_training(ledger, paths, number, job.job_id, value, now + number)
            told = {"values": [value], "measures": None, "env_steps": ENV_STEPS}
            sampler.tell(number, point, TrialOutcome(values=(value,), env_steps=ENV_STEPS))
            events += [
                SearchEvent(kind="asked", content={"point": dict(point), "jobs": [job.job_id]}),
                SearchEvent(kind="over", trial=number, content={**told, "why": ""}),
                SearchEvent(kind="told", trial=number, content=told),
            ]
        search_events.add(ledger, events)
        ledger.commit()
    SearchPaths(paths.root).sampler.write_bytes(pickle.dumps((1 + 3 * trials, sampler)))
    ledger.close()


def _enter_training(
    ledger: Ledger, paths: RunPaths, number: int, job_id: str, value: float, started_at: float
) -> None:
    """Enter that a job has succeeded in one attempt, which took a second.

    :param value: its return.
    """
    attempt = Attempt(
        job_id=job_id, number=0, cpus=(number % 2,), gpus=(), pid=None, started_at=started_at
    )
    record = ExitRecord(
        code=0,
        message="",
        env_steps=ENV_STEPS,
        ep_rew_mean=value,
        learner="fast",
        cpu_s=1.0,
    )
    ledger.start_attempt(attempt, queue_s=0.1)
    ledger.end_attempt(
        job_id,
        0,
        ended_at=started_at + 1.0,
        wall_s=1.0,
        returncode=0,
        outcome=AttemptOutcome(cause=None),
        record=record,
        max_rss_mib=300.0,
    )
    ledger.set_state(job_id, Succeeded())
    directory = paths.job(job_id)
    directory.root.mkdir(parents=True)
    for file in (directory.model, directory.vecnormalize):
        file.touch()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What the resumption of a search was measured to cost."""

    first_job_s: float
    """From the command to the launch of the first new job."""
    share: float
    """Of a core, taken by the supervisor afterwards."""
    supervisor_mib: float
    """The most memory that it held, and :attr:`searcher_mib` that of the searcher."""
    searcher_mib: float
    end_s: float
    """From the request to cancel its last jobs to the end of the command."""


def resume(folder: Path, path: Path, next_trial: int) -> Resumption:
    """Resume the search in ``folder``, which makes two more trials, and cancel their jobs after a
    while."""
    paths = RunPaths(folder / "run")
    jobs = [f"runner-t{number:05d}-s0" for number in (next_trial, next_trial + 1)]
    command = [*ORCHESTRATOR, "run", str(path), "--run-dir", str(paths.root)]
    begun = time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        supervisor = psutil.Popen(
            [*command, "--max-parallel", "2"], cwd=ROOT, stdout=output, stderr=output
        )
    while not paths.job(jobs[0]).attempt(0).root.exists():
        late = time.monotonic() > begun + GIVE_UP_S
        if late or supervisor.poll() is not None:
            supervisor.kill()
            raise AssertionError(f"no job was launched: {(folder / 'output.txt').read_text()}")
        time.sleep(0.02)
    first_job_s = time.monotonic() - begun
    time.sleep(SETTLING_S)
    share = cpu_share([supervisor], MEASURED_S)
    (searcher,) = [
        child
        for child in supervisor.children()
        if "orchestrator.features.search.searcher.searcher" in child.cmdline()
    ]
    peaks = [_peak_mib(supervisor.pid), _peak_mib(searcher.pid)]
    stopped = time.monotonic()
    with run_directory.opened_ledger(paths, is_sound=True) as ledger:
        ledger.add_requests(Request(verb="cancel", job_id=job_id) for job_id in jobs)
    supervisor.wait()
    return Resumption(
        first_job_s=first_job_s,
        share=share,
        supervisor_mib=peaks[0],
        searcher_mib=peaks[1],
        end_s=time.monotonic() - stopped,
    )


def _peak_mib(pid: int) -> float:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(status["VmHWM"].split()[0]) / 1024


def replay(events: int) -> float:
    """Seconds for rebuilding the history of a search from so many events, half of them asks and
    half tells."""
    point = {"a": 0.5, "b": 0.5, "c": 0.5}
    told = {"values": [1.0], "measures": None, "env_steps": 1}
    history = History()
    both = list[SearchEvent]()
    for number in range(events // 2):
        content = {"point": point, "jobs": [f"job-t{number:05d}-s0"]}
        both.append(SearchEvent(kind="asked", content=content, at=float(number), id=2 * number + 1))
        both.append(
            SearchEvent(
                kind="told", trial=number, content=told, at=float(number), id=2 * number + 2
            )
        )

    def apply() -> None:
        for event in both:
            history.apply(event)

    return cpu_timed(apply)[0]


def ledger(repeats: int) -> list[Line]:
    """Resume a search with very many finished trials, and replay very many events."""
    lines = list[Line]()
    for sampler, trials in SEARCHES:
        measured = list[Resumption]()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            enter_finished(
                RunPaths(folder / "run"), jobfile.load(job_file(folder, trials, sampler)), trials
            )
            for done in range(trials, trials + 2 * repeats, 2):
                measured.append(resume(folder, job_file(folder, done + 2, sampler), done))
        what = f"search with {trials:,} finished trials ({sampler}), resumed"
        lines += [
            at_most(
                f"{what}: seconds until a new job is launched",
                [one.first_job_s for one in measured],
                20.0,
            ),
            at_most(f"{what}: supervisor's share of a core", [one.share for one in measured], 0.01),
            at_most(
                f"{what}: most memory of the supervisor, MiB",
                [one.supervisor_mib for one in measured],
            ),
            at_most(
                f"{what}: most memory of the searcher, MiB", [one.searcher_mib for one in measured]
            ),
            at_most(
                f"{what}: seconds from its last job to its end", [one.end_s for one in measured]
            ),
        ]
    replayed = [replay(EVENTS) for _ in range(repeats)]
    return [
        *lines,
        at_most(f"{EVENTS:,} asks and tells: CPU seconds for the history of the search", replayed),
    ]
