"""How much faster the fast learner is than stock Stable-Baselines3's PPO, and how close it is to a
core's limit.

    python -m benchmarks.learner [--repeats 5] [--only Ant-v5,quadruped] [--json FILE]

Everything runs on one core with one thread. Learners train alternately within one process, in
alternating order, whole iterations (a rollout and its update) after one warm-up iteration. A repeat
is the ratio of the CPU times for the same number of env_steps (nothing waits, so that on an idle
machine CPU time is wall time); the table gives the median and the range of the repeats.

*Roofline* lines compare the fast learner with the least possible time: bare ``mj_step`` through the
states and controls of its own training, plus the matrix products that PPO needs, each as fast as
NumPy's BLAS computes it alone on this core.
"""

from __future__ import annotations

import copy
import functools
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks import harness, roofline
from benchmarks.harness import ROOT, Line, at_least, both_ways, print_table
from orchestrator import jobfile as job_files
from orchestrator.core.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from benchmarks.interleaved_learners import SB3Learner, StepTimes
    from benchmarks.roofline import Networks

Targets = tuple[float, float] | tuple[()]
"""The least value and the aim; or no target."""
FAST = "fast"
STOCK = "sb3"
IN_JOB = "fast, over the environment of a job"
GYMNASIUM: Mapping[str, Targets] = {
    "Ant-v5": (2.0, 2.5),
    "HalfCheetah-v5": (4.0, 6.0),
    "Hopper-v5": (3.0, 4.2),
}
OVER_STOCK: Mapping[str, Targets] = {"runner": (3.0, 4.0)}
OF_PHYSICS: Mapping[str, Targets] = {"quadruped": (0.65, 0.75)}
MINIBATCH: Targets = (5.0, 8.0)
WIDE: Targets = (1.3, 2.0)
WIDE_NETWORKS: Mapping[str, Any] = {"net_arch": [256, 256], "activation_fn": "relu"}
TURNS = 2
"""Number of updates in a repeat."""


def robot_of_gymnasium(robot: str, repeats: int) -> list[Line]:
    """Default hyperparameters, one environment in a DummyVecEnv, or as in a job."""
    spec = gymnasium_spec(robot)
    measured = {name: over_dummy(spec, name) for name in (FAST, STOCK)}
    measured[IN_JOB] = over_environment_of_job(spec)
    return compare(f"{robot}, defaults", measured, repeats, GYMNASIUM[robot])


def robot_of_ours(robot: str, repeats: int) -> list[Line]:
    """The batched environment of ``jobs/robots.toml``, with its hyperparameters and with the
    defaults."""
    job = next(
        job for job in job_files.load(ROOT / "jobs" / "robots.toml").jobs if job.spec.name == robot
    )
    as_in_jobs = replace(job.spec, xml=str(job.xml_source), normalize=False)
    defaults = replace(as_in_jobs, hyperparameters={}, policy_kwargs={})
    over_stock = OVER_STOCK.get(robot, ())
    of_physics = OF_PHYSICS.get(robot, ())
    lines = []
    for words, spec in (("hyperparameters of robots.toml", as_in_jobs), ("defaults", defaults)):
        for normalize in (False, True):
            what = (
                f"{robot}, n_envs {spec.n_envs}, {words}, {'' if normalize else 'not '}normalised"
            )
            chosen = replace(spec, normalize=normalize)
            measured = {name: over_batch(chosen, name) for name in (FAST, STOCK)}
            lines += compare(what, measured, repeats, over_stock, of_physics)
    return lines


def one_minibatch(repeats: int) -> list[Line]:
    """One minibatch of 64 with the default networks of Ant-v5."""
    return minibatches(gymnasium_spec("Ant-v5"), "105-64-64-8", repeats, MINIBATCH)


def wide(repeats: int) -> list[Line]:
    """Larger networks, where matrix products take more of the time."""
    spec = gymnasium_spec("HalfCheetah-v5", policy_kwargs=WIDE_NETWORKS)
    measured = {name: over_dummy(spec, name) for name in (FAST, STOCK)}
    what = "HalfCheetah-v5, net_arch [256, 256], ReLU"
    return [
        *minibatches(spec, "17-256-256-6, ReLU", repeats, WIDE),
        *compare(what, measured, repeats, WIDE),
    ]


def gymnasium_spec(robot: str, **changes: Any) -> WorkerSpec:
    return WorkerSpec(
        job_id=robot,
        name=robot,
        seed=0,
        algo="ppo",
        learner="auto",
        total_timesteps=1_000_000,
        n_envs=1,
        normalize=False,
        checkpoint_every=1_000_000,
        eval_episodes=0,
        env=robot,
        **changes,
    )


def built(spec: WorkerSpec, learner: Any, venv: VecEnv) -> Any:
    """The model of ``spec`` with ``learner``."""
    from orchestrator.worker.training import learners

    made = learners.build(replace(spec, learner=learner), venv)
    assert made.name == learner, made.reason
    return made.model


def dummy(robot: str) -> Any:
    """A ``DummyVecEnv`` of one environment, as in Stable-Baselines3's documentation."""
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env(robot, n_envs=1, seed=0)


def over_dummy(spec: WorkerSpec, learner: str) -> SB3Learner:
    from benchmarks.bare_physics import Shadow
    from benchmarks.interleaved_learners import SB3Learner

    venv = dummy(str(spec.env))
    return SB3Learner(
        built(spec, learner, venv), Shadow(venv, dummy(str(spec.env))) if learner == FAST else None
    )


def over_environment_of_job(spec: WorkerSpec) -> SB3Learner:
    from benchmarks.interleaved_learners import SB3Learner
    from orchestrator.worker.envs import env_factory

    return SB3Learner(
        built(spec, FAST, env_factory.make(spec, ROOT, n_envs=spec.n_envs, seed=spec.seed))
    )


def over_batch(spec: WorkerSpec, learner: str) -> SB3Learner:
    from benchmarks.bare_physics import Shadow
    from benchmarks.interleaved_learners import SB3Learner
    from orchestrator.worker.envs import env_factory

    venv = env_factory.make(spec, ROOT, n_envs=spec.n_envs, seed=spec.seed)
    twin = env_factory.make(spec, ROOT, n_envs=spec.n_envs, seed=spec.seed)
    model = built(spec, learner, env_factory.normalized_env(spec, venv) if spec.normalize else venv)
    return SB3Learner(model, Shadow(venv, twin))


def compare(
    what: str,
    measured: Mapping[str, SB3Learner],
    repeats: int,
    over_stock: Targets = (),
    of_physics: Targets | None = None,
) -> list[Line]:
    """Lines of a comparison that includes the fast learner and stock PPO.

    :param of_physics: targets of the fast learner's share of bare physics; None: no shares are
        printed.
    """
    from benchmarks.interleaved_learners import interleave

    times = interleave(measured, repeats)
    fast = times[FAST]
    lines = [
        at_least(
            f"{what}: env_steps/s of {ahead} / {behind} ({rate(times[ahead])} / {rate(times[behind])})",
            ratios(times[behind].learner_s, times[ahead].learner_s),
            *(over_stock if (ahead, behind) == (FAST, STOCK) else ()),
        )
        for ahead, behind in [
            (name, STOCK) if name == IN_JOB else (FAST, name) for name in measured if name != FAST
        ]
    ]
    products = products_of(measured[FAST].model)
    env_steps = measured[FAST].env_steps
    if of_physics is not None:
        bare_s = statistics.median(fast.bare_s)
        most = bare_s / (bare_s + roofline.seconds(products) / env_steps)
        lines += [
            at_least(
                f"{what}: env_steps/s of {name} / bare mj_step ({1 / bare_s:,.0f}; roofline: {most:.2f})",
                ratios(times[name].bare_s, times[name].learner_s),
                *(of_physics if name == FAST else ()),
            )
            for name in (FAST, STOCK)
        ]
    return [
        *lines,
        near_the_roof(what, products, env_steps, "env_step", fast.learner_s, fast.bare_s),
    ]


def minibatches(spec: WorkerSpec, what: str, repeats: int, targets: Targets) -> list[Line]:
    """Time per minibatch of ``train()`` of the same rollout by both learners."""
    from benchmarks.interleaved_learners import BUFFER, SB3Learner, Update

    models = {learner: built(spec, learner, dummy(str(spec.env))) for learner in (FAST, STOCK)}
    for model in models.values():
        SB3Learner(model).collect()
    stock = models[STOCK]
    rollout = {name: getattr(stock.rollout_buffer, name).copy() for name in BUFFER}
    parameters = copy.deepcopy(stock.policy.state_dict())
    updates = {learner: Update(model, rollout, parameters) for learner, model in models.items()}
    seconds: dict[str, list[float]] = {learner: [] for learner in models}
    for update in updates.values():
        update.seconds()
    for number in range(repeats):
        for learner in both_ways(number, FAST, STOCK):
            seconds[learner].append(
                statistics.fmean(updates[learner].seconds() for _ in range(TURNS))
            )
    fast_ms = statistics.median(seconds[FAST]) * 1e3
    stock_ms = statistics.median(seconds[STOCK]) * 1e3
    whole = f"one minibatch of {stock.batch_size} on {what}"
    products = roofline.minibatch(networks(stock), stock.batch_size)
    return [
        at_least(
            f"{whole}: time of sb3 / fast ({stock_ms:.3f} / {fast_ms:.3f} ms)",
            ratios(seconds[STOCK], seconds[FAST]),
            *targets,
        ),
        near_the_roof(whole, products, 1, "minibatch", seconds[FAST], [0.0] * repeats),
    ]


def products_of(model: Any) -> roofline.Products:
    """The matrix products of an iteration."""
    sizes = {name: getattr(model, name) for name in ("n_envs", "n_steps", "batch_size", "n_epochs")}
    return roofline.iteration(networks(model), **sizes)


def networks(model: Any) -> Networks:
    """The networks of a PPO whose actor and critic have the same hidden layers."""
    hidden = model.policy.net_arch
    hidden = hidden["pi"] if isinstance(hidden, dict) else hidden
    observation = math.prod(model.observation_space.shape)
    actions = math.prod(model.action_space.shape)
    return roofline.Networks(observation=observation, actions=actions, hidden=hidden)


def near_the_roof(
    what: str,
    products: roofline.Products,
    count: int,
    unit: str,
    seconds: list[float],
    physics_s: list[float],
) -> Line:
    """The share of the fast learner's time that physics and matrix products need at least.

    :param count: number of units in ``products``.
    :param seconds: seconds per unit, one value per repeat; ``physics_s`` is in the same form.
    """
    products_s = roofline.seconds(products) / count
    parts = f"{products_s * 1e6:.3g} µs of matrix products: {roofline.in_words(products, count)}"
    if any(physics_s):
        parts = f"{statistics.median(physics_s) * 1e6:.3g} µs of physics, {parts}"
    return at_least(
        f"{what}: roofline, least time per {unit} ({parts}) / fast's",
        [(physics + products_s) / total for physics, total in zip(physics_s, seconds, strict=True)],
    )


def rate(times: StepTimes) -> str:
    return f"{1 / statistics.median(times.learner_s):,.0f}"


def ratios(numerators: list[float], denominators: list[float]) -> list[float]:
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


PARTS: dict[str, Callable[[int], list[Line]]] = {
    **{robot: functools.partial(robot_of_gymnasium, robot) for robot in GYMNASIUM},
    **{robot: functools.partial(robot_of_ours, robot) for robot in ("runner", "quadruped")},
    "minibatch": one_minibatch,
    "wide": wide,
}


def main() -> None:
    harness.keep_to_one_core()
    print_table(__doc__, PARTS)


if __name__ == "__main__":
    main()
