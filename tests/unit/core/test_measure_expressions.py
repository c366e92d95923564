"""Expressions of measures: what they are, what they are worth, and what is refused."""

from __future__ import annotations

import pytest

from orchestrator.core.measure_expressions import (
    LONGEST,
    ExpressionError,
    NoValueError,
    parse_expression,
)

VALUES = {
    "distance_m": 6.0,
    "energy_j": 4.0,
    "mass_kg": 2.0,
    "still": 0.0,
    "lost": None,
    "ep_rew_mean": -1.5,
    "mean error": 3.0,
    "error [m]": 0.25,
    "größe_m": 7.0,
    "huge": 1e308,
    "wrong": float("nan"),
    "reached": True,
    "meta.trunk.mass": 0.5,
}


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("distance_m", ["distance_m"], 6.0),
        ("distance_m / energy_j", ["distance_m", "energy_j"], 1.5),
        ("-energy_j", ["energy_j"], -4.0),
        ("distance_m - 0.5 * energy_j", ["distance_m", "energy_j"], 4.0),
        ("(distance_m - 0.5) * energy_j", ["distance_m", "energy_j"], 22.0),
        ("energy_j / (mass_kg * 9.81 * distance_m)", ["energy_j", "mass_kg", "distance_m"], None),
        ("min(distance_m, 5)", ["distance_m"], 5.0),
        ("reached * 2", ["reached"], 2.0),
        ("mean error", ["mean error"], 3.0),
        ("distance_m / meta.trunk.mass", ["distance_m", "meta.trunk.mass"], 12.0),
    ],
)
def test_values(text: str, names: list[str], value: float | None) -> None:
    expression = parse_expression(text)
    assert list(expression.names) == names
    if value is not None:
        assert expression.value(VALUES) == pytest.approx(value)
    else:
        assert expression.value(VALUES) == pytest.approx(4 / (2 * 9.81 * 6))


@pytest.mark.parametrize(
    "text",
    [
        "distance_m / still",
        "1 / (energy_j - 4)",
        "distance_m / lost",
        "min(distance_m, lost)",
        "huge * huge",
        "wrong",
    ],
)
def test_what_has_no_value(text: str) -> None:
    with pytest.raises(NoValueError):
        parse_expression(text).value(VALUES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "distance_m /",
        "distance_m * * energy_j",
        "distance_m ** 2",
        "distance_m > 2",
        "~reached",
        "__import__('os').system('true')",
        "abs(distance_m)",
        "distance_m + True",
        "min(distance_m)",
        "distance_m + 1e999",
        "3",
        "-" * 150 + "distance_m" + "/" * 80,
        "(" * 99 + "distance_m" + ")" * 90,
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text)


def test_the_deepest_expression_has_a_value() -> None:
    text = "-" * (LONGEST - len("distance_m")) + "distance_m"
    assert parse_expression(text).value(VALUES) == 6.0
