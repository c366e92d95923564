"""Saving gymnasium environments in the middle of an episode, and going on from there bit-identically.

Every layer of an environment (wrappers down to the base) is saved by what its attributes hold:
plain data (numbers, text, arrays, random generators, spaces, containers and simple objects of these) is
pickled in one piece, so that what was shared between attributes is shared again; functions, classes and modules are
constants that the fresh environment has as well; a MuJoCo simulation is saved whole. A layer with
``get_state()`` and ``set_state(state)`` of its own speaks for itself (its ``np_random`` is seen to).
Anything else (a handle of another simulator, an open file) makes the environment :class:`Unsaveable`.
"""

from __future__ import annotations

import collections
import enum
import inspect
import pickle
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from orchestrator.worker.envs.envs import PhysicsWatch

_ATOMS = (type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_CONSTANTS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type, EnvSpec)
_NOT_STATE = frozenset(
    {"env", "mujoco_renderer", "_saved_kwargs", "_cached_spec", "_ezpickle_args", "_ezpickle_kwargs"}
)
"""Attributes of gymnasium's own classes: the next layer, the drawing, and how the environment was made."""


class Unsaveable(Exception):
    """The state of an environment cannot be saved; the message says which attribute is in the way."""


def save(envs: Iterable[gymnasium.Env[Any, Any]]) -> bytes:
    """The state of environments of this process, each with all its wrappers.

    :raises Unsaveable: when that of any of them cannot be saved.
    """
    layers = [_save_layer(layer) for env in envs for layer in _layers(env)]
    try:
        # Not 5: arrays of its making lie in memory that is not their own, and could not be saved again.
        return pickle.dumps(layers, protocol=4)
    except Exception as error:  # whatever a user's class raises while it is pickled
        raise Unsaveable(f"pickling failed: {error}") from error


def restore(envs: Iterable[gymnasium.Env[Any, Any]], state: bytes) -> None:
    """Put ``state`` of :func:`save` into as many freshly made environments of the same kind."""
    layers = [layer for env in envs for layer in _layers(env)]
    for layer, saved in zip(layers, pickle.loads(state), strict=True):
        _restore_layer(layer, saved)


def vouched_for(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether the base environment is one of gymnasium's, or speaks for itself.

    Of any other we only know that its attributes are saved: a simulator addressed by a mere number
    has its state elsewhere, and nothing here can tell.
    """
    base = env.unwrapped
    return type(base).__module__.startswith("gymnasium.") or _speaks_for_itself(base)


def _layers(env: gymnasium.Env[Any, Any]) -> Iterator[Any]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _save_layer(layer: Any) -> dict[str, Any]:
    kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
    if isinstance(layer, PhysicsWatch):
        return {"kind": kind, "attributes": {}}
    if _speaks_for_itself(layer):
        generator = vars(layer).get("_np_random")
        return {"kind": kind, "own": layer.get_state(), "attributes": {"_np_random": generator} if generator else {}}
    views = _Views()
    # pickle of a whole MjData, its model included: the only form that restores every derived
    # quantity as it was (rewards read some of them before the next step computes them anew).
    simulations = {name: value for name, value in vars(layer).items() if type(value).__name__ == "MjData"}
    attributes = {}
    for name, value in vars(layer).items():
        if name in _NOT_STATE or name in simulations or _is_constant(value):
            continue
        if simulations and (type(value).__name__ == "MjModel" or _is_view_of_simulation(value)):
            continue  # restored in place
        problem = views.problem(value)
        if problem:
            raise Unsaveable(f"{kind}.{name} {problem}")
        attributes[name] = value
    return {"kind": kind, "attributes": attributes, "simulations": simulations}


def _restore_layer(layer: Any, saved: dict[str, Any]) -> None:
    kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
    if saved["kind"] != kind:
        raise ValueError(f"the checkpoint holds an environment layer {saved['kind']}, here is {kind}")
    vars(layer).update(saved["attributes"])
    if "own" in saved:
        layer.set_state(saved["own"])
    for name, source in saved.get("simulations", {}).items():
        import mujoco

        # In place: wrappers, renderers and the environment's own code hold references and views.
        data = getattr(layer, name)
        _copy_arrays(source.model, data.model)
        mujoco.mj_copyData(data, data.model, source)


def _copy_arrays(source: Any, target: Any) -> None:
    """Every number of an ``MjModel`` that an environment may have changed (randomised masses, friction …)."""
    for part in ("", "opt", "stat"):
        origin, goal = (getattr(source, part), getattr(target, part)) if part else (source, target)
        for name in dir(origin):
            if name.startswith("_"):
                continue
            value = getattr(origin, name)
            if isinstance(value, np.ndarray) and value.size:
                getattr(goal, name)[...] = value
            elif part and isinstance(value, (int, float)):
                setattr(goal, name, value)


def _is_constant(value: Any) -> bool:
    """Code, which the fresh environment has as well; but not a method of an object that is about to be replaced."""
    bound_to = getattr(value, "__self__", None)
    return isinstance(value, _CONSTANTS) and isinstance(bound_to, (type(None), types.ModuleType, type, gymnasium.Env))


def _is_simple_object(value: Any) -> bool:
    """Whether its attributes are all there is to it: no slots, no pickling of its own, no environment."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (gymnasium.Env, *_CONSTANTS))
        and all(
            getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__", "__getstate__")
        )
        and not any(base.__dict__.get("__slots__") for base in kind.__mro__)
    )


def _speaks_for_itself(layer: Any) -> bool:
    """Whether the layer has both methods, in our sense: gymnasium's ``set_state(qpos, qvel)`` is another thing."""
    try:
        inspect.signature(layer.get_state).bind()
        inspect.signature(layer.set_state).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _owner(array: np.ndarray) -> Any:
    """The object that owns the array's memory: the last of its chain of bases."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def _is_view_of_simulation(value: Any) -> bool:
    """Whether ``value`` is an array into an ``MjModel`` or ``MjData``: MuJoCo's bindings hold those by capsules."""
    return isinstance(value, np.ndarray) and type(_owner(value)).__name__ == "PyCapsule"


def _is_foreign_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not isinstance(_owner(value), (np.ndarray, bytes))


class _Views:
    """Finds out whether values are plain data; remembers arrays, to notice two that share memory."""

    def __init__(self) -> None:
        self._arrays: dict[int, int] = {}
        self._seen: set[int] = set()

    def problem(self, value: Any) -> str | None:
        """What keeps ``value`` from being saved; None when it is plain data."""
        if isinstance(value, (*_ATOMS, *_GENERATORS, gymnasium.Space)):
            return None
        if isinstance(value, np.ndarray):
            return self._array_problem(value)
        if id(value) in self._seen:  # looked at before, or being looked at: it holds itself
            return None
        self._seen.add(id(value))
        if isinstance(value, dict):
            return self._first(list(value) + list(value.values()))
        if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            return self._first(value)
        if _is_simple_object(value):
            return self._first(vars(value).values())
        return f"is a {type(value).__module__}.{type(value).__qualname__}"

    def _first(self, values: Iterable[Any]) -> str | None:
        return next((problem for problem in map(self.problem, values) if problem), None)

    def _array_problem(self, array: np.ndarray) -> str | None:
        if array.dtype.hasobject:
            return "is an array of objects"
        if _is_foreign_array(array):
            return "is an array over memory of something else"
        # Two different arrays over the same memory would come apart when restored.
        if self._arrays.setdefault(id(_owner(array)), id(array)) != id(array):
            return "is an array that shares its memory with another one"
        return None
