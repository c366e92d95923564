"""The gallery of the documents: every robot of ``jobs/robots.toml`` with its trained policy, moving.

    python -m benchmarks.gallery                       # trains them in a temporary folder first
    python -m benchmarks.gallery --run-dir runs/robots # that were trained already

Writes ``docs/gallery.md``, and a GIF of at most 300 kB for each robot in ``docs/pictures/gallery``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ORCHESTRATOR, ROOT
from orchestrator.core.files.video_file import video_as_gif
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.ledger import summary

JOB_FILE = ROOT / "jobs/robots.toml"
PAGE = ROOT / "docs/gallery.md"
PICTURES = ROOT / "docs/pictures/gallery"
MOST_BYTES = 300_000
SECONDS = 4
FPS = 12
WIDTHS = (320, 280, 240, 200, 160)
"""Tried in this order until a GIF is small enough."""
HEAD = """# Gallery

The robots of [jobs/robots.toml](../jobs/robots.toml), each with the policy that the first command of the README
trains, in real time. `python -m benchmarks.gallery` makes this page.

| | robot | task | env_steps | mean return |
|---|---|---|---|---|
"""


def small_gif(video: Path) -> bytes:
    """:raises ValueError: none is small enough."""
    for width in WIDTHS:
        content = video_as_gif(video, width=width, fps=FPS)
        if len(content) <= MOST_BYTES:
            return content
    raise ValueError(f"{video}: {len(content):_} bytes as a GIF; expected at most {MOST_BYTES:_}")


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """:param rows: ``name``, ``task``, ``env_steps`` and ``eval_mean`` of each robot."""
    lines = [
        f"| ![{row['name']}](pictures/gallery/{row['name']}.gif) | {row['name']} | "
        f"[`{row['task']}`](tasks.md) | {row['env_steps']:,} | {row['eval_mean']:,.4g} |"
        for row in rows
    ]
    return HEAD + "\n".join(lines) + "\n"


def make(run_dir: Path, pictures: Path) -> list[dict[str, Any]]:
    """Write a GIF for each job that has succeeded, in the order of the job file."""
    pictures.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in summary.read(RunPaths(run_dir))[0]:
        job_id = row["job_id"]
        if row["state"] != "SUCCEEDED":
            raise SystemExit(f"{job_id}: {row['state']}; expected robots that are trained")
        job = RunPaths(run_dir).job(job_id)
        spec = WorkerSpec.from_json(job.spec.read_text())
        with tempfile.TemporaryDirectory() as folder:
            options = ["--video", f"--seconds={SECONDS}", f"--output={folder}"]
            subprocess.run([*ORCHESTRATOR, "play", str(run_dir), job_id, *options], check=True)
            (pictures / f"{spec.name}.gif").write_bytes(small_gif(Path(folder) / job.video.name))
        evaluated = json.loads(job.eval.read_text())["deterministic"]["mean"]
        rows.append(
            {
                "name": spec.name,
                "task": spec.task,
                "env_steps": row["env_steps"],
                "eval_mean": evaluated,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run-dir", type=Path, help="of jobs/robots.toml, trained")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = given.run_dir
        if run_dir is None:
            run_dir = Path(folder) / "robots"
            subprocess.run(
                [*ORCHESTRATOR, "run", JOB_FILE, "--run-dir", run_dir], cwd=ROOT, check=True
            )
        PAGE.write_text(page(make(run_dir, PICTURES)))


if __name__ == "__main__":
    main()
