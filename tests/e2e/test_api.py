"""The functions ``run`` and ``train``: from scripts, threads and event loops, and called
repeatedly."""

from __future__ import annotations

import asyncio
import csv
import gc
import json
import os
import signal
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import command_helpers as commands
import psutil
import pytest
from command_helpers import BALANCER, HOPPER, odd, write_experiment

import orchestrator

SHORT: dict[str, Any] = {
    "total_timesteps": 256,
    "n_envs": 2,
    "eval_episodes": 0,
    "ppo": {"n_steps": 64, "batch_size": 64, "n_epochs": 1},
}
NO_ACTUATORS = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_results_come_in_order_and_a_broken_robot_is_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    (tmp_path / "still.xml").write_text(NO_ACTUATORS)
    (tmp_path / "mesh.xml").write_bytes(
        b"<mujoco><asset><mesh file='M\xfcller.stl'/></asset></mujoco>"
    )
    (tmp_path / "M\udcfcller.xml").write_text(HOPPER.read_text())
    broken = {
        "still.xml": "has no actuators",
        "gone.xml": "no such file",
        "mesh.xml": "no such file",
        "M\udcfcller.xml": "rename the file",
        "line\nbreak.xml": "rename the file",
    }
    first, *others = (tmp_path / name for name in broken)
    xmls = [first, HOPPER, *others]
    results = orchestrator.train(xmls, seeds=[0, 1], show=True, **SHORT)
    assert [(Path(str(one.xml)), one.seed) for one in results] == [
        (xml, seed) for xml in xmls for seed in (0, 1)
    ]
    assert [one.ok for one in results] == [xml == HOPPER for xml in xmls for _ in (0, 1)]
    for one, why in zip([results[0], *results[4::2]], broken.values(), strict=True):
        assert why in str(one.error)
    for one in results:
        assert (one.error is None) == one.ok
        if one.ok:
            assert one.ep_rew_mean is not None
            assert one.env_steps == 1
            assert one.model is not None
            assert one.model.is_absolute()
            assert one.model.is_file()


@pytest.mark.nightly
def test_an_entry_point_takes_the_place_of_the_task(tmp_path: Path) -> None:
    write_experiment(tmp_path, odd("unused", "nothing"))
    (result,) = orchestrator.train([BALANCER], entry_point="odd:make", **SHORT)
    assert result.ok, result.error


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"n_env": 3}, 'did you mean "n_envs"?'),
        ({"seeds": [0, 0]}, "different whole numbers"),
        ({"task": "fly"}, "forward"),
        ({"matrix": {"n_envs": [1, 2]}}, "belongs in a job file"),
        ({"ppo": {"batch_size": 60}}, "not divisible"),
        (
            {"task_options": {"forward_weight": 1}, "task": "forward"},
            "did you mean 'forward_reward_weight'",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_all_of_them_is_raised(arguments: dict[str, Any], fragment: str) -> None:
    with pytest.raises(orchestrator.UsageError, match=".*" + fragment.replace("?", r"\?")):
        orchestrator.train([HOPPER], **{**SHORT, **arguments})


@pytest.mark.nightly
def test_what_has_changed_is_refused_in_the_words_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    body = HOPPER.read_text()
    orchestrator.train([body], run_dir="run", **SHORT)
    changed = body.replace('gear="120"', 'gear="60"')
    changed = changed if changed != body else body.replace("<mujoco ", "<!-- changed --><mujoco ")
    with pytest.raises(orchestrator.UsageError, match='on_change="restart"') as caught:
        orchestrator.train([changed], run_dir="run", **SHORT)
    assert "--" not in str(caught.value)
    assert "run_dir" in str(caught.value)
    (again,) = orchestrator.train([changed], run_dir="run", on_change="restart", **SHORT)
    assert again.ok, again.error
    (fresh,) = orchestrator.train([body], run_dir="run", fresh=True, **SHORT)
    assert fresh.ok, fresh.error
    assert len(list(tmp_path.glob("run.*"))) == 1


def test_run_is_the_command_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = write_experiment(tmp_path, odd("good", "nothing"), odd("bad", "nothing"))
    for _ in range(2):
        done = orchestrator.run(jobs, max_parallel=2)
        assert (done.exit_code, done.ok) == (1, False)
        assert done.run_dir == tmp_path / "runs/tiny"
        good, bad = done
        assert (len(done), done[0], done["bad-s0"], done[-1:]) == (2, good, bad, (bad,))
        assert "good-s0" in done
        assert bad in done
        assert "worse-s0" not in done
        with pytest.raises(KeyError, match="worse-s0"):
            done["worse-s0"]
        assert (bad.fitness(default=-3.0), good.fitness()) == (-3.0, good.ep_rew_mean)
        assert good.ok
        assert "the knee fell off" in str(bad.error)
    with pytest.raises(orchestrator.SpecError) as caught:
        orchestrator.run(jobs, overrides={"ppo.gama": 0.9})
    assert 'did you mean "gamma"?' in str(caught.value) or 'did you mean "ppo.gamma"?' in str(
        caught.value
    )


def leftovers() -> tuple[int, int, int]:
    """Numbers of children, file descriptors and threads of this process."""
    return (
        len(psutil.Process().children(recursive=True)),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
    )


@pytest.mark.nightly
def test_sixty_calls_leak_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    commands.instant_workers(monkeypatch, tmp_path)
    commands.examine_nothing(monkeypatch)
    handlers = [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]

    def call(number: int) -> None:
        done = orchestrator.run(jobs, run_dir=tmp_path / f"runs/{number}")
        assert done.ok

    for number in range(10):  # fills caches
        call(number)
    gc.collect()
    before = leftovers()
    growths = []  # bytes, of 20 calls each; the allocator may take an arena in one of them
    for first in (10, 30, 50):
        memory = psutil.Process().memory_info().rss
        for number in range(first, first + 20):
            call(number)
        gc.collect()
        growths.append(psutil.Process().memory_info().rss - memory)
    assert leftovers() == before
    assert min(growths) < 2**20
    assert [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ] == handlers


@pytest.mark.nightly
def test_calls_in_a_running_event_loop_and_in_a_thread_work_and_leak_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)

    async def search() -> list[bool]:
        here = orchestrator.train([HOPPER], **SHORT)
        before = leftovers()
        again = orchestrator.train([HOPPER], **SHORT)
        assert leftovers() == before
        there = await asyncio.to_thread(orchestrator.train, [HOPPER], **SHORT)
        return [result.ok for result in here + again + there]

    assert asyncio.run(search()) == [True, True, True]


SCRIPT = f"""
{commands.STUBS}
import orchestrator
try:
    orchestrator.run(sys.argv[1], show=True)
except KeyboardInterrupt as error:
    print(f"interrupted {{error.run_dir.name}}: {{error}}", flush=True)
    sys.exit(7)
"""


def test_ctrl_c_in_a_script_is_a_keyboard_interrupt_once_all_have_left(tmp_path: Path) -> None:
    jobs = write_experiment(
        tmp_path, {"name": "hopper", "xml": HOPPER, "total_timesteps": 1_000_000}
    )
    process = commands.start([sys.executable, "-c", SCRIPT, jobs], cwd=tmp_path)
    commands.wait_until((tmp_path / "runs/tiny/jobs/hopper-s0/started").exists, "a worker")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=commands.PATIENCE_S)
    assert process.returncode == 7, err
    first, last = out.splitlines()[0], out.splitlines()[-1]
    assert first.endswith(f"results in {tmp_path / 'runs/tiny'}")
    assert last.startswith("interrupted tiny: ")
    assert f"run_dir='{tmp_path / 'runs/tiny'}'" in last
    assert commands.summary(tmp_path / "runs/tiny")["hopper-s0"]["state"] == "PENDING"


# -- what a finished job leaves


ACT = """
import pickle, sys
import gymnasium
from stable_baselines3 import PPO

model = PPO.load(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    statistics = pickle.load(file)
env = gymnasium.make("Pendulum-v1")
observation, _ = env.reset(seed=0)
for _ in range(20):
    action, _ = model.predict(statistics.normalize_obs(observation), deterministic=True)
    observation, *_ = env.step(action)
assert PPO.load(sys.argv[3]).observation_space.shape[0] > 2
assert not any(name.split(".")[0] == "orchestrator" for name in sys.modules), "it needs this package"
print(action.shape)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directory of a robot on a built-in task and of an environment of Gymnasium's."""
    folder = tmp_path_factory.mktemp("trained")
    jobs = write_experiment(
        folder,
        {
            **{"name": "hopper", "xml": HOPPER, "total_timesteps": 2048, "eval_episodes": 1},
            "ppo": {"n_steps": 256, "n_epochs": 4},
        },
        {
            "name": "pendulum",
            "env": "Pendulum-v1",
            "total_timesteps": 2048,
            "ppo": {"n_steps": 256},
        },
    )
    done = orchestrator.run(jobs, run_dir=folder / "run")
    assert done.ok
    return done.run_dir


@pytest.mark.nightly
def test_a_loaded_policy_is_trained_further_as_documented(trained: Path, tmp_path: Path) -> None:
    text = (commands.REPOSITORY / "docs/use-a-policy.md").read_text(encoding="utf-8")
    section = text.partition("## Train it further with Stable-Baselines3 alone\n")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    code = (
        code.replace("100_000", "2_048")
        .replace("env, 10)", "env, 2)")
        .replace("runs/robots", str(trained))
    )
    one_thread = commands.environment(OMP_NUM_THREADS="1")
    done = commands.finish([sys.executable, "-c", code], cwd=tmp_path, env=one_thread)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"further.zip", "further.pkl"}


@pytest.mark.nightly
def test_models_load_and_act_where_this_package_is_not_installed(trained: Path) -> None:
    jobs = trained / "jobs"
    files = [
        jobs / "pendulum-s0/model.zip",
        jobs / "pendulum-s0/vecnormalize.pkl",
        jobs / "hopper-s0/model.zip",
    ]
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = commands.finish([sys.executable, "-I", "-c", ACT, *files], cwd=Path("/"), env=plain)
    assert done.stdout == "(1,)\n", done.stderr


def test_progress_and_timings_have_a_full_row_an_iteration(
    finished_once: commands.Experiment,
) -> None:
    for name in ("hopper-s0", "balancer-s0"):
        job = finished_once.run_dir / "jobs" / name
        progress, timings = (read_rows(job / f"{table}.csv") for table in ("progress", "timings"))
        assert len(progress) == len(timings) == 512 // (64 * 2)
        assert [int(row["iteration"]) for row in timings] == list(range(1, len(timings) + 1))
        assert [row["env_steps"] for row in timings] == [
            row["time/total_timesteps"] for row in progress
        ]
        optional = () if Path("/sys/fs/cgroup/cpu.stat").exists() else ("throttled_s",)
        assert not [
            (row, column)
            for row in timings
            for column, cell in row.items()
            if not cell and column not in optional
        ]
        total = {column: sum(float(row[column] or 0) for row in timings) for column in timings[0]}
        # The rest is the time for writing logs, a large share of iterations of a few milliseconds
        # on a slow disk.
        assert 0 < total["rollout_s"] + total["train_s"] <= total["wall_s"]
        assert total["env_s"] + total["policy_s"] <= total["rollout_s"]
        assert total["backward_s"] + total["optimizer_s"] <= total["train_s"]
        assert total["cpu_s"] > 0
    row = json.loads((finished_once.run_dir / "summary.json").read_text())[0]
    for figure in (
        "queue_s",
        "import_s",
        "first_step_s",
        "checkpoint_s",
        "wall_s",
        "cpu_s",
        "env_steps_per_s",
    ):
        assert row[figure] is not None, figure


def test_measures_of_the_evaluation_are_in_results_and_summaries(
    finished: commands.Experiment,
) -> None:
    done = orchestrator.run(finished.jobs, run_dir=finished.run_dir)
    hopper, balancer = done
    assert hopper.job_dir is not None
    written = json.loads((hopper.job_dir / "eval.json").read_text())["deterministic"]["measures"]
    means = {name: measure["mean"] for name, measure in written.items()}
    known = {name: mean for name, mean in means.items() if mean is not None}
    assert hopper.measures == known
    assert "distance_m" in hopper.measures
    assert "distance_m" not in balancer.measures
    assert (hopper.fitness(), balancer.fitness()) == (hopper.eval_mean, balancer.eval_mean)
    row = commands.summary(done.run_dir)["hopper-s0"]
    assert row["measures"] == means
    cells, others = read_rows(done.run_dir / "summary.csv")
    assert float(cells["distance_m"]) == hopper.measures["distance_m"]
    assert others["distance_m"] == ""
    for column, key in (("started", "started_at"), ("ended", "ended_at")):
        assert abs(datetime.fromisoformat(cells[column]).timestamp() - row[key]) <= 1.0


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
