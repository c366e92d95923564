"""A search that is resumed looks at what is left of it, and what is best is known as trials end."""

from __future__ import annotations

from pathlib import Path

from trial_helpers import Told, search_run

from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.features.search import changed_search


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
