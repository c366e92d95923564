"""Checkpoints of earlier versions: what stands in them about the loop, and that a training goes on
from them with the same bits.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import JobPaths
from orchestrator.worker.training import checkpoint

FIELDS = [
    "iteration",
    "learner",
    "progress_rows",
    "timings_rows",
    "ep_rew_mean_first",
    "training_s",
    "divergences",
    "recent_episodes",
    "parts",
]
"""Of :class:`orchestrator.worker.training.training_state.LoopState`, in the order in which
checkpoints hold them."""
FIRST_FIELDS = FIELDS[:6]
"""Those of the first version."""
PLACE = dataclasses.make_dataclass("Place", FIRST_FIELDS, frozen=True, slots=True, kw_only=True)
PLACE.__module__ = "orchestrator.worker.checkpoint"


def as_object(place: Mapping[str, Any]) -> Any:
    """As the first version has it, without what came later."""
    return PLACE(**{name: place[name] for name in FIRST_FIELDS})


def as_flat_values(place: Mapping[str, Any]) -> dict[str, Any]:
    """As before there were parts of features."""
    return {name: value for name, value in place.items() if name != "parts"}


def place_of(paths: JobPaths) -> dict[str, Any]:
    """In the newest checkpoint."""
    place: dict[str, Any] = checkpoint.load(max(paths.checkpoints.glob("*.pt")).read_bytes())[
        "place"
    ]
    return place


def rewrite(
    paths: JobPaths, form: Callable[[Mapping[str, Any]], Any], patch: pytest.MonkeyPatch
) -> None:
    """Give the newest checkpoint the form of an earlier version."""
    newest = max(paths.checkpoints.glob("*.pt"))
    state = checkpoint.load(newest.read_bytes())
    content = io.BytesIO()
    module = types.ModuleType(PLACE.__module__)
    vars(module)["Place"] = PLACE
    with patch.context() as writing:
        writing.setitem(sys.modules, module.__name__, module)
        torch.save({**state, "place": form(state["place"])}, content)
    newest.write_bytes(content.getvalue())


@pytest.mark.parametrize("form", [as_object, as_flat_values, dict])
def test_a_training_goes_on_from_a_checkpoint_of_an_earlier_version_with_the_same_bits(
    form: Callable[[Mapping[str, Any]], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = helpers.algorithm("ppo", normalize=True, total_timesteps=512)
    whole, resumed = (helpers.job(tmp_path / name, given) for name in ("whole", "resumed"))
    record = helpers.train_to_its_end(whole)
    resumed.spec.write_text(dataclasses.replace(given, pause_at=256).to_json())
    paused, log = helpers.train_here(resumed)
    assert paused.code == ExitCode.PAUSED, log
    rewrite(resumed, form, monkeypatch)
    resumed.spec.write_text(given.to_json())
    again = helpers.train_to_its_end(resumed, 1)
    assert again.resumed_from == 256
    assert again.weights_sha256 == record.weights_sha256
    assert again.ep_rew_mean_first == record.ep_rew_mean_first
    assert [row["iteration"] for row in helpers.rows(resumed.timings_csv)] == ["1", "2", "3", "4"]
    steps = [row["time/total_timesteps"] for row in helpers.rows(resumed.progress_csv)]
    assert steps == ["128", "256", "384", "512"]


def test_a_checkpoint_holds_of_the_loop_what_it_held_before(tmp_path: Path) -> None:
    paths = helpers.job(tmp_path, helpers.algorithm("ppo", total_timesteps=256))
    helpers.train_to_its_end(paths)
    place = place_of(paths)
    assert list(place) == FIELDS
    assert place.pop("training_s") > 0
    assert place == {
        "iteration": 2,
        "learner": "fast",
        "progress_rows": 2,
        "timings_rows": 2,
        "ep_rew_mean_first": None,
        "divergences": 0,
        "recent_episodes": (),
        "parts": {},
    }
