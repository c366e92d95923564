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
_SIGNS = frozenset("+-*/%()<>=&|^~,#")
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
        """Return its value, finite, for the ``values`` of its names.

        :raises NoValueError: one of them is not known, a divisor is 0, or the result is not finite.
        """
        for name in self.names:
            known = values.get(name)
            if known is None or not math.isfinite(known):
                raise NoValueError(f"{name} has no value")
        try:
            value = _value(self._tree, values)
        except ArithmeticError:
            value = math.inf
        if not math.isfinite(value):
            raise NoValueError(f"{self.text} is not finite")
        return value


@functools.lru_cache(maxsize=256)
def parse_expression(text: str) -> Expression:
    """:raises ExpressionError: ``text`` is no expression, or names no measure."""
    name = text.strip()
    if name and not _SIGNS & set(name) and not name[0].isdigit():
        return Expression(name, (name,), ast.Name(name))
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


def _checked_names(node: ast.expr) -> list[str]:
    """Return the names below ``node``. :raises ExpressionError: something there has no meaning here."""
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=ast.Name() | ast.Attribute()):  # of what a matrix varies
            return [ast.unparse(node)]
        case ast.Constant(value=int() | float() as number):
            if type(number) is not bool and abs(number) < math.inf:
                return []
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _checked_names(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _checked_names(left) + _checked_names(right)
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as parts, keywords=[]):
            if name in _FUNCTIONS:
                return [one for part in parts for one in _checked_names(part)]
    raise ExpressionError(
        f"contains {ast.unparse(node):.60}, which has no meaning here; {_EXPECTED}"
    )


def _value(node: ast.expr, values: Mapping[str, float | None]) -> float:
    """Return the value of a checked expression, all of whose names have one."""
    match node:
        case ast.Constant(value=number):
            return float(number)  # type: ignore[arg-type]
        case ast.UnaryOp(op=sign, operand=operand):
            value = _value(operand, values)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=sign, right=right):
            return _OPERATORS[type(sign)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=parts):
            return _FUNCTIONS[name]([_value(part, values) for part in parts])
    known = values[node.id if isinstance(node, ast.Name) else ast.unparse(node)]
    assert known is not None
    return float(known)
