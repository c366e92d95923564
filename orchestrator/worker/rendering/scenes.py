"""A job's environment prepared for rendering. Built-in tasks and MuJoCo environments are rendered
here, others render themselves.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.poses import Pose, pose_of, pose_of_data
from orchestrator.worker.rendering import gl_library, offscreen, scenery
from orchestrator.worker.runtime import failures

if TYPE_CHECKING:
    import mujoco
    from stable_baselines3.common.vec_env import VecEnv


USUAL_FPS = 30.0
"""Of environments that do not say how many pictures a second are real time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An environment of one robot, and how to get pictures of it."""

    venv: VecEnv
    period_s: float
    """Simulated time between control steps."""
    content: Callable[[], Pose | offscreen.Picture]
    """The current pose, or a picture where the environment renders itself."""
    model: Callable[[Sequence[Pose]], mujoco.MjModel] | None
    """Makes the model for these poses; empty: they are not known. None where the environment
    renders itself."""


def open_scene(spec: WorkerSpec, paths: JobPaths, seed: int, *, nominal: bool = False) -> Scene:
    """One environment of the job, prepared for rendering.

    :param nominal: whether nothing of the job's ``randomize`` is drawn.
    :raises gl_library.CannotRender: it can neither be rendered nor render itself.
    """
    from orchestrator.worker.envs import divergence_wrapper, env_factory

    if env_factory.is_batched(spec):
        return _task_scene(spec, paths, seed, nominal=nominal)
    reason = ""
    venv: VecEnv | None = None
    if spec.entry_point is None or takes_render_mode(spec.entry_point):
        drawing = dataclasses.replace(
            spec, env_kwargs={**spec.env_kwargs, "render_mode": "rgb_array"}
        )
        try:
            venv = env_factory.make(drawing, paths.root, n_envs=1, seed=seed)
        except Exception as error:  # an environment that does not know the mode may raise anything
            reason = f": {failures.describe(error)}"
    if venv is None:
        venv = env_factory.make(spec, paths.root, n_envs=1, seed=seed)
    venv.seed(seed)
    [env] = venv.envs  # type: ignore[attr-defined]
    if divergence_wrapper.simulates_with_mujoco(env):
        return _mujoco_scene(venv, env.unwrapped, seed)
    name = spec.entry_point or spec.env
    if env.render_mode != "rgb_array":
        raise gl_library.CannotRender(
            f'{name} cannot render itself (render_mode = "rgb_array"){reason}; let the entry point take render_mode '
            "and pass it to its environment"
        )
    return Scene(
        venv=venv,
        period_s=1.0 / float(env.metadata.get("render_fps") or USUAL_FPS),
        content=lambda: _render_picture(env, str(name)),
        model=None,
    )


def _task_scene(spec: WorkerSpec, paths: JobPaths, seed: int, *, nominal: bool) -> Scene:
    """A built-in task, or the user's own."""
    from orchestrator.worker.envs import env_factory

    xml = paths.root / str(spec.xml)
    batch = env_factory.make(spec, paths.root, n_envs=1, seed=seed, nominal=nominal)
    batch.seed(seed)
    simulation = batch.simulation  # type: ignore[attr-defined]
    return Scene(
        venv=batch,
        period_s=simulation.control_period_s,
        content=lambda: pose_of(simulation, 0),
        model=lambda _: scenery.add_scenery(xml, simulation.terrain),
    )


def takes_render_mode(entry_point: str) -> bool:
    """Whether it can be called with ``render_mode=``."""
    from orchestrator.worker.runtime import user_env

    try:
        parameters = inspect.signature(user_env.load(entry_point)).parameters
    except ValueError:  # some callables have no signature
        return False
    return "render_mode" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _render_picture(env: Any, name: str) -> offscreen.Picture:
    try:
        picture = env.render()
    except Exception as error:  # most often: pygame is not installed
        raise gl_library.CannotRender(
            f"{name} cannot render itself: {failures.describe(error)}"
        ) from error
    if not (isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3):
        raise gl_library.CannotRender(
            f"{name}: render() returned a {type(picture).__name__}, expected an array of shape (height, width, 3)"
        )
    return picture.astype(np.uint8)


def _mujoco_scene(venv: VecEnv, base: Any, seed: int) -> Scene:
    """Gymnasium's MuJoCo environments, and those built like them, rendered without changes to the
    model.
    """
    venv.reset()
    before = base.data.time
    venv.step(np.array([venv.action_space.sample()]))
    period_s = base.data.time - before
    venv.seed(seed)
    if period_s <= 0:
        period_s = 1 / USUAL_FPS
    return Scene(
        venv=venv,
        period_s=period_s,
        content=lambda: pose_of_data(base.model, base.data),
        model=lambda _: copy.copy(base.model),
    )
