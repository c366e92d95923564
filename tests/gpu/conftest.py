"""Tests with the marker ``gpu`` are skipped where there is no GPU."""

from __future__ import annotations

import gpu_helpers
import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (why := gpu_helpers.why_no_gpu()):
        pytest.skip(why)
