"""Dataclasses and rows from what another process wrote, every value checked against its declared
type.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from orchestrator.core.text import shortened, storable

T = TypeVar("T")
Reader: TypeAlias = Callable[[Any], Any]
"""Returns a value of JSON as its type has it. Raises ValueError if it is of another type."""


def _at_least(least: int, number: int) -> int:
    if number < least:
        raise ValueError(f"expected a whole number of at least {least}, not {number}")
    return number


Table: TypeAlias = Mapping[str, Any]
"""An object of JSON, or a table of a job file."""
# In Annotated stands what a value of the type is passed to.
FilePath: TypeAlias = Annotated[str, str]
"""The path of a file, which is read as it is: it may hold bytes that are not UTF-8. Other text
becomes storable."""
Message: TypeAlias = Annotated[str, shortened]
"""Text for people, whose length nobody has limited yet."""
Positive: TypeAlias = Annotated[int, functools.partial(_at_least, 1)]
"""A whole number of at least 1."""
Natural: TypeAlias = Annotated[int, functools.partial(_at_least, 0)]
"""A whole number of at least 0."""

LARGEST = 1e150
"""Larger numbers count as infinite: their products and squares would be."""
INT64 = range(-(2**63), 2**63)


def decode(kind: Callable[..., T], text: str | bytes) -> T:
    """Return the dataclass ``kind`` from a JSON object.

    Fields with a default may be missing. Lists become tuples; NaN and infinities become None where
    a value may be None, and are refused elsewhere.

    :raises ValueError: naming the field, when it is unknown, missing or of another type.
    """
    try:
        return from_values(kind, json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parsed_json(text: str | bytes) -> Any:
    """:raises ValueError: for anything but JSON, and for JSON that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def from_values(kind: Callable[..., T], values: Any) -> T:
    """As :func:`decode`, from the fields by name, lists as they are in JSON."""
    readers = _readers(kind)
    for name in _scalar(dict, values):
        if name not in readers:
            raise ValueError(f"{name}: unknown field")
    read = {name: _read_named(readers[name], value, name) for name, value in values.items()}
    try:
        return kind(**read)
    except TypeError as error:  # fields are missing, which it names
        raise ValueError(str(error)) from None


def checked_row(kind: Any, values: Table) -> dict[str, Any]:
    """Return the keys of the TypedDict ``kind``, in their order, with their ``values``, which are
    checked as :func:`decode` checks fields. Lists stay lists.

    :raises ValueError: naming the first value that is wrong.
    """
    readers = _readers(kind).items()
    return {name: _read_named(reader, values[name], name) for name, reader in readers}


def field_values(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name. Unlike :func:`dataclasses.asdict` it copies no value."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


@functools.cache
def _readers(kind: Any) -> Mapping[str, Reader]:
    """Return how each field of a dataclass or each value of a TypedDict is read."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _reader(hint) for name, hint in hints.items()}


def _reader(kind: Any) -> Reader:
    """Return what reads a value of this type."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    is_object = dataclasses.is_dataclass(kind)
    if kind is Any:
        return lambda value: value
    if kind is str:
        return lambda value: storable(_scalar(str, value))
    if kind is Path:
        return lambda value: Path(storable(_scalar(str, value)))
    if origin is Annotated:
        plain = dict if get_origin(arguments[0]) else arguments[0]
        return lambda value: arguments[1](_scalar(plain, value))
    if origin in (Union, UnionType):
        readers = [_reader(one) for one in arguments if one is not NoneType]
        return functools.partial(_read_any, readers, NoneType in arguments)
    if origin is Literal:
        return functools.partial(_one_of, arguments)
    if is_typeddict(kind):
        return functools.partial(checked_row, kind)
    if is_object:
        return functools.partial(from_values, kind)
    if origin is None:
        return functools.partial(_scalar, kind)
    if issubclass(origin, Mapping):
        return functools.partial(_mapping, _reader(arguments[1]))
    if origin is tuple and Ellipsis not in arguments:
        return functools.partial(_fixed_tuple, [_reader(one) for one in arguments])
    return functools.partial(_sequence, list if origin is list else tuple, _reader(arguments[0]))


def _read_named(reader: Reader, value: Any, name: str) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read_any(readers: Sequence[Reader], may_be_none: bool, value: Any) -> Any:
    """Read a value that may be of several types, each of which one of ``readers`` reads."""
    if may_be_none and (value is None or _is_infinite(value)):
        return None
    problems = []
    for reader in readers:
        try:
            return reader(value)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; or ".join(problems))


def _scalar(kind: type, value: Any) -> Any:
    accepted = (int, float) if kind is float else (kind,)
    is_too_large = value not in INT64 if type(value) is int else _is_infinite(value)
    if type(value) not in accepted or is_too_large:
        raise ValueError(f"expected {kind.__name__}, not {value!r:.40}")
    return value


def _is_infinite(value: Any) -> bool:
    """Return whether a number is infinite or counts as such; NaN does, of which no comparison is
    true.
    """
    return isinstance(value, float) and not abs(value) <= LARGEST


def _one_of(values: Sequence[Any], value: Any) -> Any:
    if value not in values:
        raise ValueError(f"expected one of {', '.join(map(str, values))}, not {value!r:.40}")
    return value


def _mapping(reader: Reader, value: Any) -> dict[str, Any]:
    return {name: _read_named(reader, one, name) for name, one in _scalar(dict, value).items()}


def _sequence(kind: Callable[..., Any], reader: Reader, value: Any) -> Any:
    values = _scalar(list, value)
    return kind(_read_named(reader, one, f"[{index}]") for index, one in enumerate(values))


def _fixed_tuple(readers: Sequence[Reader], value: Any) -> tuple[Any, ...]:
    """Return a list with one value for each of ``readers``."""
    values = _scalar(list, value)
    if len(values) != len(readers):
        raise ValueError(f"expected {len(readers)} values, not {len(values)}")
    return tuple(reader(one) for reader, one in zip(readers, values, strict=True))
