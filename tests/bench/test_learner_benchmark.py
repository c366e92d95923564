"""``benchmarks.learner``: its arithmetic, that it measures what it says, and one row of it for
real."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import harness, interleaved_learners, roofline
from benchmarks.bare_physics import BarePhysics, Shadow, Trajectory, trajectory_of_simulation
from benchmarks.harness import Line, at_least, at_most, both_ways
from benchmarks.learner import networks
from orchestrator.worker.envs.vec_env import MujocoVecEnv

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pendulum() -> Any:
    return make_vec_env("Pendulum-v1", n_envs=3, seed=0)


def counted(call: Any) -> int:
    """Floating-point operations of matrix products, as torch counts them while it computes."""
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def update(model: PPO, rows: int) -> None:
    observations, actions = torch.randn(rows, 3), torch.randn(rows, 1)
    values, log_probs, _ = model.policy.evaluate_actions(observations, actions)
    (values.mean() + log_probs.mean()).backward()


@pytest.mark.parametrize("net_arch", [[64, 64], [5], [], [32, 16, 8]])
def test_operations_of_a_minibatch_are_those_that_torch_counts(
    pendulum: Any, net_arch: list[int]
) -> None:
    model = PPO(
        "MlpPolicy",
        pendulum,
        device="cpu",
        n_steps=16,
        batch_size=8,
        policy_kwargs={"net_arch": net_arch},
    )
    assert roofline.flops(roofline.minibatch(networks(model), 7)) == counted(
        lambda: update(model, 7)
    )


def test_operations_of_an_iteration_with_a_ragged_last_minibatch_are_those_that_torch_counts(
    pendulum: Any,
) -> None:
    model = PPO("MlpPolicy", pendulum, device="cpu", n_steps=16, batch_size=24)

    def iterate() -> None:
        for _ in range(5):
            model.policy.get_distribution(torch.randn(3, 3))
        model.policy.predict_values(torch.randn(15, 3))
        for rows in (4, 4, 4, 3) * 2:
            update(model, rows)

    products = roofline.iteration(networks(model), n_envs=3, n_steps=5, batch_size=4, n_epochs=2)
    assert roofline.flops(products) == counted(iterate)


def test_every_product_of_an_iteration_can_be_timed() -> None:
    sizes = roofline.Networks(observation=3, actions=2, hidden=(4,))
    products = roofline.iteration(sizes, n_envs=1, n_steps=5, batch_size=2, n_epochs=1)
    assert {product.transposed for product in products} == {"", "left", "right"}
    assert roofline.seconds(products) == pytest.approx(
        sum(count * roofline.fastest_s(product) for product, count in products.items())
    )
    assert roofline.seconds(products) > 0


@pytest.mark.parametrize(
    ("line", "target", "verdict"),
    [
        (at_least("a", [1, 2, 9]), "", ""),
        (at_least("a", [1, 2, 9], 2.0), "≥ 2", "met"),
        (at_least("a", [1, 2, 9], 2.1), "≥ 2.1", "**missed**"),
        (at_least("a", [1, 2, 9], 2.0, 2.5), "≥ 2, aim 2.5", "met, the aim missed"),
        (at_least("a", [1, 2, 9], 1.5, 2.0), "≥ 1.5, aim 2", "met, and the aim"),
        (at_least("a", [1, 2, 9], 3.0, 4.0), "≥ 3, aim 4", "**missed**"),
        (at_most("a", [1, 2, 9], 2.0), "≤ 2", "met"),
        (at_most("a", [1, 2, 9], 1.9), "≤ 1.9", "**missed**"),
        (at_most("a", [1, 2, 9]), "", ""),
    ],
)
def test_the_median_is_held_against_its_target(line: Line, target: str, verdict: str) -> None:
    assert (line.measured, line.target, line.verdict) == ("2 (1 – 9)", target, verdict)


def test_the_table_and_the_file_have_the_parts_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def part(name: str) -> Any:
        return lambda repeats: (
            asked.append((name, repeats)) or [at_least(f"of {name}", [1.0, 3.0, 2.0], 2.0, 4.0)]
        )

    parts = {name: part(name) for name in ("one", "two", "three")}
    file = tmp_path / "figures.json"
    monkeypatch.setattr(
        sys, "argv", ["benchmark", "--only", "three,one", "--repeats", "3", "--json", str(file)]
    )
    harness.print_table("what it is", parts)
    assert asked == [("three", 3), ("one", 3)]
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [
        f"| of {name} | 2 (1 – 3) | ≥ 2, aim 4 | met, the aim missed |" for name in ("three", "one")
    ]
    record = json.loads(file.read_text(encoding="utf-8"))
    assert list(record["parts"]) == ["three", "one"]
    assert record["parts"]["one"][0]["values"] == [1.0, 3.0, 2.0]
    assert record["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--only", "one,five"], "five: unknown; valid: one"), (["--repeats", "0"], "at least 1")],
)
def test_wrong_arguments_are_refused(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit, match="2"):
        harness.print_table("what it is", {"one": lambda _: []})
    assert message in capsys.readouterr().err


class Runner:
    """Takes the seconds that it is told, and notes when it was its turn."""

    shadow = None
    env_steps = 2048

    def __init__(self, name: str, seconds: Iterator[float], turns: list[str]) -> None:
        self._name, self._seconds, self._turns = name, seconds, turns

    def iterate(self) -> tuple[float, Any]:
        self._turns.append(self._name)
        return next(self._seconds), np.zeros(1)


def test_learners_alternate_and_their_first_iteration_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        interleaved_learners.gc, "collect", lambda: None
    )  # slow with torch loaded, and nothing is timed here
    turns: list[str] = []
    a = Runner("a", itertools.chain([100.0], itertools.cycle([1.0, 3.0])), turns)
    b = Runner("b", itertools.chain([100.0], itertools.repeat(8.0)), turns)
    times = interleaved_learners.interleave({"a": a, "b": b}, repeats=2)
    assert "".join(turns) == "ab" + "abba" + "baab"
    assert times["a"].learner_s == [4.0 / 4096] * 2
    assert times["b"].learner_s == [16.0 / 4096] * 2
    assert [both_ways(number, 1, 2, 3) for number in (0, 1)] == [(1, 2, 3), (3, 2, 1)]


def batched() -> MujocoVecEnv:
    return MujocoVecEnv(ROOT / "mjcf" / "hopper.xml", "forward", n_envs=2, seed=0)


def gymnasiums() -> Any:
    return make_vec_env("Hopper-v5", n_envs=2, seed=0)


@pytest.mark.parametrize("make", [batched, gymnasiums])
def test_bare_physics_goes_through_the_states_of_the_training_and_its_resets(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in the same positions to the bit, or raises."""
    monkeypatch.setattr(interleaved_learners, "LEAST_STEPS", 512)
    model = PPO("MlpPolicy", make(), seed=0, device="cpu", n_steps=128, batch_size=64, n_epochs=1)
    learner = interleaved_learners.SB3Learner(model, Shadow(model.env, make()))
    times = interleaved_learners.interleave({"sb3": learner}, repeats=1)
    assert 0 < times["sb3"].bare_s[0] < times["sb3"].learner_s[0]
    assert len(model.ep_info_buffer or ()) > 4, "no episode ended: the resets have not been tried"
    assert model.num_timesteps == (1 + 2) * 256


def test_physics_of_other_controls_is_refused() -> None:
    simulation = batched().simulation
    simulation.reset()
    trajectory = trajectory_of_simulation(simulation, np.full((20, 2, 3), 0.5, np.float32))
    bare = BarePhysics(simulation.model, 2, simulation.task.frame_skip)
    assert bare.seconds(trajectory) > 0
    other = Trajectory(
        before=trajectory.before,
        controls=trajectory.controls * 0.5,
        starts=trajectory.starts,
        after=trajectory.after,
    )
    with pytest.raises(RuntimeError, match="not comparable"):
        bare.seconds(other)


def test_a_row_is_measured_and_told(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    program = "from benchmarks import learner; learner.TURNS = 1; learner.main()"
    command = [
        sys.executable,
        "-c",
        program,
        "--only",
        "minibatch",
        "--repeats",
        "1",
        "--json",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    ratio, near = json.loads(file.read_text(encoding="utf-8"))["parts"]["minibatch"]
    assert ratio["what"].startswith("one minibatch of 64 on 105-64-64-8: time of sb3 / fast (")
    assert ratio["target"] == "≥ 5, aim 8"
    assert ratio["what"] in done.stdout
    assert "µs of matrix products: 6.81 MFLOP" in near["what"]
    assert len(ratio["values"]) == len(near["values"]) == 1
    assert ratio["values"][0] > 0 < near["values"][0]
