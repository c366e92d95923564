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
        ("distance_m/energy_j", ["distance_m", "energy_j"], 1.5),
        (" distance_m\n/ energy_j ", ["distance_m", "energy_j"], 1.5),
        ("-energy_j", ["energy_j"], -4.0),
        ("+energy_j - -1", ["energy_j"], 5.0),
        ("distance_m - 0.5 * energy_j", ["distance_m", "energy_j"], 4.0),
        ("(distance_m - 0.5) * energy_j", ["distance_m", "energy_j"], 22.0),
        ("distance_m / energy_j / mass_kg", ["distance_m", "energy_j", "mass_kg"], 0.75),
        ("energy_j / (mass_kg * 9.81 * distance_m)", ["energy_j", "mass_kg", "distance_m"], None),
        ("distance_m + distance_m", ["distance_m"], 12.0),
        ("min(distance_m, 5)", ["distance_m"], 5.0),
        ("max(distance_m, energy_j, 1e1)", ["distance_m", "energy_j"], 10.0),
        ("1_000 * ep_rew_mean", ["ep_rew_mean"], -1500.0),
        ("reached * 2", ["reached"], 2.0),
        ("mean error", ["mean error"], 3.0),
        ("error [m]", ["error [m]"], 0.25),
        ("größe_m / 7", ["größe_m"], 1.0),
        ("still / 2", ["still"], 0.0),
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
    ("text", "message"),
    [
        ("distance_m / still", "still is 0, and nothing can be divided by it"),
        ("1 / (energy_j - 4)", "energy_j - 4 is 0, and nothing can be divided by it"),
        ("distance_m / lost", "lost has no value"),
        ("distance_m / none", "none has no value"),
        ("min(distance_m, lost)", "lost has no value"),
        ("huge * huge", r"huge \* huge is not finite"),
        ("wrong", "wrong is not finite"),
        ("min(1, wrong)", "wrong is not finite"),
    ],
)
def test_what_has_no_value_says_why(text: str, message: str) -> None:
    with pytest.raises(NoValueError, match=f"^{message}$"):
        parse_expression(text).value(VALUES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no expression; expected names of measures"),
        ("   ", "is no expression"),
        ("distance_m /", "is no expression"),
        ("distance_m / (energy_j", "is no expression"),
        ("distance_m * * energy_j", "is no expression"),
        ("distance_m ** 2", r"contains distance_m \*\* 2, which has no meaning here; expected"),
        ("distance_m // 2", "contains distance_m // 2"),
        ("distance_m % 2", "contains distance_m % 2"),
        ("distance_m > 2", "contains distance_m > 2"),
        ("distance_m = 2", "is no expression"),
        ("~reached", "contains ~reached"),
        ("(lambda: 1)()", "contains"),
        ("__import__('os').system('true')", "contains __import__"),
        ("open('file')", "contains open"),
        ("abs(distance_m)", r"contains abs\(distance_m\)"),
        ("distance_m + 'text'.real", "contains 'text'"),
        ("[distance_m] * 3", "contains"),
        ("distance_m + 'text'", "contains 'text'"),
        ("distance_m + True", "contains True"),
        ("distance_m + 2j", "contains 2j"),
        ("min(distance_m)", r"has min\(distance_m\); expected at least two values"),
        ("min(*distance_m, 2)", r"contains \*distance_m"),
        ("min(distance_m, 2, key=energy_j)", "contains min"),
        ("min()", "expected at least two values"),
        ("distance_m + 1e999", "which is no finite number"),
        ("distance_m / 0", "divides by 0, which is always 0"),
        ("1 / (2 - 2.0) + distance_m", r"divides by 2 - 2.0, which is always 0"),
        ("3", "names no measure"),
        ("2 * 3 + 1", "names no measure"),
        ("(distance_m := 3)", "contains"),
        ("distance_m, energy_j", "contains"),
        ("-" * 150 + "distance_m" + "/" * 80, f"expected at most {LONGEST}"),
        ("distance_m +" * 20, f"has 240 characters; expected at most {LONGEST}"),
        ("(" * 99 + "distance_m" + ")" * 90, "is no expression"),
        ("distance_m\x00+ 1", "is no expression"),
    ],
)
def test_what_is_no_expression_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse_expression(text)


def test_the_deepest_expression_has_a_value() -> None:
    text = "-" * (LONGEST - len("distance_m")) + "distance_m"
    assert parse_expression(text).value(VALUES) == 6.0
