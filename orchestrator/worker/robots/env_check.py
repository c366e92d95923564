"""Check that an environment, gymnasium's or from a user's entry point, suits an algorithm of
Stable-Baselines3.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.core.messages import ExaminationRequest
from orchestrator.core.worker_spec import OFF_POLICY, fast_refused, is_algorithm_class
from orchestrator.worker.runtime import failures, user_env

if TYPE_CHECKING:
    import gymnasium

    Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


class UnfitError(Exception):
    """The robot or environment cannot be trained; the message, ``cause`` and ``key`` are those of
    the answer's ``problem``.
    """

    def __init__(
        self,
        message: str,
        cause: Literal["robot", "code", "settings", "init"] = "robot",
        key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.key = key


def check_environment(request: ExaminationRequest, xml: Path | None) -> Spaces:
    """Make the environment and take one random step. Returns the spaces of its observations and
    actions.

    :param xml: the staged robot, where there is one.
    :raises UnfitError: the environment cannot be made, does not follow gymnasium's API, or does not
        suit the algorithm.
    """
    import gymnasium  # before the user's folder is on the path: it may contain a random.py

    if request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
    name = request.entry_point or request.env
    try:
        if request.entry_point is not None:
            _check_signature(request.entry_point, {"xml": None, "seed": 0, **request.env_kwargs})
        path = None if xml is None else str(xml)
        env = user_env.make(
            env=request.env,
            entry_point=request.entry_point,
            xml=path,
            seed=0,
            env_kwargs=request.env_kwargs,
        )
        if not isinstance(env, gymnasium.Env):
            raise UnfitError(
                f"returned a {type(env).__name__}, expected a gymnasium.Env", "settings"
            )
        _take_step(env, request)
        return env.observation_space, env.action_space
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        near = difflib.get_close_matches(str(request.env), gymnasium.registry, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnfitError(
            f"{name}: gymnasium has no such environment ({error}){hint}", "settings"
        ) from None
    except user_env.EntryPointError as error:
        raise UnfitError(f"{name}: {error}", "settings") from None
    except UnfitError as error:
        raise UnfitError(
            f"{name}: {error}", "settings" if error.cause == "settings" else "code"
        ) from None
    except (Exception, SystemExit) as error:
        raise UnfitError(f"{name}: {failures.describe(error)}", "code") from None


def _check_signature(entry_point: str, arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(user_env.load(entry_point)).bind(**arguments)
    except TypeError as error:
        raise UnfitError(
            f"cannot be called with {', '.join(arguments)}: {error}", "settings"
        ) from None
    except ValueError:
        pass  # some callables have no signature; calling them shows whether the arguments fit


def _take_step(env: gymnasium.Env[Any, Any], request: ExaminationRequest) -> None:
    try:
        _check_spaces(env, request)
        observation, _ = _of_length(env.reset(seed=0), 2, "reset", "observation, info")
        _check_shape(observation, env.observation_space)
        env.action_space.seed(0)
        action = env.action_space.sample()
        observation, *_ = _of_length(
            env.step(action), 5, "step", "observation, reward, terminated, truncated, info"
        )
        _check_shape(observation, env.observation_space)
    finally:
        env.close()


def _check_spaces(env: gymnasium.Env[Any, Any], request: ExaminationRequest) -> None:
    """Refuse what the algorithm, or the fast learner where it is required, would refuse after
    launch. What an algorithm that is a class can use is not known.
    """
    if is_algorithm_class(request.algo):
        return
    algorithm = f"Stable-Baselines3's {request.algo.upper()}"
    _check_kinds(env.observation_space, env.action_space, request.algo, algorithm)
    _check_actions(env.action_space, request, algorithm)
    misfits = _policy_misfits(env.observation_space, request)
    if request.fast:
        from orchestrator.worker.training.fast import qualify

        unfit = qualify.unfit_spaces(env.observation_space, env.action_space)
        if unfit is not None:
            misfits.append(fast_refused(unfit))
    if misfits:
        raise UnfitError("; ".join(misfits))


def _check_kinds(
    observations: gymnasium.Space[Any], actions: gymnasium.Space[Any], algo: str, algorithm: str
) -> None:
    """Refuse kinds of spaces that the algorithm cannot use. :param algorithm: ``algo`` for
    people.
    """
    from gymnasium import spaces

    if algo in OFF_POLICY and not isinstance(actions, spaces.Box):
        raise UnfitError(
            f'its action space is {actions}; {algorithm} needs a Box, algo = "ppo" can use it'
        )
    usable = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    can_use = "Box, Discrete, MultiDiscrete, MultiBinary"
    if not isinstance(actions, usable):
        raise UnfitError(f"its action space is {actions}; {algorithm} can use {can_use}")
    parts = [observations]
    if isinstance(observations, spaces.Dict):
        parts = list(observations.spaces.values())
    for space in parts:
        if not isinstance(space, usable):
            raise UnfitError(
                f"its observation space is {space}; {algorithm} can use {can_use} or a Dict"
            )


def _check_actions(
    actions: gymnasium.Space[Any], request: ExaminationRequest, algorithm: str
) -> None:
    """Refuse actions that the algorithm cannot choose."""
    import numpy as np
    from gymnasium import spaces

    if isinstance(actions, spaces.Box):
        if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
            raise UnfitError(f"its action space is {actions}; {algorithm} needs finite bounds")
    elif request.use_sde:
        raise UnfitError(
            f"its action space is {actions}; {request.algo}.use_sde = true needs a Box"
        )


def _policy_misfits(observations: gymnasium.Space[Any], request: ExaminationRequest) -> list[str]:
    """Why the policy cannot take such observations; empty: it can."""
    from gymnasium import spaces

    policy = request.policy
    if policy is None:
        return []
    is_dict = isinstance(observations, spaces.Dict)
    if is_dict != (policy == "MultiInputPolicy"):
        expected = "MultiInputPolicy" if is_dict else "MlpPolicy or CnnPolicy"
        return [f"its observation space is {observations}: {policy} does not fit, use {expected}"]
    has_raw_images = not request.normalize_images
    if isinstance(observations, spaces.Dict):
        return [
            f"its observation {key!r} is {space}: MultiInputPolicy needs {needed}, or a Box with one dimension"
            for key, space in observations.spaces.items()
            if (needed := _larger_image(space, has_raw_images=has_raw_images))
        ]
    if policy != "CnnPolicy":
        return []
    instead = _instead_of_images(observations, has_raw_images=has_raw_images)
    if instead is not None:
        return [f"its observation space is {observations}: CnnPolicy needs images, {instead}"]
    needed = _larger_image(observations, has_raw_images=has_raw_images)
    if needed is not None:
        return [
            f"its observation space is {observations}: CnnPolicy needs {needed}, or use MlpPolicy"
        ]
    return []


def _larger_image(space: gymnasium.Space[Any], *, has_raw_images: bool) -> str | None:
    """What the policy needs in place of images that are too small for its network; None: it takes
    the observations for no images, or they are large enough.

    :param has_raw_images: whether the policy takes any three-dimensional Box for an image.
    """
    from gymnasium import spaces

    from orchestrator.worker.envs.image_spaces import LEAST_SIDE, image_size, is_image

    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return None
    height, width = image_size(space)
    if not (has_raw_images or is_image(space)) or min(height, width) >= LEAST_SIDE:
        return None
    order = "" if is_image(space) else " (with the channels first)"
    return (
        f"images of at least {LEAST_SIDE} by {LEAST_SIDE} pixels{order}, and these have {height} by {width}; "
        "make them larger"
    )


def _instead_of_images(observations: gymnasium.Space[Any], *, has_raw_images: bool) -> str | None:
    """What to do about observations that CnnPolicy cannot take; None: it can.

    :param has_raw_images: whether the policy takes any three-dimensional Box for an image.
    """
    from gymnasium import spaces

    from orchestrator.worker.envs.image_spaces import is_image

    if not isinstance(observations, spaces.Box) or len(observations.shape) != 3:
        return "use MlpPolicy"
    if has_raw_images or is_image(observations):
        return None
    image = "let it be a Box of uint8 from 0 to 255"
    raw = "set policy_kwargs.normalize_images = false if its images are scaled already, with the channels first"
    return f"use MlpPolicy; or {image}; or {raw}"


def _of_length(returned: Any, length: int, method: str, expected: str) -> Any:
    """``returned``, if it is a tuple of that length."""
    if isinstance(returned, tuple) and len(returned) == length:
        return returned
    result = f"a {type(returned).__name__}"
    if isinstance(returned, tuple):
        result = f"{len(returned)} values"
    raise UnfitError(
        f"its {method}() returns {result}, expected {length}: {expected} (gymnasium.Env)"
    )


def _check_shape(observation: Any, space: gymnasium.Space[Any]) -> None:
    import numpy as np
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(observation, Mapping) or key not in observation:
                raise UnfitError(f"its observation lacks {key!r}, which its observation space has")
            _check_shape(observation[key], part)
        return
    try:
        np.broadcast_to(observation, space.shape or ())
    except ValueError:
        shape = np.shape(observation)
        raise UnfitError(
            f"its observation has the shape {shape}, its observation space {space.shape}"
        ) from None
