"""Check that an environment, gymnasium's or from a user's entry point, suits an algorithm of
Stable-Baselines3.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.messages import ExaminationRequest
from orchestrator.core.worker_spec import OFF_POLICY, fast_refused, is_algorithm_class
from orchestrator.worker.robots.unfit import UnfitError
from orchestrator.worker.runtime import failures, user_env

if TYPE_CHECKING:
    import gymnasium

    Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


def check_environment(request: ExaminationRequest, xml: Path | None) -> tuple[Spaces, list[str]]:
    """Make the environment and take one random step. Return the spaces of its observations and
    actions, and warnings.

    :param xml: the staged robot, where there is one.
    :raises UnfitError: the environment cannot be made, does not follow gymnasium's API, or does not
        suit the algorithm.
    """
    import gymnasium

    name = request.entry_point or request.env
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
        warnings: list[str] = []
        try:
            if not is_algorithm_class(request.algo):  # what it can use is not known
                warnings += _check_spaces(env, request)
            warnings += _take_step(env)
        finally:
            env.close()
    except (
        gymnasium.error.UnregisteredEnv,
        gymnasium.error.DeprecatedEnv,
        user_env.EntryPointError,
    ) as error:
        raise UnfitError(f"{name}: {error}", "settings") from None
    except UnfitError as error:
        raise UnfitError(
            f"{name}: {error}", "settings" if error.cause == "settings" else "code"
        ) from None
    except (Exception, SystemExit) as error:
        raise UnfitError(f"{name}: {failures.describe(error)}", "code") from None
    spaces = env.observation_space, env.action_space
    return spaces, [f"{name}: {text}" for text in warnings]


def _take_step(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Take one step. Return a warning if the environment's state cannot be saved."""
    from orchestrator.worker.envs import env_state

    returned: Any = env.reset(seed=0)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UnfitError(f"its reset() returns {returned!r:.80}, expected observation, info")
    _check_observation(returned[0], env.observation_space)
    env.action_space.seed(0)
    returned = env.step(env.action_space.sample())
    if not isinstance(returned, tuple) or len(returned) != 5:
        raise UnfitError(
            f"its step() returns {returned!r:.80}, expected observation, reward, terminated, truncated, info"
        )
    _check_observation(returned[0], env.observation_space)
    try:
        env_state.save([env])
    except env_state.Unsaveable as error:
        return [
            f"its state cannot be saved ({error}): a job that resumes starts new episodes, and its policy differs "
            "from that of a job without interruption; get_state() and set_state(state) would save it"
        ]
    return []


def _check_observation(observation: Any, space: gymnasium.Space[Any]) -> None:
    """Refuse an observation whose keys or shape differ from those of its space."""
    import numpy as np
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if key not in observation:
                raise UnfitError(f"its observation lacks {key!r}, which its observation space has")
            _check_observation(observation[key], part)
        return
    try:
        np.broadcast_to(observation, space.shape or ())
    except ValueError:
        shape = np.shape(observation)
        raise UnfitError(
            f"its observation has the shape {shape}, its observation space {space.shape}"
        ) from None


def _check_spaces(env: gymnasium.Env[Any, Any], request: ExaminationRequest) -> list[str]:
    """Refuse spaces that the algorithm, the policy, or the fast learner where it is required,
    cannot use, or would use wrongly. Return warnings.
    """
    from gymnasium import spaces

    from orchestrator.worker.envs.image_spaces import LEAST_SIDE, is_image

    actions = env.action_space
    observations = env.observation_space
    algorithm = f"Stable-Baselines3's {request.algo.upper()}"
    is_dict = isinstance(observations, spaces.Dict)
    parts = {"its action space": actions, "its observation space": observations}
    if isinstance(observations, spaces.Dict):
        del parts["its observation space"]
        parts |= {f"its observation {key!r}": part for key, part in observations.spaces.items()}
    for what, part in parts.items():
        _refuse_unsupported(part, what, algorithm)
    if not isinstance(actions, spaces.Box) and (request.algo in OFF_POLICY or request.use_sde):
        what = "use_sde = true" if request.use_sde else algorithm
        raise UnfitError(f"its action space is {actions}; {what} needs a Box")
    normalize = request.normalize_images
    if request.policy is not None and (
        is_dict != (request.policy == "MultiInputPolicy")
        or (request.policy == "CnnPolicy" and not is_image(observations, normalize=normalize))
    ):
        raise UnfitError(
            f"its observation space is {observations}, which {request.policy} does not take: MultiInputPolicy is for "
            "a Dict, CnnPolicy for images (a Box of uint8 from 0 to 255, or with policy_kwargs.normalize_images = "
            "false any of three dimensions), MlpPolicy for any other"
        )
    for what, part in parts.items() if request.policy in ("CnnPolicy", "MultiInputPolicy") else ():
        if is_image(part, normalize=normalize) and sorted(part.shape or ())[-2] < LEAST_SIDE:
            raise UnfitError(
                f"{what} is {part}; {request.policy} needs images of at least {LEAST_SIDE} pixels a side"
            )
    if request.fast:
        from orchestrator.worker.training.fast import qualify

        unfit = qualify.unfit_spaces(observations, actions)
        if unfit is not None:
            raise UnfitError(fast_refused(unfit))
    return _check_bounds(actions, request, algorithm) if isinstance(actions, spaces.Box) else []


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
    is_binary = isinstance(space, spaces.MultiBinary) and "action" in what
    if len(space.shape or ()) > 1 and (is_binary or isinstance(space, spaces.MultiDiscrete)):
        raise UnfitError(f"{what} is {space}; {algorithm} needs it in one dimension: flatten it")


def _check_bounds(
    actions: gymnasium.spaces.Box, request: ExaminationRequest, algorithm: str
) -> list[str]:
    """Refuse infinite bounds of actions, and components that cannot vary with an off-policy
    algorithm. Return a warning of those with another one.
    """
    import numpy as np

    if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise UnfitError(f"its action space is {actions}; {algorithm} needs finite bounds")
    constant = np.argwhere(actions.low >= actions.high)
    if not len(constant):
        return []
    places = ", ".join(str(place.tolist()) for place in constant)
    text = f"low is not less than high in component {places} of its action space: leave the component out"
    if request.algo in OFF_POLICY:
        raise UnfitError(f"{text}, as {algorithm} divides by the difference")
    return [f"{text}, as it can do nothing"]
