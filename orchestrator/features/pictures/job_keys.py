"""The keys ``preview`` and ``video`` of a job."""

from __future__ import annotations

from orchestrator.keys.feature_tables import JobKey
from orchestrator.keys.value_types import key

_PREVIEW = key(
    True,
    "Draw preview.png after all training: the robot during its final evaluation.",
    False,
)
_VIDEO = key(False, "Make video.mp4 of every trained policy after all training.", True)
KEYS = (
    JobKey(name="preview", field=(bool, _PREVIEW)),
    JobKey(name="video", field=(bool, _VIDEO)),
)
