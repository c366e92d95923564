"""Of the trials of a search, those have previews that pages show by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import HOPPER, TINY
from drawing_helpers import assert_still

from orchestrator.core.paths import RunPaths
from orchestrator.features.search.search_paths import SearchPaths

EVALUATED = TINY.replace("eval_episodes = 0", "eval_episodes = 1")


@pytest.mark.nightly
def test_the_trials_that_a_search_shows_have_previews(opengl: None, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    job = f'[[jobs]]\nname = "hopper"\nxml = "{HOPPER}"\ntask = "forward"'
    space = '[search.space]\n"ppo.learning_rate" = { low = 1e-4, high = 1e-2 }'
    search = f'[search]\nsampler = "random"\ntrials = 2\nobjective = "eval_mean"\n{space}'
    path.write_text(f'name = "search"\n{EVALUATED}\n{job}\n{search}\n')
    done = commands.give("run", path, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    paths = RunPaths(tmp_path / "run")
    names = sorted(commands.summary(paths.root))
    assert (
        names
        == sorted(json.loads(SearchPaths(paths.root).shown_jobs.read_text()))
        == ["hopper-t00000-s0", "hopper-t00001-s0"]
    )
    for name in names:
        assert_still(paths.job(name))
