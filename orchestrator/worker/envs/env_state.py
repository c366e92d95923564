"""Saving gymnasium environments in the middle of an episode, and continuing bit-identically.

Every layer of an environment (its wrappers and the base) is saved by the contents of its
attributes. Plain data (numbers, text, arrays, random generators, spaces, containers and simple
objects of these) is pickled together, so that objects shared between attributes are shared again.
Functions, classes and modules are skipped: the fresh environment has the same. A MuJoCo simulation
is saved whole. A layer with its own ``get_state()`` and ``set_state(state)`` saves itself, except
for ``np_random``, which is saved here. Anything else (a handle of another simulator, an open file)
makes the environment :class:`Unsaveable`.
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

from orchestrator.worker.envs.divergence_wrapper import DivergenceCheck

_ATOMS = (type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_CONSTANTS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    EnvSpec,
)
_NOT_STATE = {
    "env",
    "mujoco_renderer",
    "_saved_kwargs",
    "_cached_spec",
    "_ezpickle_args",
    "_ezpickle_kwargs",
}
"""Attributes of gymnasium's own classes: the next layer, the renderer, and how the environment was
made."""
_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")


class Unsaveable(Exception):
    """The state of an environment cannot be saved; the message names the attribute that prevents
    it.
    """


def save(envs: Iterable[gymnasium.Env[Any, Any]]) -> bytes:
    """The states of environments in this process, each with all its wrappers.

    :raises Unsaveable: the state of one of them cannot be saved.
    """
    layers = []
    for env in envs:
        # One for all layers: one may hold a view into an array of another.
        inspector = _PlainDataInspector()
        layers += [_save_layer(layer, inspector) for layer in _layers(env)]
    try:
        # Protocol 5 would restore arrays that do not own their memory, which could not be saved
        # again.
        return pickle.dumps(layers, protocol=4)
    except Exception as error:  # a user's class may raise anything while it is pickled
        raise Unsaveable(f"pickling failed: {error}") from error


def restore(envs: Iterable[gymnasium.Env[Any, Any]], state: bytes) -> None:
    """Restore ``state``, from :func:`save`, into equally many new environments of the same kind."""
    layers = [layer for env in envs for layer in _layers(env)]
    for layer, saved in zip(layers, pickle.loads(state), strict=True):
        _restore_layer(layer, saved)


def is_state_complete(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether the saved state is known to be complete: the base environment is gymnasium's, or
    saves itself.

    For any other environment only its attributes are saved. State held elsewhere, such as by a
    simulator that is addressed by a number, cannot be detected.
    """
    base = env.unwrapped
    return type(base).__module__.startswith("gymnasium.") or _saves_itself(base)


def _layers(env: gymnasium.Env[Any, Any]) -> Iterator[Any]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _kind(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _save_layer(layer: Any, inspector: _PlainDataInspector) -> dict[str, Any]:
    kind = _kind(layer)
    if isinstance(layer, DivergenceCheck):
        return {"kind": kind, "attributes": {}}
    if _saves_itself(layer):
        generator = vars(layer).get("_np_random")
        return {
            "kind": kind,
            "own": layer.get_state(),
            "attributes": {"_np_random": generator} if generator else {},
        }
    ignored = _NOT_STATE
    if not isinstance(layer, gymnasium.Wrapper):
        ignored = _NOT_STATE - {"env"}  # there, the user's own
    # A pickle of a whole MjData, its model included, is the only form that restores every derived
    # quantity (rewards read some of them before the next step computes them anew).
    simulations = {
        name: value for name, value in vars(layer).items() if type(value).__name__ == "MjData"
    }
    attributes = {}
    for name, value in vars(layer).items():
        if name in ignored or name in simulations or _is_constant(value):
            continue
        # The model and views into it or MjData, which MuJoCo's bindings hold by capsules, are
        # restored in place.
        if simulations and type(_owner(value)).__name__ in ("MjModel", "PyCapsule"):
            continue
        problem = inspector.problem(value)
        if problem:
            raise Unsaveable(f"{kind}.{name} {problem}")
        attributes[name] = value
    return {"kind": kind, "attributes": attributes, "simulations": simulations}


def _restore_layer(layer: Any, saved: dict[str, Any]) -> None:
    if saved["kind"] != _kind(layer):
        raise ValueError(
            f"the checkpoint holds the environment layer {saved['kind']}, expected {_kind(layer)}"
        )
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
    """Copy every number of an ``MjModel``: an environment may have randomised masses, friction and
    so on.
    """
    for copy_from, copy_to in (
        (source, target),
        (source.opt, target.opt),
        (source.stat, target.stat),
    ):
        for name in dir(copy_from):
            value = None if name.startswith("_") else getattr(copy_from, name)
            if isinstance(value, np.ndarray) and value.size:
                getattr(copy_to, name)[...] = value
            elif copy_from is not source and isinstance(value, (int, float)):
                setattr(copy_to, name, value)


def _is_constant(value: Any) -> bool:
    """Whether it is code, which a new environment has as well, and no method of an object that is
    replaced.
    """
    bound_to = getattr(value, "__self__", None)
    return isinstance(value, _CONSTANTS) and isinstance(
        bound_to, (type(None), types.ModuleType, type, gymnasium.Env)
    )


def _is_simple_object(value: Any) -> bool:
    """Whether its attributes are its whole state: no slots, no custom pickling, no environment."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (gymnasium.Env, *_CONSTANTS))
        and all(getattr(kind, name) is getattr(object, name) for name in _PICKLING)
        and not any(base.__dict__.get("__slots__") for base in kind.__mro__)
    )


def _saves_itself(layer: Any) -> bool:
    """Whether the layer has ``get_state()`` and ``set_state(state)``; gymnasium's ``set_state(qpos,
    qvel)`` differs.
    """
    try:
        inspect.signature(layer.get_state).bind()
        inspect.signature(layer.set_state).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _owner(array: Any) -> Any:
    """The object that owns an array's memory: the last in its chain of bases. Other values own
    themselves.
    """
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


class _PlainDataInspector:
    """Decides whether values are plain data; remembers arrays, to detect two that share memory."""

    def __init__(self) -> None:
        self._array_of_memory: dict[int, int] = {}
        """Identity of the object that owns memory → that of the array that was inspected over it."""
        self._seen: set[int] = set()
        """Identities of what was inspected."""

    def problem(self, value: Any) -> str | None:
        """Why ``value`` cannot be saved; None when it is plain data."""
        if isinstance(value, (*_ATOMS, *_GENERATORS, gymnasium.Space)):
            return None
        if isinstance(value, np.ndarray):
            return self._array_problem(value)
        if id(value) in self._seen:  # inspected before, or contains itself
            return None
        self._seen.add(id(value))
        if isinstance(value, dict):
            return self._first_problem([*value, *value.values()])
        if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            return self._first_problem(value)
        if _is_simple_object(value):
            return self._first_problem(vars(value).values())
        return f"is a {type(value).__module__}.{type(value).__qualname__}"

    def _first_problem(self, values: Iterable[Any]) -> str | None:
        for value in values:
            problem = self.problem(value)
            if problem is not None:
                return problem
        return None

    def _array_problem(self, array: np.ndarray) -> str | None:
        if array.dtype.hasobject:
            return "is an array of objects"
        owner = _owner(array)
        if not isinstance(owner, (np.ndarray, bytes)):
            return "is an array over memory that another object owns"
        # Two arrays over the same memory would be separate arrays when restored.
        if self._array_of_memory.setdefault(id(owner), id(array)) != id(array):
            return "is an array that shares its memory with another array"
        return None
