"""A search that is resumed looks at what is left of it, and what is best is known as trials end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from trial_helpers import Told, search_run

from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.features.search import changed_search, search_events
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.trials import TrialReader, best


def test_a_resumed_search_has_the_jobs_that_are_left_and_the_places_of_all(tmp_path: Path) -> None:
    paths = search_run(
        tmp_path / "run", [Told(values=[3.0]), Told(values=[4.0]), Told(reached=[1.0]), Told()]
    )
    done, gone, waiting, queued = (f"hopper-t{number:05d}-s0" for number in range(4))
    directory = paths.job(done)
    directory.root.mkdir(parents=True)
    for file in (directory.model, directory.vecnormalize):
        file.touch()
    with run_directory.opened_ledger(paths) as ledger:
        declared = changed_search.declared_experiment(paths)
        found, options = changed_search.resumed_experiment(
            declared, RunOptions(run_dir=paths.root), ledger, paths
        )
    assert [job.job_id for job in found.jobs] == [gone, waiting, queued], (
        "the results of one are gone"
    )
    assert options.verdicts is not None
    assert list(options.verdicts) == [gone, waiting, queued]
    assert options.recorded is not None
    assert [(job_id, row.position) for job_id, row in options.recorded.items()] == [
        (done, 0),
        (gone, 1),
        (waiting, 2),
        (queued, 3),
    ]


@pytest.mark.parametrize("directions", [("maximize",), ("minimize",), ("maximize", "minimize")])
def test_the_best_are_known_as_soon_as_trials_end(
    directions: Sequence[str], tmp_path: Path
) -> None:
    chance, several = random.Random(0), len(directions) > 1
    names = ["eval_mean", "env_steps"][: len(directions)]
    settings = (
        {"objective": names, "direction": list(directions)}
        if several
        else {"direction": directions[0]}
    )
    sampler = {"sampler": "nsga2"} if several else {}
    trials = [Told() for _ in range(40)]
    paths = search_run(
        tmp_path / "run",
        trials,
        is_over=False,
        scheduler={"kind": "none"},
        reevaluate=1,
        **settings,
        **sampler,
    )
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths) as ledger:
        for number in chance.sample(range(40), 40):
            values = [float(chance.randrange(6)) for _ in names] if chance.random() < 0.8 else None
            content = {
                "values": values,
                "measures": None,
                "env_steps": 1000,
                "why": "" if values else "it fell",
            }
            search_events.add(ledger, [SearchEvent(kind="over", trial=number, content=content)])
            reader.update(ledger)
            expected = best(reader.asked, reader.directions)
            assert list(reader.front) == (expected if several else expected[:1])
    states = [reader.state(trial) for trial in reader.asked]
    assert reader.failed == states.count("failed") > 0
    assert reader.saved_share == 0.0
