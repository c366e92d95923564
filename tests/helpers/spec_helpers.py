"""``spec.json`` as earlier versions have written it."""

from __future__ import annotations

import json
from typing import Any

SPEC: dict[str, Any] = {
    "after": [],
    "algo": "ppo",
    "asymmetric": False,
    "backend": "auto",
    "checkpoint_every": 50000,
    "checkpoint_every_s": None,
    "collective_timeout_s": 30.0,
    "cores": 1,
    "device": "cpu",
    "entry_point": None,
    "env": None,
    "env_kwargs": {},
    "eval_episodes": 10,
    "evaluate": {},
    "extended_from": [],
    "hyperparameters": {},
    "init": None,
    "init_sha256": None,
    "job_id": "a-s0",
    "keep_replay_buffer": False,
    "learner": "auto",
    "mode": "allreduce",
    "model_edits": {},
    "n_envs": 8,
    "name": "a",
    "normalize": True,
    "on_divergence": "fail",
    "params": {},
    "pause_at": None,
    "policy": "MlpPolicy",
    "policy_kwargs": {},
    "preview": False,
    "randomize": {},
    "ranks": 1,
    "robot_maker": None,
    "search_path": None,
    "seed": 0,
    "task": "stand",
    "task_options": {},
    "threads": 1,
    "total_timesteps": 100000,
    "video": False,
    "xml": "robot/hopper.xml",
}
"""Of a job without a table of a feature."""


def written(**changes: Any) -> str:
    """Its bytes, with these keys in place of its own or beside them."""
    return json.dumps({**SPEC, **changes}, indent=2, sort_keys=True) + "\n"
