"""Saving gymnasium environments in the middle of an episode, and continuing bit-identically.

Environments are pickled with all their wrappers. A layer that has ``get_state()`` and
``set_state(state)`` saves itself instead: the new environment's layer takes the state. Functions that
are attributes of a layer, as of ``TransformObservation``, are those of the new one, too. Where an
object cannot be pickled (a handle of another simulator, an open file), the environment is
:class:`Unsaveable`.
"""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle


class Unsaveable(Exception):
    """The state of an environment cannot be saved; the message says why."""


def save(envs: Iterable[gymnasium.Env[Any, Any]]) -> bytes:
    """Return the states of environments of this process, each with all its wrappers.

    :raises Unsaveable: the state of one of them cannot be saved.
    """
    envs = list(envs)
    file = io.BytesIO()
    try:
        _Pickler(file, envs).dump(envs)
    except Exception as error:  # a user's class may raise anything while it is pickled
        raise Unsaveable(str(error)) from error
    return file.getvalue()


def restore(envs: list[gymnasium.Env[Any, Any]], state: bytes) -> None:
    """Replace the new environments ``envs`` by those in ``state``, from :func:`save`."""
    envs[:] = _Unpickler(io.BytesIO(state), envs).load()


def _layers(envs: Iterable[gymnasium.Env[Any, Any]]) -> Iterator[gymnasium.Env[Any, Any]]:
    """Each environment's wrappers from the outside in, and the environment itself."""
    for env in envs:
        layer = env
        while isinstance(layer, gymnasium.Wrapper):
            yield layer
            layer = layer.env
        yield layer


def _saves_itself(layer: Any) -> bool:
    """Whether it has ``get_state()`` and ``set_state(state)``; gymnasium's ``set_state(qpos, qvel)``
    differs.
    """
    try:
        inspect.signature(layer.get_state).bind()
        inspect.signature(layer.set_state).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True


class _Pickler(pickle.Pickler):
    """Saves the attributes of environments, where ``EzPickle`` would save their arguments alone."""

    def __init__(self, file: io.BytesIO, envs: Iterable[gymnasium.Env[Any, Any]]) -> None:
        # Protocol 5 would restore arrays that do not own their memory, which could not be saved
        # again.
        super().__init__(file, protocol=4)
        self._saving_themselves: dict[int, int] = {}
        """Identity of a layer → its number."""
        self._functions: dict[int, tuple[int, str]] = {}
        """Identity of a function → number of the layer that has it, and the attribute."""
        for number, layer in enumerate(_layers(envs)):
            if _saves_itself(layer):
                self._saving_themselves[id(layer)] = number
            for name, value in vars(layer).items():
                if isinstance(value, FunctionType):
                    self._functions[id(value)] = number, name
        self._array_over: dict[int, int] = {}
        """Identity of the object that owns memory → that of the array over it."""

    def persistent_id(self, value: Any) -> Any:
        if id(value) in self._functions:
            return self._functions[id(value)]
        number = self._saving_themselves.get(id(value))
        if number is None:
            return None
        kept = ("env", "_np_random")
        attributes = {name: vars(value)[name] for name in kept if name in vars(value)}
        return number, attributes, value.get_state()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            self._check_memory(value)
        if isinstance(value, gymnasium.Env) and isinstance(value, EzPickle):
            return object.__new__, (type(value),), vars(value), None, None, _set_attributes
        return NotImplemented

    def _check_memory(self, array: np.ndarray) -> None:
        """:raises pickle.PicklingError: a copy of ``array`` would not share memory as it does."""
        owner: Any = array
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if not isinstance(owner, np.ndarray | bytes):
            raise pickle.PicklingError("it has an array over memory that another object owns")
        if self._array_over.setdefault(id(owner), id(array)) != id(array):
            raise pickle.PicklingError("it has two arrays that share memory")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, envs: Iterable[gymnasium.Env[Any, Any]]) -> None:
        super().__init__(file)
        self._layers = list(_layers(envs))

    def persistent_load(self, saved: Any) -> Any:
        layer: Any = self._layers[saved[0]]
        if isinstance(saved[1], str):
            return vars(layer)[saved[1]]
        _, attributes, state = saved
        vars(layer).update(attributes)
        layer.set_state(state)
        return layer


def _set_attributes(env: Any, attributes: dict[str, Any]) -> None:
    vars(env).update(attributes)
