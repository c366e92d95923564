"""Measures of training over several ranks: all of them have those of all episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks_helpers as helpers
import worker_helpers as worker

from orchestrator.core.paths import JobPaths
from orchestrator.worker.envs import env_factory
from orchestrator.worker.ranks.process_group import ProcessGroup
from orchestrator.worker.ranks.ranks import own_share
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.progress import ProgressReporter
from orchestrator.worker.training import learners
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.train import Training

pytestmark = pytest.mark.nightly

HOPPER = worker.REPOSITORY / "mjcf/hopper.xml"


def measured(group: ProcessGroup, directory: Path) -> tuple[dict[str, Any], list[Any]]:
    spec = helpers.spec(
        "ppo",
        task="forward",
        xml=str(HOPPER),
        env=None,
        task_options={"max_episode_steps": 20},
        ranks=2,
        n_envs=4,
        total_timesteps=512,
        checkpoint_every=10**6,
        hyperparameters={"n_steps": 32, "batch_size": 64, "n_epochs": 1},
        measure_training=True,
    )
    ours = own_share(spec.n_envs, group)
    venv = env_factory.make(
        spec,
        directory,
        n_envs=len(ours),
        seed=spec.seed,
        first_env=ours.start,
        training=True,
        measuring=True,
    )
    model: Any = learners.build(spec, venv, group).model
    facts = AttemptFacts(started=0.0)
    attempt = Attempt(
        spec=spec,
        paths=JobPaths(directory),
        model=model,
        facts=facts,
        reporter=ProgressReporter(None, facts),
        ranks=group,
    )
    Training(attempt).train(lambda: False)
    assert facts.training_measures is not None
    return dict(facts.training_measures), [one["measures"] for one in model.ep_info_buffer]


def test_all_ranks_have_the_measures_of_all_episodes(tmp_path: Path) -> None:
    (means, episodes), others = helpers.together(2, tmp_path / "ranks", measured, tmp_path)
    assert others == (means, episodes)
    assert means["energy_j"] > 0
    distances = [one["distance_m"] for one in episodes]
    assert len(set(distances)) == len(distances) >= 4 * (512 // 4 // 20)
    assert means["distance_m"] == pytest.approx(sum(distances) / len(distances))
