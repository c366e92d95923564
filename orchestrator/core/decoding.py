"""Dataclasses and rows from what another process wrote, every value checked against its declared
type.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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

# In Annotated stands what a text goes through, or the range of a whole number (`_reader`).
FilePath: TypeAlias = Annotated[str, str]
"""The path of a file, which is read as it is: it may hold bytes that are not UTF-8. Other text
becomes storable."""
Message: TypeAlias = Annotated[str, shortened]
"""Text for people, whose length nobody has limited yet."""
Positive: TypeAlias = Annotated[int, range(1, 2**63)]
"""A whole number of at least 1."""
Natural: TypeAlias = Annotated[int, range(2**63)]
"""A whole number of at least 0."""

_KINDS: Mapping[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number of 64 bits", (int,)),
    float: ("a number", (float, int)),
    str: ("text", (str,)),
}
LARGEST = 1e150
"""Larger numbers count as infinite: their products and squares would be."""
INT64 = range(-(2**63), 2**63)


def decode(
    kind: type[T],
    text: str | bytes,
    prepare: Callable[[type, Mapping[str, Any]], Mapping[str, Any]] = lambda _, values: values,
) -> T:
    """The dataclass ``kind`` from a JSON object.

    Fields with a default may be missing. Lists become tuples; NaN and infinities become None where
    a number or None is admitted, and are refused elsewhere.

    :param prepare: makes the fields of ``kind`` of the content of the object.
    :raises ValueError: naming the field, when it is unknown, missing or of another type.
    """
    try:
        return _object(kind, prepare(kind, _instance(dict, "an object", parsed_json(text))))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parsed_json(text: str | bytes) -> Any:
    """:raises ValueError: for anything but JSON, and for JSON that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def from_values(kind: type[T], values: Mapping[str, Any]) -> T:
    """As :func:`decode`, from the fields by name, lists as they are in JSON."""
    return _object(kind, values)


def checked_row(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the TypedDict ``kind``, in their order, with their ``values``, which are checked
    as :func:`decode` checks fields.

    :raises ValueError: naming the first value that is wrong.
    """
    readers = _columns(kind)
    return _read_each(readers, values, readers)


def checked_values(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """As :func:`checked_row`, of the keys in ``values`` alone."""
    return _read_each(values, values, _columns(kind))


def field_values(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass by name. Unlike :func:`dataclasses.asdict` it copies no value."""
    kind: Any = type(instance)
    return {name: getattr(instance, name) for name in _field_names(kind)}


@functools.cache
def _field_names(kind: Any) -> Sequence[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _object(kind: Callable[..., T], value: Any) -> T:
    values = _instance(dict, "an object", value)
    readers, required = _fields(kind)
    if unknown := values.keys() - readers.keys():
        raise ValueError(f"{min(unknown)}: unknown field")
    if missing := required - values.keys():
        raise ValueError(f"{min(missing)}: missing")
    return kind(**_read_each(values, values, readers))


@functools.cache
def _fields(kind: Any) -> tuple[Mapping[str, Reader], frozenset[str]]:
    """How each field is read, and the names of those without a default."""
    hints = get_type_hints(kind, include_extras=True)
    readers: dict[str, Reader] = {}
    required: set[str] = set()
    for field in dataclasses.fields(kind):
        readers[field.name] = _reader(hints[field.name])
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.add(field.name)
    return readers, frozenset(required)


@functools.cache
def _columns(kind: Any) -> Mapping[str, Reader]:
    """How each value of a TypedDict is read."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _reader(hint, list) for name, hint in hints.items()}


def _reader(kind: Any, sequence: type = tuple) -> Reader:
    """What reads a value of this type, or refuses it with a ``ValueError``.

    :param sequence: what lists become: dataclasses are frozen, and rows are not.
    """
    origin = get_origin(kind)
    arguments = get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind is str:
        return functools.partial(_text, storable)
    if kind is Path:
        return lambda value: Path(_text(storable, value))
    if origin is Annotated and arguments[0] is str:
        return functools.partial(_text, arguments[1])
    if origin is Annotated:
        return functools.partial(_within, arguments[1])
    if origin in (Union, UnionType):
        return _reader_of_several(arguments, sequence)
    if origin is Literal:
        return functools.partial(_one_of, arguments)
    if origin is tuple and Ellipsis not in arguments:
        return functools.partial(_fixed_tuple, [_reader(one) for one in arguments])
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_mapping, _reader(arguments[1], sequence))
    if origin is not None and issubclass(origin, Sequence):
        return functools.partial(_sequence, sequence, _reader(arguments[0], sequence))
    if is_typeddict(kind):
        return functools.partial(checked_row, kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return functools.partial(_object, kind)
    return functools.partial(_scalar, kind)


def _reader_of_several(kinds: Sequence[Any], sequence: type) -> Reader:
    """:param kinds: what a value may be, None too where it is among them."""
    others = [kind for kind in kinds if kind is not NoneType]
    readers = [_reader(kind, sequence) for kind in others]
    reader = readers[0] if len(readers) == 1 else functools.partial(_any_of, readers)
    if NoneType not in kinds:
        return reader
    is_number = int in others or float in others
    return functools.partial(_optional, reader, is_number)


def _read_each(
    names: Iterable[str], values: Mapping[str, Any], readers: Mapping[str, Reader]
) -> dict[str, Any]:
    """The values of these names, each as its reader reads it."""
    found: dict[str, Any] = {}
    name = ""
    try:
        for name in names:
            found[name] = readers[name](values[name])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return found


def _read_naming(reader: Reader, value: Any, name: str) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _scalar(kind: type, value: Any) -> Any:
    expected, accepted = _KINDS[kind]
    if type(value) not in accepted or _is_too_large(value):
        raise ValueError(f"expected {expected}, not {_short_json(value)}")
    return value


def _is_too_large(value: Any) -> bool:
    return value not in INT64 if type(value) is int else _is_infinite(value)


def _is_infinite(value: Any) -> bool:
    """Whether a number is infinite or counts as such; NaN does, of which no comparison is true."""
    return isinstance(value, float) and not abs(value) <= LARGEST


def _within(limits: range, value: Any) -> int:
    if (number := _scalar(int, value)) not in limits:
        raise ValueError(f"expected a whole number of at least {limits.start}, not {number}")
    return int(number)


def _text(kept: Callable[[str], str], value: Any) -> str:
    return kept(_scalar(str, value))


def _one_of(values: Sequence[Any], value: Any) -> Any:
    if value not in values:
        raise ValueError(f"expected one of {', '.join(map(str, values))}, not {_short_json(value)}")
    return value


def _optional(reader: Reader, is_number: bool, value: Any) -> Any:
    if value is None or (is_number and _is_infinite(value)):
        return None
    return reader(value)


def _mapping(reader: Reader, value: Any) -> dict[str, Any]:
    return {
        name: _read_naming(reader, one, name)
        for name, one in _instance(dict, "an object", value).items()
    }


def _sequence(kind: Callable[..., Any], reader: Reader, value: Any) -> Any:
    values = _instance(list, "a list", value)
    return kind(_read_naming(reader, one, f"[{index}]") for index, one in enumerate(values))


def _fixed_tuple(readers: Sequence[Reader], value: Any) -> tuple[Any, ...]:
    """A list with one value for each of ``readers``."""
    values = _instance(list, "a list", value)
    if len(values) != len(readers):
        raise ValueError(f"expected {len(readers)} values, not {_short_json(value)}")
    pairs = zip(readers, values, strict=True)
    return tuple(
        _read_naming(reader, one, f"[{index}]") for index, (reader, one) in enumerate(pairs)
    )


def _any_of(readers: Sequence[Reader], value: Any) -> Any:
    """As the first of ``readers`` reads it that can."""
    problems = []
    for reader in readers:
        try:
            return reader(value)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; or ".join(problems))


def _instance(kind: type[T], expected: str, value: Any) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"expected {expected}, not {_short_json(value)}")  # noqa: TRY004 - the input is wrong, no call
    return value


def _short_json(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else f"{text[:39]}…"
