"""The pose that an evaluation keeps for a still: nothing else depends on it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import worker_helpers as helpers
from stable_baselines3 import PPO

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.training import evaluation

HOPPER = Path(__file__).parents[3] / "mjcf/hopper.xml"


def evaluated(spec: WorkerSpec, folder: Path) -> tuple[Any, bytes | None]:
    venv = env_factory.make(spec, folder, n_envs=spec.n_envs, seed=spec.seed)
    model = PPO("MlpPolicy", venv, seed=spec.seed, device="cpu", **helpers.SMALL_PPO)
    return evaluation.evaluate(spec, folder, model, lambda: None)


def of_hopper(folder: Path, **changes: Any) -> WorkerSpec:
    (folder / "robot").mkdir(parents=True, exist_ok=True)
    (folder / "robot/hopper.xml").write_bytes(HOPPER.read_bytes())
    given: dict[str, Any] = {"task": "forward", "xml": "robot/hopper.xml", "eval_episodes": 2}
    return helpers.spec(**given | changes)


def test_it_changes_nothing_else_of_an_evaluation(tmp_path: Path) -> None:
    plain, kept = (
        evaluated(of_hopper(tmp_path, preview=preview), tmp_path) for preview in (False, True)
    )
    assert plain[0] == kept[0]
    assert plain[1] is None
    assert kept[1] is not None
    arrays = np.load(io.BytesIO(kept[1]), allow_pickle=False)
    model = mujoco.MjModel.from_xml_path(str(HOPPER))
    assert arrays["state"].size == mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION)
    assert np.isfinite(arrays["state"]).all()
    assert len(kept[1]) < 4096
