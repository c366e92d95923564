"""Are these robots, tasks and environments fit to be trained? Asked in a child process before any launch.

``python -m orchestrator.worker.preflight`` reads one JSON array of requests from stdin and answers with
one JSON array on stdout, in the same order. See :class:`Request` and :class:`Answer`. Whatever goes
wrong with a robot or environment is an answer's ``problem``, never a traceback. Only what the requests
need is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator.worker import lifeline, outcome, user_env
from orchestrator.worker.bundle import Bundle, BundleError, collect

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    where: str
    """Place in the job file, handed back as it is."""
    xml: str | None = None
    """Absolute path of the robot's MJCF."""
    task: str | None = None
    """Built-in task, when neither ``env`` nor ``entry_point`` is given."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    entry_point: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None
    """Stable-Baselines3's name of it, to see whether it fits the environment; None: not asked."""
    use_sde: bool = False
    """Likewise."""
    search_path: str | None = None
    stage_to: str | None = None
    """Folder the robot's bundle is written to; None: checked in a temporary one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    where: str
    problem: str | None = None
    """One message, or None: it can be trained."""
    xml: str | None = None
    """Path of the main MJCF, relative to ``stage_to``."""
    hash: str | None = None
    """Of the bundle: SHA-256 over names and contents."""


class UnfitError(Exception):
    """``str()`` of it is the answer's ``problem``."""


def check(request: Request) -> Answer:
    """Answer one request; never raises for anything the request brings along."""
    try:
        with contextlib.ExitStack() as cleanup:
            return _examine(request, cleanup)
    except (BundleError, UnfitError) as error:
        problem = str(error)
    except OSError as error:
        problem = f"{error.filename or request.xml}: {error.strerror or error}"
    except Exception as error:  # whoever's bug it is, the other requests want their answers
        problem = outcome.describe(error)
    return Answer(where=request.where, problem=" ".join(problem.split()))


def _examine(request: Request, cleanup: contextlib.ExitStack) -> Answer:
    answer = Answer(where=request.where)
    xml: Path | None = None
    if request.xml is not None:
        bundle = collect(Path(request.xml))
        staging = request.stage_to or cleanup.enter_context(tempfile.TemporaryDirectory(prefix="preflight-"))
        xml = bundle.write(Path(staging))
        answer = dataclasses.replace(answer, xml=bundle.main, hash=bundle.hash)
    if request.env is not None or request.entry_point is not None:
        if xml is not None:
            _compile(xml, bundle)
        _check_environment(request, xml)
        return answer
    if xml is None or request.task is None:
        raise UnfitError("needs a robot (xml) and a task, or an env or entry_point")
    _check_task(xml, bundle, request)
    return answer


def _compile(xml: Path, bundle: Bundle) -> Any:
    """The compiled ``MjModel`` of the staged robot, so that what is checked is what will be trained."""
    from orchestrator.worker.simulation import load_model

    try:
        return load_model(xml)
    except ValueError as error:
        staged = str(xml)[: -len(bundle.main)]
        message = str(error).replace(staged, f"{bundle.origin}{os.sep}").strip()
        raise UnfitError(f"{_place(message, bundle)}: MuJoCo cannot compile it: {message}") from None


def _place(message: str, bundle: Bundle) -> str:
    """File and line that MuJoCo's message is about, as far as it can be told."""
    lines = re.findall(r"line(?: number=)?\s*([1-9]\d*)", message, re.IGNORECASE)
    if lines:  # the last: what goes wrong inside an include ends with the line of the <include>
        return f"{bundle.origin / bundle.main}, line {lines[-1]}"
    element = re.search(r"Element '(\w+)', line 0", message)
    attribute = re.search(r"attribute:? '(\w+)'", message)
    included = bundle.find_included(element[1], attribute and attribute[1]) if element else None
    return included or str(bundle.origin / bundle.main)


def _check_task(xml: Path, bundle: Bundle, request: Request) -> None:
    import numpy as np

    from orchestrator.worker.simulation import PhysicsDiverged, Simulation
    from orchestrator.worker.tasks import make_task

    model = _compile(xml, bundle)
    assert request.task is not None
    name = bundle.origin / bundle.main
    if model.nu == 0:
        raise UnfitError(f"{name}: has no actuators, so there is nothing to train; add an <actuator> section")
    try:
        task = make_task(request.task, model, request.task_options)
        simulation = Simulation(model, task, n_envs=1, seed=0, robot=xml.name)
        simulation.reset()
        result = simulation.step(np.zeros((1, model.nu)))
    except (ValueError, PhysicsDiverged) as error:
        raise UnfitError(f"{name}: {error}") from None
    if not (np.isfinite(result.observations).all() and np.isfinite(result.rewards).all()):
        raise UnfitError(f"{name}: observation or reward is not finite after one step with zero action")


def _check_environment(request: Request, xml: Path | None) -> None:
    """Make the environment and take one random step."""
    import gymnasium  # before the user's folder comes first: its random.py is not for us

    if request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
    named = request.entry_point or request.env
    try:
        if request.entry_point is not None:
            _check_signature(request.entry_point, {"xml": None, "seed": 0, **request.env_kwargs})
        env = user_env.make(
            env=request.env,
            entry_point=request.entry_point,
            xml=None if xml is None else str(xml),
            seed=0,
            env_kwargs=request.env_kwargs,
        )
        if not isinstance(env, gymnasium.Env):
            raise UnfitError(f"returned a {type(env).__name__}, expected a gymnasium.Env")
        _try_out(env, request)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        near = difflib.get_close_matches(str(request.env), gymnasium.registry, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnfitError(f"{named}: gymnasium has no such environment ({error}){hint}") from None
    except user_env.EntryPointError as error:
        looked = f" (looked in {request.search_path} too)" if request.search_path else ""
        raise UnfitError(f"{named}: {error}{looked}") from None
    except UnfitError as error:
        raise UnfitError(f"{named}: {error}") from None
    except (Exception, SystemExit) as error:
        raise UnfitError(f"{named}: {outcome.describe(error)}") from None


def _check_signature(entry_point: str, arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(user_env.load(entry_point)).bind(**arguments)
    except TypeError as error:
        raise UnfitError(f"cannot be called with {', '.join(arguments)}: {error}") from None
    except ValueError:
        pass  # a signature is not to be had from every callable; the call itself will tell


def _try_out(env: gymnasium.Env[Any, Any], request: Request) -> None:
    try:
        _check_spaces(env, request)
        observation, _ = _of_length(env.reset(seed=0), 2, "reset", "observation, info")
        _check_shape(observation, env.observation_space)
        env.action_space.seed(0)
        action = env.action_space.sample()
        observation, *_ = _of_length(env.step(action), 5, "step", "observation, reward, terminated, truncated, info")
        _check_shape(observation, env.observation_space)
    finally:
        env.close()


def _check_spaces(env: gymnasium.Env[Any, Any], request: Request) -> None:
    """What Stable-Baselines3's PPO would refuse once it is launched."""
    import numpy as np
    from gymnasium import spaces

    actions, observations = env.action_space, env.observation_space
    parts = observations.spaces.values() if isinstance(observations, spaces.Dict) else [observations]
    for space, role in ((actions, "action"), *((part, "observation") for part in parts)):
        if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            can_use = "Box, Discrete, MultiDiscrete, MultiBinary" + (" or a Dict" if role == "observation" else "")
            raise UnfitError(f"its {role} space is {space}; Stable-Baselines3's PPO can use {can_use}")
    if isinstance(actions, spaces.Box) and not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise UnfitError(f"its action space is {actions}; Stable-Baselines3's PPO needs finite bounds")
    if request.use_sde and not isinstance(actions, spaces.Box):
        raise UnfitError(f"its action space is {actions}; ppo.use_sde = true needs a Box")
    if request.policy is None:
        return
    if isinstance(observations, spaces.Dict) != (request.policy == "MultiInputPolicy"):
        expected = "MultiInputPolicy" if isinstance(observations, spaces.Dict) else "MlpPolicy or CnnPolicy"
        raise UnfitError(f"its observation space is {observations}: {request.policy} does not fit, use {expected}")
    if request.policy == "CnnPolicy" and len(observations.shape or ()) != 3:
        raise UnfitError(f"its observation space is {observations}: CnnPolicy needs images, use MlpPolicy")


def _of_length(returned: Any, length: int, method: str, expected: str) -> Any:
    if not isinstance(returned, tuple) or len(returned) != length:
        found = f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        raise UnfitError(f"its {method}() returns {found}, expected {length}: {expected} (gymnasium.Env)")
    return returned


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
        raise UnfitError(
            f"its observation has the shape {np.shape(observation)}, its observation space {space.shape}"
        ) from None


def main() -> NoReturn:
    lifeline.attach()  # an environment that hangs must not outlive whoever asked
    if "--warm" in sys.argv:  # started ahead of the questions, which most likely need this
        import orchestrator.worker.simulation  # noqa: F401
    # stdout belongs to the answer alone: what MuJoCo's C code or a user's environment prints goes to stderr.
    answers_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answers = [dataclasses.asdict(check(Request(**request))) for request in json.load(sys.stdin)]
    with answers_to:
        json.dump(answers, answers_to)
    sys.stderr.flush()
    os._exit(0)  # the interpreter's own way out would wait for threads of the user's


if __name__ == "__main__":
    main()
