"""``start`` of a search: what the policies of all trials begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from jobfile_helpers import HOPPER
from trial_helpers import Told, search_run

from orchestrator.core.errors import SpecError
from orchestrator.experiment import run_directory
from orchestrator.features.search import search_time
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import Experiment, from_mapping

SPACE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


def searched(place: Path, **search: Any) -> Experiment:
    table = {"space": SPACE, "trials": 20, "sampler": "random", **search}
    job = {**HOPPER, "task": "forward", "total_timesteps": 200_000, "seeds": [0, 1]}
    data = {"name": "test", "jobs": [job], "search": table}
    return from_mapping(data, source="search.toml", base=place)


def test_another_start_is_another_search(place: Path) -> None:
    before = searched(place).declaration
    changed = written.differences(before, searched(place, start="best").declaration)
    assert changed == ['search.start: "nothing" → "best"']
    assert written.differences(before, searched(place, start="nothing").declaration) == []


def test_the_reference_is_one_job_more(place: Path) -> None:
    experiment = searched(place, start="reference")
    limits = declaration_of(experiment).limits(experiment)
    assert (limits.trials, limits.jobs, limits.env_steps) == (20, 41, 41 * 200_000)


@pytest.mark.parametrize(
    ("search", "where"),
    [
        ({"start": "parent"}, "search.start"),
        (
            {"start": "reference", "space": {"policy_kwargs.net_arch": {"choices": [[32], [64]]}}},
            'search.space."policy_kwargs.net_arch"',
        ),
    ],
    ids=["unknown", "another network"],
)
def test_a_bad_start_is_named(place: Path, search: dict[str, Any], where: str) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, **search)
    assert where in [problem.where for problem in error.value.problems]


def test_the_training_that_all_start_from_is_no_trial(tmp_path: Path) -> None:
    point = {"ppo.learning_rate": 0.001}
    told = [
        Told(values=[7.0], role="start"),
        Told(values=[3.0], parent=0, point=point),
        Told(values=[4.0], parent=0, point={"ppo.learning_rate": 0.002}),
    ]
    paths = search_run(
        tmp_path / "run", told, start="reference", space=SPACE, starts_from="hopper-start-s0"
    )
    shown = json.loads(commands.succeed("best", paths.root, "--json", cwd=tmp_path).stdout)
    assert [(row["trial"], row["parent"]) for row in shown] == [(2, 0), (1, 0)]
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
        spent = search_time.spent_budget(paths, ledger)
    assert [trial.number for trial in reader.asked] == [1, 2]
    assert reader.history.start is not None
    assert (spent.trials, spent.repeated) == (2, 0)
