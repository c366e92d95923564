"""``python -m orchestrator.worker.rendering.play JOB_DIR …``: a trained policy at work, in a window or as video and
film strip.

Everything comes from the job's directory: spec, robot, policy. One line on standard output for each thing
done; where it cannot be done the last line of standard error says why, and the exit code is 2 for what the
user can mend in the command, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import OFF_POLICY, WorkerSpec
from orchestrator.worker.rendering import film, rendering, scenes
from orchestrator.worker.rendering.scenes import Scene
from orchestrator.worker.runtime import lifeline, outcome

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from orchestrator.worker.training.algorithms import Model

DEFAULT_S = 10.0
"""Length of a video when neither ``--seconds`` nor ``--episodes`` is given."""
LONGEST_S = 600.0
"""Where only episodes are counted: some never end."""
LATEST = "latest"
"""As ``--checkpoint``: the one with the most env_steps."""
_FOR_POLICY = ("use_sde", "sde_sample_freq", "action_noise")
"""The hyperparameters that policy and exploration are built from."""


class Unplayable(Exception):
    """The user can mend it in the command, or wait; the message says how."""


def main(arguments: list[str]) -> NoReturn:
    lifeline.attach()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code, message = 0, ""
    try:
        play(_parser().parse_args(arguments))
    except (Unplayable, rendering.CannotRender) as error:
        code, message = (2 if isinstance(error, Unplayable) else 1), str(error)
    except OSError as error:
        code, message = 1, f"{error.filename or 'the system'}: {error.strerror or error}"
    except Exception as error:  # of robot, policy or the user's environment: a message, no traceback
        code, message = 1, outcome.describe(error)
    if message:
        print(" ".join(message.split()), file=sys.stderr)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # the interpreter's own way out would wait for threads of the user's and of the window


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.worker.rendering.play", allow_abbrev=False)
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--checkpoint")
    parser.add_argument("--interactive", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stochastic", action="store_true")
    parser.add_argument("--output", type=Path)
    return parser


def play(asked: argparse.Namespace) -> None:
    """Read the job, then show it in a window or write its pictures."""
    paths = JobPaths(asked.job_dir)
    spec = WorkerSpec.from_json(paths.spec.read_text(encoding="utf-8"))
    spec = dataclasses.replace(spec, device="cpu", n_envs=1)
    trained = _read_checkpoint(paths, asked.checkpoint)
    in_window = asked.interactive and _has_display()
    if not in_window:
        rendering.choose_gl()
    import stable_baselines3  # noqa: F401  # before the user's folder comes first: its random.py is not for us

    if spec.search_path is not None:
        sys.path.insert(0, spec.search_path)
    scene = scenes.open_scene(spec, paths, asked.seed)
    if in_window and scene.model is None:
        print("this environment draws itself: video and film strip are written instead of a window")
        rendering.choose_gl()
        in_window = False
    act = _policy(spec, paths, scene.venv, trained, deterministic=not asked.stochastic)
    if in_window:
        _show(scene, act, asked)
    else:
        _write(scene, act, asked, paths, label="" if trained is None else f"-{trained.label}")


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file, read at once: while the job is trained older ones are removed."""

    path: Path
    content: bytes

    @property
    def label(self) -> str:
        """``checkpoint-000000051200.pt`` → ``51200``; other names as they are."""
        name = self.path.stem.removeprefix("checkpoint-")
        return str(int(name)) if name.isdecimal() else name


def _read_checkpoint(paths: JobPaths, asked: str | None) -> Checkpoint | None:
    """What to play, None for the finished policy.

    :raises Unplayable: there is none, with what there is.
    """
    steps = {int(path.stem.rpartition("-")[2]): path for path in sorted(paths.checkpoints.glob("checkpoint-*.pt"))}
    there = ", ".join(map(str, steps)) or "none so far"
    if asked is None:
        if not paths.model.exists():
            raise Unplayable(
                f"{paths.root.name} has no model.zip, which a job has once it has succeeded; --checkpoint {LATEST} "
                f"plays the latest of its checkpoints (env_steps: {there})"
            )
        return None
    if asked == LATEST or asked.isdecimal():
        wanted = max(steps, default=-1) if asked == LATEST else int(asked)
        if wanted not in steps:
            at = f" at {wanted} env_steps" if steps else ""
            raise Unplayable(f"{paths.root.name} has no checkpoint{at}; there is: {there}")
        path = steps[wanted]
    else:
        path = Path(asked)
    try:
        return Checkpoint(path, path.read_bytes())
    except (FileNotFoundError, IsADirectoryError):
        raise Unplayable(
            f"--checkpoint {asked}: no such file; expected one, {LATEST}, or env_steps of this job: {there}"
        ) from None


def _has_display() -> bool:
    """Whether a window can be opened; says so where not."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        print("no display here (DISPLAY and WAYLAND_DISPLAY are not set): writing video and film strip instead")
        return False
    import glfw

    with warnings.catch_warnings(record=True) as said:  # GLFW's errors come as warnings
        warnings.simplefilter("always")
        if glfw.init():
            glfw.terminate()
            return True
    name = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    why = f" ({said[-1].message})" if said else ""
    print(f"display {name} cannot be used{why}: writing video and film strip instead")
    return False


def _policy(
    spec: WorkerSpec, paths: JobPaths, venv: VecEnv, trained: Checkpoint | None, *, deterministic: bool
) -> Callable[[Any], tuple[Any, bool]]:
    """What takes an observation (None: begin), acts on it, and gives the next one and whether an episode has ended."""
    from orchestrator.worker.training import algorithms

    statistics: dict[str, Any] | None = None
    if trained is None:
        kind = algorithms.CLASSES[spec.algo]
        model: Model = kind.load(paths.model, device="cpu", custom_objects=_small_buffer(spec))
    else:
        model, statistics = _from_checkpoint(spec, venv, trained)
    wrapped: Any = model._wrap_env(_normalized(spec, paths, venv, trained, statistics))

    def act(observation: Any) -> tuple[Any, bool]:
        if observation is None:
            return wrapped.reset(), False
        actions, _ = model.predict(observation, deterministic=deterministic)
        if not deterministic:
            actions = algorithms.with_noise(model, actions)
        observation, _, dones, _ = wrapped.step(actions)
        return observation, bool(dones[0])

    return act


def _small_buffer(spec: WorkerSpec) -> dict[str, Any]:
    """Hyperparameters that keep a model which only plays from making room for gigabytes of experience."""
    return {"buffer_size": 1} if spec.algo in OFF_POLICY else {}


def _from_checkpoint(spec: WorkerSpec, venv: VecEnv, trained: Checkpoint) -> tuple[Model, dict[str, Any] | None]:
    """The policy of a checkpoint, and its normalisation's statistics.

    :raises Unplayable: the file is damaged or of another robot.
    """
    from orchestrator.worker.training import checkpoint, learners

    try:
        state = checkpoint.load(trained.content)
    except Exception as error:  # damage shows in many ways: zip, pickle and torch errors
        raise Unplayable(f"{trained.path} is damaged or no checkpoint: {type(error).__name__}: {error}") from error
    few = {name: value for name, value in spec.hyperparameters.items() if name in _FOR_POLICY} | _small_buffer(spec)
    model = learners.build(dataclasses.replace(spec, hyperparameters=few), venv).model
    try:
        model.policy.load_state_dict(state["policy"])
    except (RuntimeError, KeyError):
        raise Unplayable(
            f"{trained.path} is not of this job: its network has other shapes than {spec.job_id}'s"
        ) from None
    return model, state["normalization"]


def _normalized(
    spec: WorkerSpec, paths: JobPaths, venv: VecEnv, trained: Checkpoint | None, statistics: dict[str, Any] | None
) -> VecEnv:
    """``venv`` with observations as the policy saw them in training."""
    from stable_baselines3.common.vec_env import VecNormalize

    from orchestrator.worker.envs import env_factory

    if not spec.normalize:
        return venv
    if trained is None:
        if not paths.vecnormalize.exists():
            raise Unplayable(f"{paths.vecnormalize} is missing: the policy means nothing without its normalisation")
        wrapped = VecNormalize.load(str(paths.vecnormalize), venv)
    else:
        wrapped = env_factory.normalized(spec, venv)
        if statistics and "obs_rms" in statistics:
            wrapped.obs_rms = statistics["obs_rms"]
    wrapped.training = wrapped.norm_reward = False
    return wrapped


def _frames(
    scene: Scene, act: Callable[[Any], tuple[Any, bool]], stride: int, asked: argparse.Namespace
) -> Iterator[rendering.Frame]:
    """Every ``stride``-th control step until the time or the episodes asked for are over."""
    limit_s = asked.seconds or (LONGEST_S if asked.episodes else DEFAULT_S)
    observation, _ = act(None)
    episode = step = total = 0
    while total * scene.period_s < limit_s - 1e-9 and episode < (asked.episodes or float("inf")):
        if total % stride == 0:
            yield rendering.Frame(episode, step * scene.period_s, scene.content())
        observation, done = act(observation)
        total, step = total + 1, step + 1
        if done:
            episode, step = episode + 1, 0


def _write(
    scene: Scene, act: Callable[[Any], tuple[Any, bool]], asked: argparse.Namespace, paths: JobPaths, *, label: str
) -> None:
    stride, rate = film.stride_and_rate(scene.period_s)
    frames = list(_frames(scene, act, stride, asked))
    strip = dict.fromkeys(film.strip_indices(frames))
    kept: list[tuple[float, rendering.Picture]] = []

    def kept_for_strip() -> Iterator[rendering.Picture]:
        for index, picture in enumerate(_pictures(scene, frames)):
            if index in strip:
                kept.append((frames[index].time_s, picture))
            yield picture

    video = film.encode(kept_for_strip(), rate)
    folder = asked.output or paths.root
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in ((paths.preview, film.film_strip(kept)), (paths.video, video)):
        target = folder / f"{path.stem}{label}{path.suffix}"
        write_whole(target, content)
        print(f"wrote {target}")


def _pictures(scene: Scene, frames: Sequence[rendering.Frame]) -> Iterator[rendering.Picture]:
    if scene.model is not None:
        with rendering.Stage(scene.model()) as stage:
            yield from stage.draw(frames)
        return
    for frame in frames:
        assert not isinstance(frame.content, rendering.Pose)
        yield frame.content


def _show(scene: Scene, act: Callable[[Any], tuple[Any, bool]], asked: argparse.Namespace) -> None:
    """MuJoCo's viewer, in real time, until it is closed or what was asked for is over."""
    import mujoco
    import mujoco.viewer

    from orchestrator.worker.rendering import camera

    assert scene.model is not None
    if asked.seconds is None and asked.episodes is None:
        asked.seconds = float("inf")
    model = scene.model()
    data = mujoco.MjData(model)
    with mujoco.viewer.launch_passive(model, data, show_left_ui=False, show_right_ui=False) as viewer:
        with viewer.lock():
            camera.follow(model, viewer.cam)
        print("playing; close the window to end")
        due = time.monotonic()
        for frame in _frames(scene, act, 1, asked):
            if not viewer.is_running():
                return
            assert isinstance(frame.content, rendering.Pose)
            with viewer.lock():
                mujoco.mj_setState(model, data, frame.content.state, mujoco.mjtState.mjSTATE_INTEGRATION)
                mujoco.mj_forward(model, data)
            viewer.sync()
            due = max(due + scene.period_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1:])
