"""``orchestrator.TrainingPool``: robots are trained one by one, as a Python program submits them."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.feature import Feature


def _python() -> Mapping[str, str]:
    return {"TrainingPool": "orchestrator.features.pool.training_pool"}


FEATURE = Feature(
    name="pool",
    about="orchestrator.TrainingPool: robots are trained as a Python program submits them.",
    python=_python,
)
