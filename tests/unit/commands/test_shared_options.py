"""Values of options that several commands take."""

from __future__ import annotations

import pytest

from orchestrator.commands.shared_options import parse_max_parallel


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("012", 12),
        ("999999", 999_999),
        ("1000000", None),
        ("9" * 5000, None),
        ("0", None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("two", None),
    ],
)
def test_a_number_of_jobs_is_a_whole_number_of_ordinary_digits(
    text: str, number: int | None
) -> None:
    assert parse_max_parallel(text) == number
