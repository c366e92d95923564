"""``python -m orchestrator.worker.rendering.play JOB_DIR …``: show a trained policy in a window, or
write a video.

Everything is read from the job's directory: spec, robot and policy. The file written is a line on
standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.mp4 import mp4
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.poses import Pose
from orchestrator.worker.rendering import gl_library, live_view, offscreen, scenes
from orchestrator.worker.rendering.offscreen import Picture
from orchestrator.worker.rendering.scenes import Scene
from orchestrator.worker.runtime import child_command, import_speed
from orchestrator.worker.training.trained_policy import (
    Policy,
    exported_policy,
    load_policy,
    read_checkpoint,
    read_policy,
)

DEFAULT_S = 10.0
"""Length of a video when neither ``--seconds`` nor ``--episodes`` is given."""
MAX_S = 600.0
"""Limit for ``--episodes`` alone: some episodes never end."""
TARGET_FPS = 30.0
"""Frames per second of a video, as nearly as whole control steps allow."""
INSTEAD = "writing a video instead"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.worker.rendering.play", allow_abbrev=False
    )
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--checkpoint")
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--interactive", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nominal", action="store_true")
    parser.add_argument("--xml", type=Path)
    parser.add_argument("--output", type=Path)
    return parser


def play(options: argparse.Namespace) -> None:
    """Read the job, then show it in a window or write a video."""
    paths = JobPaths(options.job_dir)
    spec = WorkerSpec.from_json(paths.spec.read_text(encoding="utf-8"))
    spec = dataclasses.replace(spec, device="cpu", n_envs=1)
    exported = None if options.policy is None else read_policy(options.policy)
    trained = None if exported is not None else read_checkpoint(paths, options.checkpoint)
    in_window = options.interactive
    if in_window and (problem := live_view.display_problem()):
        print(f"{problem}: {INSTEAD}")
        in_window = False
    if not in_window:
        gl_library.choose_gl()
    with import_speed.fast_imports():
        # Before the user's folder is on the path: it may contain a random.py.
        import stable_baselines3  # noqa: F401

    if spec.search_path is not None:
        sys.path.insert(0, spec.search_path)
    if options.xml is not None:
        from orchestrator.worker.envs import another_robot

        spec = another_robot.with_robot(spec, paths.root, options.xml, nominal=options.nominal)
    scene = scenes.open_scene(spec, paths, options.seed, nominal=options.nominal)
    if exported is None:
        act = load_policy(spec, paths, scene.venv, trained, seed=options.seed)
        label = "" if trained is None else f"-{trained.label}"
    else:
        act = exported_policy(exported, scene.venv)
        label = f"-{options.policy.name.replace('.', '-')}"
    if in_window and scene.model is not None:
        _show(scene, act, options)
        return
    if in_window:
        print(f"this environment draws itself and cannot be shown in a window: {INSTEAD}")
        gl_library.choose_gl()
    folder = options.output or paths.root
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{paths.video.stem}{label}{paths.video.suffix}"
    write_whole(target, _video(scene, act, options))
    print(f"wrote {target}")


def _steps(
    scene: Scene, act: Policy, stride: int, options: argparse.Namespace
) -> Iterator[Pose | Picture]:
    """Play up to the requested time or number of episodes, and yield what is seen at every
    ``stride``-th control step.
    """
    limit_s = options.seconds or (MAX_S if options.episodes else DEFAULT_S)
    observation, _ = act(None)
    episodes = 0
    step = 0
    while step * scene.period_s < limit_s - 1e-9 and episodes != options.episodes:
        if step % stride == 0:
            yield scene.content()
        observation, is_done = act(observation)
        step += 1
        episodes += is_done


def _video(scene: Scene, act: Policy, options: argparse.Namespace) -> bytes:
    stride = max(1, round(1 / (TARGET_FPS * scene.period_s)))
    rate = Fraction(1 / (stride * scene.period_s)).limit_denominator(1000)  # in real time
    seen: Iterator[Any] = _steps(scene, act, stride, options)
    if scene.model is None:
        return mp4(seen, rate)
    with offscreen.PoseRenderer(scene.model) as renderer:
        return mp4(map(renderer.picture, seen), rate)


def _show(scene: Scene, act: Policy, options: argparse.Namespace) -> None:
    """Play in MuJoCo's viewer in real time, until it is closed or the requested time or episodes are
    over.
    """
    if options.seconds is None and options.episodes is None:
        options.seconds = float("inf")
    with live_view.ViewerWindow(scene.model, scene.period_s) as window:
        print("playing; close the window to end")
        seen: Iterator[Any] = _steps(scene, act, 1, options)
        for pose in seen:
            if not window.is_open:
                return
            window.show(pose)


if __name__ == "__main__":
    child_command.run(lambda: play(_parser().parse_args()))
