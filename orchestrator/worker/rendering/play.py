"""``python -m orchestrator.worker.rendering.play JOB_DIR …``: show a trained policy in a window, or
write a video and a film strip.

Everything is read from the job's directory: spec, robot and policy. Every file written is a line on
standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.mp4 import mp4
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.rendering import film_strip, gl_library, live_view, offscreen, scenes
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
INSTEAD = "writing video and film strip instead"


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """What is to be seen after a control step."""

    episode: int
    time_s: float
    """Seconds since the start of its episode."""
    content: Any
    """As :attr:`.Scene.content` returns it."""


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
    """Read the job, then show it in a window or write video and film strip."""
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
    if in_window and scene.model is None:
        print(f"this environment draws itself and cannot be shown in a window: {INSTEAD}")
        gl_library.choose_gl()
        in_window = False
    if exported is None:
        act = load_policy(spec, paths, scene.venv, trained, seed=options.seed)
        label = "" if trained is None else f"-{trained.label}"
    else:
        act = exported_policy(exported, scene.venv)
        label = f"-{options.policy.name.replace('.', '-')}"
    if in_window:
        _show(scene, act, options)
    else:
        _write(scene, act, options, paths, label=label)


def _frames(scene: Scene, act: Policy, stride: int, options: argparse.Namespace) -> Iterator[Frame]:
    """Play up to the requested time or number of episodes, and yield every ``stride``-th control
    step.
    """
    limit_s = options.seconds or (MAX_S if options.episodes else DEFAULT_S)
    most_episodes = options.episodes or float("inf")
    observation, _ = act(None)
    episode = 0
    step_of_episode = 0
    total = 0
    while total * scene.period_s < limit_s - 1e-9 and episode < most_episodes:
        if total % stride == 0:
            yield Frame(episode, step_of_episode * scene.period_s, scene.content())
        observation, is_done = act(observation)
        total += 1
        step_of_episode += 1
        if is_done:
            episode += 1
            step_of_episode = 0


def _write(
    scene: Scene, act: Policy, options: argparse.Namespace, paths: JobPaths, *, label: str
) -> None:
    stride = max(1, round(1 / (TARGET_FPS * scene.period_s)))
    rate = Fraction(1 / (stride * scene.period_s)).limit_denominator(1000)  # in real time
    frames = list(_frames(scene, act, stride, options))
    in_strip = set(film_strip.strip_indices([frame.episode for frame in frames]))
    strip: list[tuple[float, offscreen.Picture]] = []

    def pictures(draw: Callable[[Any], offscreen.Picture]) -> Iterator[offscreen.Picture]:
        for index, frame in enumerate(frames):
            picture = draw(frame.content)
            if index in in_strip:
                strip.append((frame.time_s, picture))
            yield picture

    if scene.model is None:
        video = mp4(pictures(lambda picture: picture), rate)
    else:
        with offscreen.PoseRenderer(scene.model) as renderer:
            video = mp4(pictures(renderer.picture), rate)
    folder = options.output or paths.root
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in ((paths.preview, film_strip.film_strip(strip)), (paths.video, video)):
        target = folder / f"{path.stem}{label}{path.suffix}"
        write_whole(target, content)
        print(f"wrote {target}")


def _show(scene: Scene, act: Policy, options: argparse.Namespace) -> None:
    """Play in MuJoCo's viewer in real time, until it is closed or the requested time or episodes are
    over.
    """
    if options.seconds is None and options.episodes is None:
        options.seconds = float("inf")
    with live_view.ViewerWindow(scene.model, scene.period_s) as window:
        print("playing; close the window to end")
        for frame in _frames(scene, act, 1, options):
            if not window.is_open:
                return
            window.show(frame.content)


if __name__ == "__main__":
    child_command.run(lambda: play(_parser().parse_args()))
