"""Check that an environment, gymnasium's or from a user's entry point, suits an algorithm of
Stable-Baselines3.
"""

from __future__ import annotations

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


def check_environment(request: ExaminationRequest, xml: Path | None, warnings: list[str]) -> Spaces:
    """Make the environment and take one random step. Return the spaces of its observations and
    actions.

    :param xml: the staged robot, where there is one.
    :param warnings: receives what does not prevent the training.
    :raises UnfitError: the environment cannot be made, does not follow gymnasium's API, or does not
        suit the algorithm.
    """
    import gymnasium  # before the user's folder is on the path: it may contain a random.py

    if request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
    name = request.entry_point or request.env
    found: list[str] = []
    try:
        env = user_env.make(
            env=request.env,
            entry_point=request.entry_point,
            xml=None if xml is None else str(xml),
            seed=0,
            env_kwargs=request.env_kwargs,
        )
        if not isinstance(env, gymnasium.Env):
            raise UnfitError(
                f"returned a {type(env).__name__}, expected a gymnasium.Env", "settings"
            )
        try:
            if not is_algorithm_class(request.algo):  # what it can use is not known
                _check_spaces(env, request, found)
            _take_step(env, found)
        finally:
            env.close()
        return env.observation_space, env.action_space
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise UnfitError(
            f"{name}: gymnasium has no such environment: {error}", "settings"
        ) from None
    except user_env.EntryPointError as error:
        raise UnfitError(f"{name}: {error}", "settings") from None
    except UnfitError as error:
        cause: Literal["code", "settings"] = "settings" if error.cause == "settings" else "code"
        raise UnfitError(f"{name}: {error}", cause) from None
    except (Exception, SystemExit) as error:
        raise UnfitError(f"{name}: {failures.describe(error)}", "code") from None
    finally:
        warnings += [f"{name}: {text}" for text in found]


def _take_step(env: gymnasium.Env[Any, Any], warnings: list[str]) -> None:
    from orchestrator.worker.envs import env_state

    observation, _ = _of_length(env.reset(seed=0), 2, "reset", "observation, info")
    _check_shape(observation, env.observation_space)
    env.action_space.seed(0)
    returned = env.step(env.action_space.sample())
    observation, *_ = _of_length(
        returned, 5, "step", "observation, reward, terminated, truncated, info"
    )
    _check_shape(observation, env.observation_space)
    try:
        env_state.save([env])
    except env_state.Unsaveable as error:
        warnings.append(
            f"its state cannot be saved ({error}): a job that resumes starts new episodes, and its policy differs "
            "from that of a job without interruption; get_state() and set_state(state) would save it"
        )


def _of_length(returned: Any, length: int, method: str, expected: str) -> Any:
    """Return ``returned`` if it is a tuple of that length."""
    if isinstance(returned, tuple) and len(returned) == length:
        return returned
    is_tuple = isinstance(returned, tuple)
    result = f"{len(returned)} values" if is_tuple else f"a {type(returned).__name__}"
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


def _check_spaces(
    env: gymnasium.Env[Any, Any], request: ExaminationRequest, warnings: list[str]
) -> None:
    """Refuse spaces that the algorithm, the policy, or the fast learner where it is required,
    cannot use, or would use wrongly.
    """
    from gymnasium import spaces

    actions = env.action_space
    observations = env.observation_space
    algorithm = f"Stable-Baselines3's {request.algo.upper()}"
    _refuse_unsupported(actions, "its action space", algorithm)
    if isinstance(observations, spaces.Dict):
        for key, space in observations.spaces.items():
            _refuse_unsupported(space, f"its observation {key!r}", algorithm)
    else:
        _refuse_unsupported(observations, "its observation space", algorithm)
    if isinstance(actions, spaces.Box):
        _check_box_of_actions(actions, request, algorithm, warnings)
    elif request.algo in OFF_POLICY:
        raise UnfitError(
            f'its action space is {actions}; {algorithm} needs a Box, algo = "ppo" can use it'
        )
    elif request.use_sde:
        raise UnfitError(
            f"its action space is {actions}; {request.algo}.use_sde = true needs a Box"
        )
    _check_policy(observations, request)
    if request.fast:
        from orchestrator.worker.training.fast import qualify

        unfit = qualify.unfit_spaces(observations, actions)
        if unfit is not None:
            raise UnfitError(fast_refused(unfit))


def _refuse_unsupported(space: gymnasium.Space[Any], what: str, algorithm: str) -> None:
    """Refuse kinds of spaces that Stable-Baselines3 cannot use, and those whose start it ignores
    (``stable_baselines3.common.env_checker``).
    """
    import numpy as np
    from gymnasium import spaces

    if not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        raise UnfitError(
            f"{what} is {space}; {algorithm} can use Box, Discrete, MultiDiscrete, MultiBinary, and for observations "
            "a Dict of them"
        )
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        raise UnfitError(
            f"{what} is {space}, which does not start at 0; Stable-Baselines3 ignores the start and counts from 0: "
            f"let it start at 0, and add {space.start} in the environment"
        )
    if len(space.shape or ()) > 1 and (
        isinstance(space, spaces.MultiDiscrete)
        or (isinstance(space, spaces.MultiBinary) and "action" in what)
    ):
        raise UnfitError(f"{what} is {space}; {algorithm} needs it in one dimension: flatten it")


def _check_box_of_actions(
    actions: gymnasium.spaces.Box,
    request: ExaminationRequest,
    algorithm: str,
    warnings: list[str],
) -> None:
    import numpy as np

    if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise UnfitError(f"its action space is {actions}; {algorithm} needs finite bounds")
    constant = np.argwhere(actions.low >= actions.high)
    if len(constant):
        places = ", ".join(str(place.tolist()) for place in constant)
        text = f"low is not less than high in component {places} of its action space: leave the component out"
        if request.algo in OFF_POLICY:
            raise UnfitError(f"{text}, as {algorithm} divides by the difference")
        warnings.append(f"{text}, as it can do nothing")


def _check_policy(observations: gymnasium.Space[Any], request: ExaminationRequest) -> None:
    """Refuse observations that the named policy cannot take."""
    from gymnasium import spaces

    from orchestrator.worker.envs import image_spaces

    policy = request.policy
    if policy is None:
        return
    is_dict = isinstance(observations, spaces.Dict)
    if is_dict != (policy == "MultiInputPolicy"):
        expected = "MultiInputPolicy" if is_dict else "MlpPolicy or CnnPolicy"
        raise UnfitError(
            f"its observation space is {observations}: {policy} does not fit, use {expected}"
        )
    parts = (
        observations.spaces.values() if isinstance(observations, spaces.Dict) else [observations]
    )
    for part in parts:
        is_seen = policy != "MlpPolicy" and image_spaces.is_image(part)
        if is_seen and sorted(part.shape or ())[-2] < image_spaces.LEAST_SIDE:
            raise UnfitError(
                f"its images are {part}; {policy} needs at least {image_spaces.LEAST_SIDE} pixels a side: make "
                "them larger"
            )
    if policy == "CnnPolicy":
        is_raw = not request.normalize_images
        if not image_spaces.is_image(observations) and not (
            is_raw and len(observations.shape or ()) == 3
        ):
            raise UnfitError(
                f"its observation space is {observations}: CnnPolicy needs images, a Box of uint8 from 0 to 255 "
                "(or of any numbers, channels first, with policy_kwargs.normalize_images = false); use MlpPolicy"
            )
