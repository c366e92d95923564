"""Exported policies beside those that they were exported from.

    python -m benchmarks.exported_policies RUN_DIR... [--observations 10000] [--output FILE.md]
    python -m benchmarks.exported_policies --train FOLDER [--ppo-steps N] [--sac-steps N]

For every job of a run directory that has an `eval.json`, every format is written as `export` does.
Actions are compared on observations that the policy visits, in batches as in evaluation, and the
evaluation of `eval.json` is repeated with the exported policy. `--train` first trains PPO and SAC
on every robot of `jobs/robots.toml` in FOLDER/ppo and FOLDER/sac, or resumes that.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import orchestrator

ROBOTS = Path(__file__).parents[1] / "jobs/robots.toml"
FORMATS = ("onnx", "npz")
SAC = """name = "exported-sac"
[defaults]
algo = "sac"
total_timesteps = {steps}
n_envs = 8
normalize = true
eval_episodes = 10
[defaults.sac]
learning_starts = 512
gradient_steps = 1
buffer_size = {steps}
"""
Actions = NDArray[np.float32]
Policy = Callable[[NDArray[Any]], Mapping[str, Actions]]


class Compared(NamedTuple):
    """A job's policy and one exported file of it."""

    job: str
    algo: str
    format: str
    difference: float
    """Largest absolute difference of actions."""
    returns: list[float]
    """Of the evaluation through the exported policy."""
    expected: list[float]
    """Those of ``eval.json``."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dirs", type=Path, nargs="*", metavar="RUN_DIR")
    parser.add_argument(
        "--train", type=Path, metavar="FOLDER", help="train PPO and SAC there first"
    )
    parser.add_argument(
        "--ppo-steps", type=int, default=40_960, metavar="N", help="env_steps of each (40,960)"
    )
    parser.add_argument(
        "--sac-steps", type=int, default=2_048, metavar="N", help="env_steps of each (2,048)"
    )
    parser.add_argument(
        "--observations", type=int, default=10_000, metavar="N", help="of each job (10,000)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the table there, too")
    options = parser.parse_args()
    run_dirs = options.run_dirs
    if options.train is not None:
        run_dirs = [*run_dirs, *_train(options.train, options.ppo_steps, options.sac_steps)]
    if not run_dirs:
        parser.error("name run directories, or --train FOLDER")
    rows = [row for run_dir in run_dirs for row in compare(run_dir, options.observations)]
    text = table(rows)
    print(text, end="")
    if options.output is not None:
        options.output.write_text(text)


def _train(folder: Path, ppo_steps: int, sac_steps: int) -> list[Path]:
    """Run directories in which both algorithms have been trained on every robot."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = [SAC.format(steps=sac_steps)]
    for job in tomllib.loads(ROBOTS.read_text())["jobs"]:
        values = {"task": "forward", **job, "xml": str((ROBOTS.parent / job["xml"]).resolve())}
        keys = ("name", "xml", "task", "task_options")
        tables.append(
            "[[jobs]]\n"
            + "".join(f"{key} = {_toml(values[key])}\n" for key in keys if key in values)
        )
    job_file = folder / "sac.toml"
    job_file.write_text("\n".join(tables))
    steps = {"total_timesteps": ppo_steps}
    orchestrator.run(ROBOTS, run_dir=folder / "ppo", overrides=steps, show=True)
    orchestrator.run(job_file, run_dir=folder / "sac", show=True)
    return [folder / "ppo", folder / "sac"]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + " }"
    return json.dumps(value)


def compare(run_dir: Path, observations: int) -> Iterator[Compared]:
    """One row for each job that has been trained and evaluated, and each format."""
    import torch

    torch.set_num_threads(1)  # as in training: with more, torch rounds differently
    with tempfile.TemporaryDirectory() as name:
        for job in sorted(path.parent for path in run_dir.glob("jobs/*/eval.json")):
            model, _ = orchestrator.load(job)
            seen = list(_visited(job, model, observations))
            expected = np.concatenate([actions for *_, actions in seen])
            for kind in FORMATS:
                policy = _exported(job, Path(name) / f"{job.name}.{kind}")
                actions = np.concatenate([policy(raw)["action"] for raw, _ in seen])
                returns, wanted = _evaluated(job, policy)
                difference = float(np.abs(actions - expected).max())
                algo = type(model).__name__
                print(f"{job.name} .{kind}: {difference:.1e}", file=sys.stderr, flush=True)
                yield Compared(
                    job=job.name,
                    algo=algo,
                    format=kind,
                    difference=difference,
                    returns=returns,
                    expected=wanted,
                )


def _visited(job: Path, model: Any, observations: int) -> Iterator[tuple[NDArray[Any], Actions]]:
    """Observations as the environment gives them, ``(n_envs, n)``, and the policy's actions for
    them, clipped."""
    n_envs = json.loads((job / "eval.json").read_text())["n_envs"]
    _, env = orchestrator.load(job, n_envs=n_envs, seed=1)
    original = getattr(env, "get_original_obs", None)
    observation = env.reset()
    space: Any = env.action_space
    for _ in range(-(-observations // n_envs)):
        raw = np.array(observation if original is None else original())
        actions, _ = model.predict(observation, deterministic=True)
        yield raw, np.clip(actions, space.low, space.high)
        observation, *_ = env.step(actions)


def _evaluated(job: Path, policy: Policy) -> tuple[list[float], list[float]]:
    """Returns of the evaluation through ``policy``, and those of ``eval.json``."""
    from stable_baselines3.common.evaluation import evaluate_policy

    class Predictor:
        def predict(
            self, observation: Any, state: Any = None, *_: Any, **__: Any
        ) -> tuple[Actions, Any]:
            return policy(observation)["action"], state

    evaluation = json.loads((job / "eval.json").read_text())
    env = orchestrator.make_env(job, evaluation["n_envs"], normalize=False)
    returns, _ = evaluate_policy(
        Predictor(), env, evaluation["episodes"], return_episode_rewards=True
    )
    return list(map(float, returns)), evaluation["deterministic"]["returns"]  # type: ignore[arg-type]


def _exported(job: Path, path: Path) -> Policy:
    """The policy in a file that was written as by the command."""
    from orchestrator.features.export.worker import job_export, policy_files

    job_export.export(argparse.Namespace(job_dir=job, to=path, checkpoint=None, check=False))
    return policy_files.read(path)


def _mean_text(row: Compared) -> str:
    mean = f"{np.mean(row.returns):.2f}"
    return f"{mean} =" if row.returns == row.expected else mean


def table(rows: list[Compared]) -> str:
    """Largest difference of actions by format, and the mean returns of the evaluation.

    Means with = are of returns that are equal to the bit, each of them.
    """
    kinds = [kind for kind in FORMATS if any(row.format == kind for row in rows)]
    heads = [
        "policy",
        "algorithm",
        *(f"`.{kind}`" for kind in kinds),
        "return",
        *(f"by `.{kind}`" for kind in kinds),
    ]
    lines = [heads, ["---"] * len(heads)]
    for job, algo in dict.fromkeys((row.job, row.algo) for row in rows):
        of = {row.format: row for row in rows if (row.job, row.algo) == (job, algo)}
        means = [_mean_text(of[kind]) for kind in kinds]
        expected = f"{np.mean(next(iter(of.values())).expected):.2f}"
        lines.append(
            [job, algo, *(f"{of[kind].difference:.1e}" for kind in kinds), expected, *means]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
