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
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LONGEST = 200
"""Characters of an expression."""
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
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
        known: dict[str, float] = {}
        for name in self.names:
            value = values.get(name)
            if value is None or not math.isfinite(value):
                raise NoValueError(f"{name} has no value")
            known[name] = value
        try:
            result = _value(self._tree, known.__getitem__)
        except ArithmeticError:
            result = math.inf
        if not math.isfinite(result):
            raise NoValueError(f"{self.text} is not finite")
        return result


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
    names: dict[str, None] = {}

    def note(name: str) -> float:
        names[name] = None
        return math.nan  # by which nothing is divided by 0

    try:
        _value(tree, note)
    except ZeroDivisionError:
        raise ExpressionError("divides by 0") from None
    if not names:
        raise ExpressionError(f"names no measure; {_EXPECTED}")
    return Expression(text, tuple(names), tree)


def _value(node: ast.expr, value_of: Callable[[str], float]) -> float:
    """Return the value of an expression.

    :param value_of: gives the value of a name.
    :raises ExpressionError: something in it has no meaning here.
    """
    match node:
        case ast.Name(id=name):
            return value_of(name)
        case ast.Attribute(value=ast.Name() | ast.Attribute()):  # of what a matrix varies
            return value_of(ast.unparse(node))
        case ast.Constant(value=int() | float() as number):
            if type(number) is not bool and abs(number) < math.inf:
                return float(number)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, value_of)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            first, second = _value(left, value_of), _value(right, value_of)
            return _OPERATORS[type(operation)](first, second)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, *_], keywords=[]):
            values = [_value(part, value_of) for part in node.args]
            return min(values) if name == "min" else max(values)
    raise ExpressionError(
        f"contains {ast.unparse(node):.60}, which has no meaning here; {_EXPECTED}"
    )
