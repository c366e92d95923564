"""A job's environment prepared for rendering. Built-in tasks and MuJoCo environments are drawn here,
others draw themselves.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
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
    """Returns the current pose, or a picture if the environment draws itself."""
    model: mujoco.MjModel | None
    """The model to draw; None if the environment draws itself."""


def open_scene(spec: WorkerSpec, paths: JobPaths, seed: int, *, nominal: bool = False) -> Scene:
    """Make one environment of the job, prepared for rendering.

    :param nominal: whether nothing of the job's ``randomize`` is drawn.
    :raises gl_library.CannotRender: it can neither be drawn nor draw itself.
    """
    from orchestrator.worker.envs import divergence_wrapper, env_factory

    is_task = env_factory.is_batched(spec)
    if not is_task and (spec.entry_point is None or takes_render_mode(spec.entry_point)):
        spec = dataclasses.replace(spec, env_kwargs={**spec.env_kwargs, "render_mode": "rgb_array"})
    venv: Any = env_factory.make(spec, paths.root, n_envs=1, seed=seed, nominal=nominal)
    venv.seed(seed)
    if is_task:
        simulation = venv.simulation
        return Scene(
            venv=venv,
            period_s=simulation.control_period_s,
            content=lambda: pose_of(simulation, 0),
            model=scenery.add_scenery(paths.root / str(spec.xml), simulation.terrain),
        )
    [env] = venv.envs
    period_s = 1 / float(env.metadata.get("render_fps") or USUAL_FPS)
    if divergence_wrapper.simulates_with_mujoco(env):
        base = env.unwrapped
        return Scene(
            venv=venv,
            period_s=period_s,
            content=lambda: pose_of_data(base.model, base.data),
            model=copy.copy(base.model),
        )
    name = str(spec.entry_point or spec.env)
    if env.render_mode != "rgb_array":
        raise gl_library.CannotRender(
            f'{name} cannot render itself (render_mode = "rgb_array"); let the entry point take render_mode '
            "and pass it to its environment"
        )
    return Scene(venv=venv, period_s=period_s, content=lambda: _own_picture(env, name), model=None)


def takes_render_mode(entry_point: str) -> bool:
    """Return whether it can be called with ``render_mode=``."""
    from orchestrator.worker.runtime import user_env

    try:
        parameters = inspect.signature(user_env.load(entry_point)).parameters
    except ValueError:  # some callables have no signature
        return False
    return "render_mode" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _own_picture(env: Any, name: str) -> offscreen.Picture:
    try:
        picture: offscreen.Picture = np.asarray(env.render(), np.uint8)
    except Exception as error:  # such as a package for drawing that is not installed
        raise gl_library.CannotRender(f"{name}: {failures.describe(error)}") from error
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise gl_library.CannotRender(
            f"{name}: render() returned shape {picture.shape}, expected (height, width, 3)"
        )
    return picture
