"""Expressions of measures, such as ``"distance_m / energy_j"``: a small language of its own, which
is read with :mod:`ast` and never run as Python.

It has names of measures and columns, also dotted ones, numbers, ``+ - * /``, parentheses, and ``min(a, b, …)`` and
``max(a, b, …)``.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LONGEST = 200
"""Characters of an expression."""

_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {"min": min, "max": max}
_SIGNS = frozenset("+-*/%()<>=&|^~,")
"""Of an expression; a text without any of them may be a name with spaces."""
_EXPECTED = (
    "expected names of measures, numbers, + - * /, parentheses, min(…) and max(…), "
    'such as "distance_m / energy_j"'
)


class ExpressionError(ValueError):
    """A text is no expression; the message says what in it is wrong, and what is expected."""


class NoValueError(ValueError):
    """An expression has no value for these measures; the message says why."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A measure, or what is computed from several; made by :func:`parse_expression`."""

    text: str
    names: tuple[str, ...]
    """The measures and columns that it needs, each once, in their order."""
    _tree: ast.expr

    def value(self, values: Mapping[str, float | None]) -> float:
        """Its value, finite, for the ``values`` of its names.

        :raises NoValueError: one of them is not known, a divisor is 0, or the result is not finite.
        """
        try:
            value = _value(self._tree, values)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise NoValueError(f"{self.text} is not finite")
        return value


@functools.lru_cache(maxsize=256)
def parse_expression(text: str) -> Expression:
    """:raises ExpressionError: ``text`` is no expression, or names no measure."""
    name = text.strip()
    if name and not _SIGNS & set(name) and not _is_number(name):
        return Expression(name, (name,), ast.Name(name))
    if "#" in text:  # what follows would be a comment
        raise ExpressionError(f"contains #, which has no meaning; {_EXPECTED}")
    if len(text) > LONGEST:
        raise ExpressionError(f"has {len(text)} characters; expected at most {LONGEST}")
    try:
        # Line breaks have no meaning, nor has space at the beginning.
        tree = ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"is no expression; {_EXPECTED}") from None
    names = dict.fromkeys(_checked_names(tree))
    if not names:
        raise ExpressionError(f"names no measure; {_EXPECTED}")
    return Expression(text, tuple(names), tree)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _checked_names(node: ast.expr) -> list[str]:
    """The names below ``node``. :raises ExpressionError: something there has no meaning here."""
    match node:
        case ast.Name() | ast.Attribute():
            return [_name(node)]
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if not _is_finite(number):
                raise ExpressionError(f"contains {ast.unparse(node)}, which is no finite number")
            return []
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _checked_names(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            of_left = _checked_names(left)
            of_right = _checked_names(right)
            if isinstance(sign, ast.Div) and not of_right and _value(right, {}) == 0:
                raise ExpressionError(f"divides by {_part(right)}, which is always 0; {_EXPECTED}")
            return of_left + of_right
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in _FUNCTIONS:
            if len(parts) < 2:
                raise ExpressionError(f"has {ast.unparse(node)}; expected at least two values")
            return [one for part in parts for one in _checked_names(part)]
    raise ExpressionError(f"contains {_part(node)}, which has no meaning here; {_EXPECTED}")


def _name(node: ast.expr) -> str:
    """Of a measure or column: ``distance_m``, or ``meta.mass`` of what a matrix varies.

    :raises ExpressionError: it is an attribute of something else.
    """
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=table, attr=key):
            return f"{_name(table)}.{key}"
    raise ExpressionError(f"contains {_part(node)}, which has no meaning here; {_EXPECTED}")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _part(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _value(node: ast.expr, values: Mapping[str, float | None]) -> float:
    """Of a checked expression."""
    match node:
        case ast.Name() | ast.Attribute():
            name = _name(node)
            value = values.get(name)
            if value is None:
                raise NoValueError(f"{name} has no value")
            if not math.isfinite(value):
                raise NoValueError(f"{name} is not finite")
            return float(value)
        case ast.Constant(value=number):
            return float(number)  # type: ignore[arg-type]
        case ast.UnaryOp(op=sign, operand=operand):
            value = _value(operand, values)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=sign, right=right):
            first = _value(left, values)
            second = _value(right, values)
            if second == 0 and isinstance(sign, ast.Div):
                raise NoValueError(f"{_part(right)} is 0, and nothing can be divided by it")
            return _OPERATORS[type(sign)](first, second)
        case ast.Call(func=ast.Name(id=name), args=parts):
            return _FUNCTIONS[name]([_value(part, values) for part in parts])
    raise AssertionError(f"unchecked: {ast.dump(node)}")
