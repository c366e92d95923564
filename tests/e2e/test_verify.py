"""``verify`` passes what deserves it, and finds out what depends on neighbours, chance, or never being killed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import Experiment, give, odd, wait_until, write_experiment
from supervisor_helpers import make_job

from orchestrator.core.errors import UsageError
from orchestrator.core.job import Job
from orchestrator.verify import certificate, verification_runs
from orchestrator.verify.cases import MAX_CASES, Case, case_job, choose, neighbour_of
from orchestrator.verify.certificate import Evidence, judge
from orchestrator.verify.verification_runs import ShortTraining

SHORT = ("--iterations", "4")

GUILTY = '''
import os
from pathlib import Path

import numpy as np
from odd import Odd

STEPS = 0


def neighbours():
    """Workers of the same supervisor that run now, this one included."""
    me = [line for line in Path("/proc/self/environ").read_bytes().split(b"\\0") if b"ORCHESTRATOR_TOKEN=" in line]
    if not me:
        return 1  # under examination
    count = 0
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += me[0].split(b"/")[0] in process.read_bytes()
        except OSError:
            pass
    return count


class Guilty(Odd):
    def __init__(self, deed):
        super().__init__("nothing", 0)
        self.bias = 0.1 * neighbours() if deed == "look around" else 0.0
        self.deed = deed
        if deed == "hold a file":
            self.file = open(os.devnull)

    def step(self, action):
        global STEPS
        STEPS += 1
        observation, *rest = super().step(action)
        bias = {"count outside": STEPS % 997 / 997, "roll dice": os.urandom(1)[0] / 256}.get(self.deed, self.bias)
        return (observation + np.float32(bias), *rest)


def make(xml=None, seed=0, deed=None):
    return Guilty(deed)
'''
"""An environment that is not a function of its seed, in one way or another."""


def guilty(name: str, deed: str) -> dict[str, Any]:
    return {"name": name, "entry_point": "guilty:make", "env_kwargs": {"deed": deed}}


def verified(directory: Path, *jobs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of the certificate, by job."""
    path = write_experiment(directory, *jobs, defaults=commands.TINY.replace("n_steps = 64", "n_steps = 256"))
    (directory / "guilty.py").write_text(GUILTY)
    done = give("verify", path, *SHORT, "--jobs", "*", "--output", "out", cwd=directory)
    assert done.returncode == 1, done.stdout + done.stderr
    assert (directory / "out/verify").is_dir(), "what failed stays to be looked at"
    written = json.loads((directory / "out" / certificate.FILE).read_text())
    for entry in written["jobs"]:
        for reason in entry["reasons"]:
            assert reason in done.stdout
    return {entry["job_id"]: entry for entry in written["jobs"]}


def test_the_jobs_of_a_run_directory_pass_without_their_original_files(finished: Experiment) -> None:
    finished.jobs.unlink()
    done = give("verify", finished.run_dir, *SHORT, "--json", cwd=finished.cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((finished.run_dir / certificate.FILE).read_text())
    assert json.loads(done.stdout) == written
    assert written["verdict"] == "PASS"
    assert written["machine"]["cpus"] >= 1
    for entry in written["jobs"]:
        assert entry["verdict"] == "PASS"
        assert entry["alone_sha256"] == entry["together_sha256"] == entry["resumed_sha256"] is not None
        assert entry["neighbours"] >= 1
        assert entry["resumed_from"] > 0
        assert entry["slowdown"]["low"] <= entry["slowdown"]["median"] <= entry["slowdown"]["high"]
    assert {entry["job_id"] for entry in written["jobs"]} == {"hopper-s0", "balancer-s0"}
    assert not (finished.run_dir / "verify").exists(), "nothing but the certificate is left"
    assert give("status", finished.run_dir, cwd=finished.cwd).returncode == 0


def test_who_depends_on_neighbours_or_chance_is_found_out_and_nobody_else(tmp_path: Path) -> None:
    jobs = verified(tmp_path, odd("good", "nothing"), guilty("nosy", "look around"), guilty("gambler", "roll dice"))
    assert jobs["good-s0"]["verdict"] == "PASS"
    assert jobs["nosy-s0"]["verdict"] == jobs["gambler-s0"]["verdict"] == "FAIL"
    assert jobs["nosy-s0"]["together_sha256"] != jobs["nosy-s0"]["alone_sha256"]
    assert "depends on what runs beside it" in jobs["nosy-s0"]["reasons"][0]
    assert "not even alone" in jobs["gambler-s0"]["reasons"][0]


def test_state_outside_of_the_checkpoint_is_found_out(tmp_path: Path) -> None:
    jobs = verified(tmp_path, guilty("hidden", "count outside"), guilty("open", "hold a file"))
    for entry in jobs.values():
        assert entry["verdict"] == "FAIL"
        assert entry["together_sha256"] == entry["alone_sha256"] != entry["resumed_sha256"]
        assert len(entry["reasons"]) == 1
    assert "outside of its attributes" in jobs["hidden-s0"]["reasons"][0]
    assert "cannot be saved" in jobs["open-s0"]["reasons"][0]
    assert "TextIOWrapper" in jobs["open-s0"]["reasons"][0]


def test_interrupted_it_leaves_no_process_and_no_scratch(finished: Experiment) -> None:
    command = commands.command("verify", finished.run_dir, "--iterations", "100000")
    with subprocess.Popen(
        command, cwd=finished.cwd, env=commands.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        folder = finished.run_dir / "verify/alone-0-0/jobs"
        wait_until(lambda: list(folder.glob("*/progress.csv")), "it trains")
        worker = next(pid for pid in children(process.pid) if b"orchestrator.worker" in command_line(pid))
        token = commands.token_of(worker)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=commands.PATIENCE_S)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert commands.carriers(token) == []
    assert not (finished.run_dir / "verify").exists()
    assert not (finished.run_dir / certificate.FILE).exists()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_wrong_usage_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, odd("good", "nothing"))
    done = give("verify", path, "--jobs", "god", cwd=tmp_path)
    assert done.returncode == 2
    assert "no such job; did you mean good-s0?" in done.stderr
    done = give("verify", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "not a run directory" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "verify").exists()


def named(name: str, xml: str | None = "/robots/hopper.xml") -> Job:
    return dataclasses.replace(make_job(name), xml_source=None if xml is None else Path(xml))


def test_by_default_it_takes_the_first_of_every_robot_and_says_what_it_left_out() -> None:
    jobs = [named("hopper-s0"), named("hopper-s1"), named("walker-s0", "/robots/walker.xml")]
    chosen, left_out = choose(jobs, [], Path("jobs.toml"))
    assert [one.job_id for one in chosen] == ["hopper-s0", "walker-s0"]
    assert left_out == {"hopper-s1": "has robot and task of hopper-s0"}
    many = [named(f"r{number}-s0", f"/robots/{number}.xml") for number in range(MAX_CASES + 1)]
    chosen, left_out = choose(many, [], Path("jobs.toml"))
    assert len(chosen) == MAX_CASES
    assert list(left_out) == [f"r{MAX_CASES}-s0"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["hopper-s1"], ["hopper-s1"]),
        (["hopper-s"], ["hopper-s1", "hopper-s10"]),
        (["*-s10", "walk"], ["hopper-s10", "walker-s0"]),
        (["*"], ["hopper-s1", "hopper-s10", "walker-s0"]),
    ],
)
def test_jobs_are_named_by_id_beginning_or_pattern(wanted: list[str], expected: list[str]) -> None:
    jobs = [named("hopper-s1"), named("hopper-s10"), named("walker-s0")]
    chosen, left_out = choose(jobs, wanted, Path("jobs.toml"))
    assert [one.job_id for one in chosen] == expected
    assert left_out == {}


def test_a_name_that_fits_no_job_is_refused() -> None:
    with pytest.raises(UsageError, match=r"jobs\.toml: --jobs hoper: no such job; did you mean hopper-s0\?"):
        choose([named("hopper-s0")], ["hoper"], Path("jobs.toml"))
    with pytest.raises(UsageError, match=r"--jobs xy: no such job; there are r0, r1, r2, r3, r4 and 2 more"):
        choose([named(f"r{number}") for number in range(7)], ["xy"], Path("jobs.toml"))


def test_groups_hold_what_runs_at_once() -> None:
    cases = [Case(job=named(f"r{cores}-s{index}"), bundle=None) for index, cores in enumerate((1, 1, 2, 1))]

    def room(jobs: list[Job]) -> bool:
        return sum(int(one.job_id[1]) for one in jobs) <= 2

    found = verification_runs.groups(cases, room)
    assert [[one.job.job_id for one in group] for group in found] == [["r1-s0", "r1-s1"], ["r2-s2"], ["r1-s3"]]


SAME, OTHER = (
    ShortTraining(sha256="a", neighbours=1, was_killed=True),
    ShortTraining(sha256="b", neighbours=1, was_killed=True),
)


def evidence(**changes: Any) -> Evidence:
    return Evidence(**{"alone": [SAME], "together": [SAME], "resumed": [SAME], **changes})


def test_the_same_weights_each_time_are_a_pass() -> None:
    verdict = judge("hopper-s0", evidence())
    assert (verdict.verdict, verdict.reasons, verdict.notes, verdict.slowdown) == ("PASS", [], [], None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"together": [SAME, OTHER], "alone": [SAME, SAME]}, "depends on what runs beside it"),
        ({"together": [OTHER], "again": SAME}, "depends on what runs beside it"),
        ({"together": [OTHER], "again": OTHER}, "not even alone"),
        ({"alone": [SAME, OTHER]}, "not even alone"),
        ({"resumed": [OTHER]}, "killed and resumed from nowhere"),
        ({"resumed": [dataclasses.replace(OTHER, resumed_from=64)]}, "the checkpoint at 64 env_steps"),
        ({"resumed": [dataclasses.replace(OTHER, unsaveable="a file")]}, r"cannot be saved \(a file\)"),
        ({"resumed": [OTHER], "is_foreign": True}, "outside of its attributes"),
        ({"resumed": [dataclasses.replace(SAME, was_killed=False)]}, "ended before it could be killed"),
        ({"alone": [ShortTraining(sha256=None, problem="knee fell off")]}, "alone it was not trained to the end: knee"),
        ({"resumed": [ShortTraining(sha256=None, problem="no memory")]}, "killed and resumed it was not .*: no memory"),
    ],
)
def test_everything_else_is_a_fail_that_says_why(changes: dict[str, Any], reason: str) -> None:
    verdict = judge("hopper-s0", evidence(**changes))
    assert verdict.verdict == "FAIL"
    assert len(verdict.reasons) == 1
    assert re.search(reason, verdict.reasons[0])


def test_the_slow_down_is_of_iterations_or_of_repeats() -> None:
    slow = dataclasses.replace(SAME, iteration_s=(2.0, 2.1, 1.9, 2.0, 2.0))
    fast = dataclasses.replace(SAME, iteration_s=(1.0, 1.0, 1.1, 0.9, 1.0))
    once = judge("hopper-s0", evidence(alone=[fast], together=[slow])).slowdown
    assert once is not None
    assert (once.median, once.n) == (2.0, 5)
    twice = judge("hopper-s0", evidence(alone=[fast, fast], together=[slow, slow])).slowdown
    assert twice is not None
    assert (twice.median, twice.n) == (2.0, 2)


def test_where_no_neighbour_fits_the_certificate_says_so() -> None:
    alone = dataclasses.replace(SAME, neighbours=0)
    verdict = judge("hopper-s0", evidence(together=[alone]))
    assert verdict.verdict == "PASS"
    assert len(verdict.notes) == 1
    assert "no neighbour fits" in verdict.notes[0]


def test_who_had_to_wait_for_a_cpu_is_told() -> None:
    disturbed = dataclasses.replace(SAME, iteration_s=(1.0, 1.0), waited_s=0.5)
    verdict = judge("hopper-s0", evidence(alone=[disturbed]))
    assert verdict.verdict == "PASS"
    assert len(verdict.notes) == 1
    assert "alone it waited 25% of the time" in verdict.notes[0]


def test_a_subject_is_its_job_but_short_and_a_neighbour_goes_on_and_on() -> None:
    given = named("hopper-s0")
    given = dataclasses.replace(
        given, spec=dataclasses.replace(given.spec, hyperparameters={"n_steps": 64}, n_envs=2, eval_episodes=3)
    )
    short = case_job(given, 4, checkpoints=True, max_retries=1)
    assert (short.spec.total_timesteps, short.spec.checkpoint_every, short.spec.eval_episodes) == (512, 1, 0)
    assert short.max_retries == 1
    neighbour = neighbour_of([Case(job=short, bundle=None)], 0)
    assert neighbour.job.job_id == neighbour.job.spec.job_id == "neighbour-0"
    assert neighbour.job.spec.total_timesteps > 1000 * short.spec.total_timesteps
    assert neighbour.job.max_retries == 0


def test_a_neighbour_of_a_job_of_several_ranks_has_one_and_the_memory_of_all() -> None:
    wide = make_job("wide-s0", ranks=3)
    assert neighbour_of([Case(job=wide, bundle=None)], 0).job.resources.all_memory_mib == 300
    assert neighbour_of([Case(job=wide, bundle=None)], 0).job.resources.ranks == 1
    assert neighbour_of([Case(job=wide, bundle=None)], 0).job.spec.ranks == 1
    assert [job.job_id for job in choose([make_job("one-s0"), wide], [], Path("jobs.toml"))[0]] == ["one-s0", "wide-s0"]
