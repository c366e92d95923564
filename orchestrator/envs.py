"""Registers the built-in tasks with gymnasium when it is imported.

``gymnasium.make("orchestrator.envs:orchestrator/forward-v0", xml=…)`` imports it by itself.
"""

from __future__ import annotations

import gymnasium

from orchestrator.core.gymnasium_ids import register

register(gymnasium)
