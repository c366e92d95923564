"""Is the advice on physics true? Nine robots are trained as they are, and with the first line that
``advise`` prints for each.

    python -m benchmarks.followed_advice write advised.toml
    python -m orchestrator run advised.toml --run-dir runs/advised
    python -m benchmarks.followed_advice report runs/advised

``write`` measures the advice, and writes a job file that has both robots with five seeds each.
``report`` prints Markdown; its exit code is 1 where a robot that followed its advice is worse by
more than a standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import ORCHESTRATOR, ROOT
from benchmarks.learning import mean_std, tested
from benchmarks.learning_runs import Trained, read, values
from benchmarks.permutation_tests import Pair
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.text import joined
from orchestrator.jobfile.job_file_text import comment, toml

OWN = ("quadruped", "hopper", "dog", "arm", "biped", "rover")
GYMNASIUM = ("Ant-v5", "Humanoid-v5", "HalfCheetah-v5")
SEEDS = 5
TOTAL_TIMESTEPS = 102_400
BEFORE = "before"
AFTER = "after"


def robots() -> dict[str, dict[str, Any]]:
    """Keys of a job by the robot's name."""
    found: dict[str, dict[str, Any]] = {
        name: {"xml": str(ROOT / "mjcf" / f"{name}.xml")} for name in OWN
    }
    return found | {name.partition("-")[0]: {"task": f"gymnasium:{name}"} for name in GYMNASIUM}


def job_file(
    jobs: Mapping[str, Mapping[str, Any]], remarks: Mapping[str, str], *, seeds: int = SEEDS
) -> str:
    """:param remarks: of some of the jobs, as comments. :param seeds: how many, from 0."""
    lines = [
        'name = "advised"',
        "[defaults]",
        f"seeds = {list(range(seeds))}",
        f"total_timesteps = {TOTAL_TIMESTEPS}",
        "eval_episodes = 10",
        "[defaults.ppo]",
        "n_steps = 256",
        "batch_size = 256",
    ]
    for name, keys in jobs.items():
        lines += ["", "[[jobs]]", f"name = {toml(name)}"]
        if name in remarks:
            lines.append(comment(remarks[name]))
        lines += [f"{key} = {toml(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def advised_jobs(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The robots before and after their first line of advice, and what that is.

    :param rows: ``advise --json`` of a job file with all robots.
    """
    jobs: dict[str, dict[str, Any]] = {}
    remarks: dict[str, str] = {}
    for row in rows:
        name = str(row["job"]).rpartition("-s")[0]
        keys = robots()[name]
        jobs[f"{name}-{BEFORE}"] = keys
        advice = row["advice"]
        offered = [change for change in advice["changes"] if change["is_offered"]]
        if not offered:
            remarks[f"{name}-{BEFORE}"] = advice["problem"] or "no change is offered"
            continue
        first = offered[0]
        followed = {**keys, "model": first["edits"]}
        if first["task_options"]:
            followed["task_options"] = first["task_options"]
        if advice["own_xml"] is not None:
            followed["xml"] = advice["own_xml"]
        jobs[f"{name}-{AFTER}"] = followed
        remarks[f"{name}-{AFTER}"] = _in_words(first)
    return jobs, remarks


def _in_words(change: Mapping[str, Any]) -> str:
    speedup = change["speedup"]
    of = f" ({change['remark']})" if change["remark"] else ""
    figures = f"{speedup['median']:.2f} ({speedup['low']:.2f}–{speedup['high']:.2f})"
    return f"{change['name']}{of}: speed-up {figures}"


def advise(seconds: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        jobs = Path(folder) / "robots.toml"
        jobs.write_text(job_file(robots(), {}, seeds=1))
        command = [*ORCHESTRATOR, "advise", str(jobs), f"--time={seconds}", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=folder)
        if done.returncode not in (0, 1):  # 1: of some robots
            raise UsageError(f"advise ended with exit code {done.returncode}")
    return [row for row in json.loads(done.stdout) if row["job"] is not None]


def report(jobs: Mapping[str, Sequence[Trained]]) -> tuple[str, list[str]]:
    """Markdown, and the robots that are worse by more than a standard deviation.

    :raises UsageError: no robot was trained before and after.
    """
    returns = {name: np.array(values(trained, "evaluated")) for name, trained in jobs.items()}
    names = [name for name in robots() if {f"{name}-{BEFORE}", f"{name}-{AFTER}"} <= returns.keys()]
    if not names:
        raise UsageError(
            f"expected jobs of `python -m benchmarks.followed_advice write`, such as hopper-{BEFORE}; "
            f"found {joined(returns) or 'none'}"
        )
    pairs = {name: Pair(returns[f"{name}-{BEFORE}"], returns[f"{name}-{AFTER}"]) for name in names}
    lines = [
        "| robot | return before | after | difference in standard deviations (95 %) | p | p, Holm |",
        "|---|---|---|---|---|---|",
    ]
    for name, cells in zip(names, tested(pairs.values()), strict=True):
        before, after = mean_std(pairs[name].a.tolist()), mean_std(pairs[name].b.tolist())
        lines.append(f"| {name} | {before} | {after} | {cells} |")
    worse = [name for name, pair in pairs.items() if pair.difference < -1]
    return "\n".join(lines), worse


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    write = steps.add_parser("write")
    write.add_argument("job_file", type=Path)
    write.add_argument("--time", type=float, default=30.0, help="CPU seconds for each robot (30)")
    steps.add_parser("report").add_argument("run_dir", type=Path)
    given = parser.parse_args(arguments)
    try:
        if given.step == "write":
            given.job_file.write_text(job_file(*advised_jobs(advise(given.time))))
            return 0
        text, worse = report(read(given.run_dir).robots)
    except (OrchestratorError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(text)
    if worse:
        print(f"\nWorse by more than a standard deviation: {joined(worse)}.")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
