"""Values of RL Baselines3 Zoo's hyperparameter files in the words of a job file.

The Zoo evaluates Python in some of them (``"dict(activation_fn=nn.ReLU)"``). Here such text is only
parsed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, get_args

from orchestrator.core.worker_spec import Activation

LONGEST = 10_000
"""Characters of a text that is parsed."""
MOST_PARTS = 32
"""Size of a list or table: YAML's aliases can make huge ones of a few lines."""
DEEPEST = 4
"""Depth of lists and tables in one another."""
_LINEAR = re.compile(r"lin_(.+)\Z")
_ACTIVATIONS = {name.replace("_", ""): name for name in get_args(Activation)}


class PythonName(str):
    """A name in Python, such as ``nn.ReLU``: its text."""

    __slots__ = ()


def parse(text: str) -> Any:
    """The value of a Python expression of literals, ``dict(…)`` and names; tuples become lists.

    :raises ValueError: for anything else.
    """
    try:
        if len(text) > LONGEST:
            raise ValueError(f"more than {LONGEST:,} characters")
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = (
            error.msg if isinstance(error, SyntaxError) else str(error) or "is nested too deeply"
        )
        raise ValueError(f"cannot be read: {reason}") from None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            names = [None if key is None else _value(key) for key in keys]
            if all(isinstance(name, str) for name in names):
                return dict(zip(names, map(_value, values), strict=True))
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(
            word.arg for word in keywords
        ):
            return {word.arg: _value(word.value) for word in keywords}
        case ast.Name() | ast.Attribute():
            return PythonName(ast.unparse(node))
    raise ValueError(f"{ast.unparse(node)[:60]} is neither a number, text, list nor dict(…)")


def table(value: Any) -> dict[str, Any]:
    """A table that is written as YAML or as text of Python. :raises ValueError: it is neither."""
    content = parse(value) if isinstance(value, str) else value
    if isinstance(content, Mapping):
        return {str(name): part for name, part in content.items()}
    raise ValueError("is not a table, dict(…)")


def number(value: Any) -> Any:
    """Text that is a number as that number, and the Zoo's linear schedule as ours; everything else
    as it is.
    """
    if not isinstance(value, str):
        return value
    if match := _LINEAR.match(value):
        return f"linear({match[1]}, 0)"
    if "_" in value:  # Python would read 1_000 as a number
        return value
    try:
        return float(value)
    except ValueError:
        return value


def boolean(value: Any) -> bool | None:
    """A truth value, also as text; None for anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).strip().lower())


def policy_value(name: str, value: Any) -> Any:
    """A value of ``policy_kwargs`` in the words of a job file."""
    if name == "activation_fn":
        last = str(value).rpartition(".")[2].lower().replace("_", "")
        return _ACTIVATIONS.get(last, str(value))
    if (
        name == "net_arch"
        and isinstance(value, list)
        and len(value) == 1
        and isinstance(value[0], Mapping)
    ):
        return value[0]  # the form of older versions of Stable-Baselines3
    return value


def is_small(value: Any, depth: int = DEEPEST) -> bool:
    """Whether a value can be looked at as a whole."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return (
        depth > 0 and len(value) <= MOST_PARTS and all(is_small(part, depth - 1) for part in value)
    )
