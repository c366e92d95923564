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
import importlib
import inspect
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.worker import lifeline
from orchestrator.worker.bundle import Bundle, BundleError, collect

if TYPE_CHECKING:
    import gymnasium

TRAINABLE_ACTIONS = ("box", "discrete", "multidiscrete", "multibinary")
TRAINABLE_OBSERVATIONS = (*TRAINABLE_ACTIONS, "dict")


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
    action_space: str | None = None
    """One of ``TRAINABLE_ACTIONS``."""
    observation_space: str | None = None
    """One of ``TRAINABLE_OBSERVATIONS``; ``dict`` needs ``MultiInputPolicy``."""


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
        problem = describe_exception(error)
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
        actions, observations = _check_environment(request, xml)
        return dataclasses.replace(answer, action_space=actions, observation_space=observations)
    if xml is None or request.task is None:
        raise UnfitError("needs a robot (xml) and a task, or an env or entry_point")
    _check_task(xml, bundle, request)
    return dataclasses.replace(answer, action_space="box", observation_space="box")


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


def _check_environment(request: Request, xml: Path | None) -> tuple[str, str]:
    """Make the environment and take one random step → kinds of action and observation space."""
    if request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
    named = request.entry_point or request.env
    try:
        env = _make_from_entry_point(request, xml) if request.entry_point else _make_from_id(request, xml)
        return _try_out(env)
    except UnfitError as error:
        raise UnfitError(f"{named}: {error}") from None
    except (Exception, SystemExit) as error:
        raise UnfitError(f"{named}: {describe_exception(error)}") from None


def _try_out(env: object) -> tuple[str, str]:
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        raise UnfitError(f"returned a {type(env).__name__}, expected a gymnasium.Env")
    try:
        actions = _space_kind(env.action_space, TRAINABLE_ACTIONS, "action")
        observations = _space_kind(env.observation_space, TRAINABLE_OBSERVATIONS, "observation")
        env.reset(seed=0)
        env.action_space.seed(0)
        env.step(env.action_space.sample())
    finally:
        env.close()
    return actions, observations


def _make_from_id(request: Request, xml: Path | None) -> gymnasium.Env[Any, Any]:
    import gymnasium

    assert request.env is not None
    arguments = dict(request.env_kwargs)
    if xml is not None:
        arguments["xml_file"] = str(xml)
    try:
        return gymnasium.make(request.env, **arguments)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        near = difflib.get_close_matches(request.env, gymnasium.registry, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnfitError(f"gymnasium has no such environment ({error}){hint}") from None


def _make_from_entry_point(request: Request, xml: Path | None) -> Any:
    """Call ``package.module:make_env``."""
    entry_point = request.entry_point
    assert entry_point is not None
    module_name, colon, attribute = entry_point.partition(":")
    if not (module_name and colon and attribute):
        raise UnfitError('expected "package.module:make_env"')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            looked = f" (looked in {request.search_path} too)" if request.search_path else ""
            raise UnfitError(f"there is no module {error.name!r}{looked}") from None
        raise
    make_env = getattr(module, attribute, None)
    if not callable(make_env):
        there = [name for name, value in vars(module).items() if callable(value)]
        near = difflib.get_close_matches(attribute, there, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnfitError(f"module {module_name!r} has nothing to call named {attribute!r}{hint}")
    arguments = {"xml": None if xml is None else str(xml), "seed": 0, **request.env_kwargs}
    try:
        inspect.signature(make_env).bind(**arguments)
    except TypeError as error:
        raise UnfitError(f"cannot be called with {', '.join(arguments)}: {error}") from None
    except ValueError:
        pass  # a signature is not to be had from every callable; the call itself will tell
    return make_env(**arguments)


def _space_kind(space: gymnasium.Space[Any], accepted: Sequence[str], role: str) -> str:
    kind = type(space).__name__.lower()
    if kind not in accepted:
        raise UnfitError(f"its {role} space is {space}; Stable-Baselines3's PPO can use {', '.join(accepted)}")
    return kind


def describe_exception(error: BaseException) -> str:
    """Type and message, and the line of the user's own code it came from."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}:{error.lineno})"
    own = str(Path(__file__).parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in frames
        if not frame.filename.startswith((own, "<", sys.base_prefix)) and "site-packages" not in frame.filename
    ]
    place = f" ({places[-1]})" if places else ""
    return f"{type(error).__name__}: {error}{place}"


def main() -> int:
    lifeline.attach()  # an environment that hangs must not outlive whoever asked
    if "--warm" in sys.argv:  # started ahead of the questions, which most likely need this
        import orchestrator.worker.simulation  # noqa: F401
    # stdout belongs to the answer alone: what MuJoCo's C code or a user's environment prints goes to stderr.
    answers_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answers = [dataclasses.asdict(check(Request(**request))) for request in json.load(sys.stdin)]
    with answers_to:
        json.dump(answers, answers_to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
