"""Ranks that are killed, stopped or asked to leave: nothing survives, nothing is lost, and not one
bit differs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import command_helpers as commands
import pytest
import ranks_helpers as helpers
import worker_helpers as worker
from command_helpers import HOPPER, Run, carriers, give, token_of, wait_until, write_experiment
from executor_helpers import until_exit

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.launcher import Launch
from orchestrator.executors.processes import Processes
from orchestrator.worker.training.rank_synchronizer import COMPARE_VARIABLE

pytestmark = pytest.mark.nightly

SMALL_PPO = {"n_steps": 32, "batch_size": 64, "n_epochs": 2}
NET = {"net_arch": [8]}
RANDOMIZE = {
    "body.*.mass": "scale(linear(1, 0.7), linear(1.01, 1.3))",
    "terrain": "rough(0.03)",
    "action.delay": "choice(0, 1)",
    "observation.noise": "normal(0, 0.01)",
    "push.speed": "uniform(0, 0.5)",
}
PPO = helpers.spec(
    learner="fast",
    task="forward",
    xml=str(HOPPER),
    total_timesteps=8192,
    checkpoint_every=1024,
    eval_episodes=1,
    hyperparameters=SMALL_PPO,
    policy_kwargs=NET,
)
SAC = helpers.spec("sac", total_timesteps=2048)
JOBS: dict[str, WorkerSpec] = {
    "ppo": PPO,
    "sac": SAC,
    "ppo sb3": dataclasses.replace(PPO, learner="sb3", total_timesteps=4096),
    "ppo randomised": dataclasses.replace(
        PPO, randomize=RANDOMIZE, asymmetric=True, total_timesteps=4096
    ),
    "sac randomised": helpers.spec(
        "sac",
        task="forward",
        xml=str(HOPPER),
        total_timesteps=2048,
        eval_episodes=1,
        randomize=RANDOMIZE,
        asymmetric=True,
    ),
    "sac parameter-server": dataclasses.replace(SAC, mode="parameter-server"),
}
TIMES = {"time/fps", "time/time_elapsed"}

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="`run` gives each rank a core"
)


START_S = 2.0
"""About what ranks need before they train, on a slow machine."""
DISTURBED = 0.5
"""The part of the training in which ranks are killed. The checkpoint that is waited for is at most
this one, and two of four are left: what follows it takes longer than this process to notice it."""
TRIES = 5
"""How often a training is begun that ends before this process comes to kill it, as it may where
others use the machine."""


def what_was_learnt(paths: JobPaths, number: int) -> list[Any]:
    """Everything that a training leaves, except for times. :param number: of its last attempt."""
    record = ExitRecord.from_json(paths.attempt(number).exit.read_text())
    assert record.weights_sha256 is not None
    logged = [
        {key: value for key, value in row.items() if key not in TIMES}
        for row in worker.rows(paths.progress_csv)
    ]
    steps = [(row["iteration"], row["env_steps"]) for row in worker.rows(paths.timings_csv)]
    return [
        record.weights_sha256,
        logged,
        steps,
        paths.eval.read_bytes() if paths.eval.exists() else None,
    ]


@contextlib.contextmanager
def local_executor() -> Iterator[Processes]:
    executor = Processes(environment={"PYTHONPATH": str(worker.REPOSITORY)})
    try:
        yield executor
    finally:
        executor.close()


def launch(paths: JobPaths, number: int) -> Launch:
    """Of two ranks, each of which may use every CPU."""
    paths.attempt(number).root.mkdir(parents=True)
    cpus = tuple(os.sched_getaffinity(0)) * 2
    return Launch(
        job_id=paths.root.name,
        number=number,
        job_dir=paths.root,
        cpus=cpus,
        gpus=(),
        threads=1,
        ranks=2,
    )


def train(root: Path, spec: WorkerSpec) -> list[Any]:
    """Train undisturbed; returns what was learnt."""
    paths = worker.job(root, spec)
    with local_executor() as executor:
        handle = executor.submit(launch(paths, 0))
        assert until_exit(executor, handle)[handle].returncode == ExitCode.SUCCEEDED
    return what_was_learnt(paths, 0)


Undisturbed: TypeAlias = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What a job of that name learns; it is trained when it is first asked for."""
    return functools.cache(lambda name: train(tmp_path_factory.mktemp("undisturbed"), JOBS[name]))


# -- killed at any instant


def trained_part(paths: JobPaths, total_timesteps: int) -> float:
    """What part of all steps the newest checkpoint holds."""
    names = (path.stem for path in paths.checkpoints.glob("checkpoint-*.pt"))
    return max((int(name.rpartition("-")[2]) for name in names), default=0) / total_timesteps


def train_killing(paths: JobPaths, total_timesteps: int, kills: int) -> int:
    """Launch attempts until one succeeds; in the first ``kills`` a random rank is killed at a
    random instant.

    Every third is killed during its start. The instants of the others are drawn in trained steps,
    so that they come before the end however fast this machine is. Returns the number of the last
    attempt; zero where the first one ended before it was killed.
    """
    dice = random.Random(os.urandom(8))
    with local_executor() as executor:
        for number in itertools.count():
            handle = executor.submit(launch(paths, number))
            ranks = executor._groups[handle].running
            pids, token = (
                [rank.pid for rank in ranks],
                f"ORCHESTRATOR_TOKEN={executor._token}".encode(),
            )
            victim = dice.randrange(len(pids))
            if number < kills:
                part = DISTURBED * dice.uniform(number, number + 1) / kills
                if number % 3 == 2:
                    time.sleep(dice.uniform(0.0, START_S))
                else:
                    wait_until(
                        lambda part=part: part <= trained_part(paths, total_timesteps) > 0,
                        f"{part:.0%} trained",
                    )
                    time.sleep(dice.uniform(0.0, 0.02))  # not always just after a checkpoint
                commands.kill(
                    pids[victim]
                )  # not waited for yet, so that no other process can have its pid
            end = until_exit(executor, handle)[handle]
            assert not any(map(is_there, pids))
            assert not carriers(token)
            if end.returncode == ExitCode.SUCCEEDED:
                return number
            # A killed process gives back its memory last: the other may have noticed, and ended,
            # before that.
            assert (end.returncode, end.rank) in [
                (-signal.SIGKILL, victim),
                (ExitCode.RANK_LOST, 1 - victim),
            ]
    raise AssertionError("unreachable")


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def check_kills(root: Path, spec: WorkerSpec, learnt: list[Any], kills: int) -> None:
    for number in range(TRIES):
        paths = worker.job(root / str(number), spec)
        last = train_killing(paths, spec.total_timesteps, kills)
        if last > 0:
            break
    assert last > 0, "no attempt was killed"
    assert what_was_learnt(paths, last) == learnt
    assert list(paths.checkpoints.glob("replay*")) == [], "nobody needs them any more"


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_with_any_rank_killed_at_random_instants_not_a_bit_is_lost(
    name: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The third is killed during its start. ``tests.soak`` kills ranks for as long as one likes."""
    check_kills(tmp_path, JOBS[name], undisturbed(name), kills=3 if name == "ppo" else 2)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name", ["ppo sb3", "ppo randomised", "sac randomised", "sac parameter-server"]
)
def test_with_ranks_of_each_learner_and_mode_killed_not_a_bit_is_lost(
    name: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Once each: that a resumed training is killed and resumed again, the test before shows."""
    check_kills(tmp_path, JOBS[name], undisturbed(name), kills=1)


# -- by the command: a rank that hangs, a user who asks to leave, a rank that drifts

PATIENCE_S = 5.0


def ranks_of(supervisor: int) -> dict[int, int]:
    """Rank → pid of the ranks that ``supervisor`` has started."""
    pids = {}
    for pid in map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()):
        with contextlib.suppress(OSError, KeyError):  # it has ended, or is not a rank
            pids[int(commands.variables_of(pid)["RANK"])] = pid
    return pids


@needs_two_cores
def test_a_hung_rank_is_given_up_and_who_asks_to_leave_can_resume_bit_identically(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    spec = JOBS["ppo"]
    jobs = write_experiment(
        tmp_path,
        {
            "name": "ppo",
            "xml": HOPPER,
            "task": "forward",
            "seeds": [spec.seed],
            "learner": "fast",
            "n_envs": spec.n_envs,
            "normalize": True,
            "total_timesteps": spec.total_timesteps,
            "checkpoint_every": spec.checkpoint_every,
            "eval_episodes": spec.eval_episodes,
            "retry": {"max_retries": 3},
            "resources": {"ranks": 2},
            "distributed": {"timeout": f"{PATIENCE_S:g}s"},
            "ppo": SMALL_PPO,
            "policy_kwargs": NET,
        },
    )
    paths = RunPaths(tmp_path / "run").job("ppo-s3")
    stopped = random.Random(os.urandom(8)).randrange(2)
    with Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        run.until("launched")
        wait_until(lambda: list(paths.checkpoints.glob("*.pt")), "a checkpoint")
        pids = ranks_of(run.popen.pid)
        commands.kill(pids[stopped], signal.SIGSTOP)
        message = run.until("retrying")["message"]
        assert f"rank {1 - stopped} of 2 has lost the others" in message
        assert f"has not answered for {PATIENCE_S:g} s" in message
        assert not any(map(is_there, pids.values()))

        run.until("launched")
        newest = max(paths.checkpoints.glob("*.pt"))
        wait_until(lambda: max(paths.checkpoints.glob("*.pt")) > newest, "another checkpoint")
        token = token_of(ranks_of(run.popen.pid)[1])
        run.signal(signal.SIGINT)
        assert run.end() == 130
        assert not carriers(token)

    records = [
        ExitRecord.from_json(paths.attempt(1).exit_of(rank).read_text()) for rank in range(2)
    ]
    assert [record.code for record in records] == [ExitCode.INTERRUPTED] * 2
    assert (
        records[0].env_steps
        == records[1].env_steps
        == int(max(paths.checkpoints.glob("*.pt")).stem[-12:])
    )
    assert records[0].env_steps < spec.total_timesteps

    done = give("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert what_was_learnt(paths, 2) == undisturbed("ppo")


DRIFTING = """
import gc, os
import gymnasium

class Drifting(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 100 and os.environ.get("RANK") == "1":
            from stable_baselines3.common.policies import BasePolicy
            (policy,) = [held for held in gc.get_objects() if issubclass(type(held), BasePolicy)]
            next(policy.parameters()).data.flatten()[0] += 1e-6
        return self.env.step(action)

def make(xml=None, seed=0):
    return Drifting(gymnasium.make("Pendulum-v1"))
"""


@needs_two_cores
@pytest.mark.parametrize("learner", ["fast", "sb3"])
def test_ranks_that_drift_apart_end_the_job_at_once_with_the_reason(
    learner: str, tmp_path: Path
) -> None:
    job = {
        "name": "drifting",
        "entry_point": "drifting:make",
        "learner": learner,
        "retry": {"max_retries": 3},
    }
    jobs = write_experiment(tmp_path, job | {"resources": {"ranks": 2}})
    (tmp_path / "drifting.py").write_text(DRIFTING)
    done = give("run", jobs, "--run-dir", "run", cwd=tmp_path, **{COMPARE_VARIABLE: "1"})
    assert done.returncode == 1, done.stderr
    (row,) = commands.summary(tmp_path / "run").values()
    assert (row["state"], row["attempts"], row["cause"]) == ("FAILED", 1, "error")
    assert "of ranks [1] differ from those of rank 0" in row["message"]
