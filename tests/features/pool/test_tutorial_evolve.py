"""Every command and script of the tutorial, in order, with a small budget."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_helpers import REPOSITORY
from tutorial_helpers import Reader

from orchestrator.core.text import is_installed

DOCUMENT = "tutorial-evolve.md"
VERDICT = re.compile(r"is (higher|lower) than \S+ by \S+ \[\S+, \S+\], p = |Not decided")
AGAINST_REFERENCE = re.compile(
    r"By distance_m, trial \d+ is "
    r"((higher|lower) than the unchanged job by|as high as the unchanged job, with a difference of)"
    r" \S+ \[\S+, \S+\]; p = "
)
"""The latter where the unchanged body, which is a trial, too, is the better one of two."""


@pytest.mark.nightly
@pytest.mark.skipif(not is_installed("optuna"), reason="needs Optuna, of the extra search")
def test_a_body_is_evolved_searched_and_raced_against_the_first_one(tmp_path: Path) -> None:
    reader = Reader(
        tmp_path,
        {
            "50_000": "2_048",
            "BODIES, FIRST = 30": "BODIES, FIRST = 3",
            "WAITING = 6": "WAITING = 2",
            "trials = 24": "trials = 2",
            "seeds = 5, total": "seeds = 2, total",
        },
    )
    outputs = reader.follow(DOCUMENT)
    trained = re.findall(
        r"^(\d) of (\d) bodies trained; best -?\d+\.\d m, lengths \(0\.",
        outputs["python evolve.py"],
        re.MULTILINE,
    )
    assert trained == [("1", "2"), ("2", "3"), ("3", "3")]
    shown = " ".join(outputs["python -m orchestrator best runs/search"].split())
    assert AGAINST_REFERENCE.search(shown)
    assert AGAINST_REFERENCE.search((REPOSITORY / "docs" / DOCUMENT).read_text(encoding="utf-8"))

    rows = json.loads(reader.run("orchestrator status runs/hoppers --json"))
    assert [bool(row["parent"]) for row in rows] == [False, False, True], "the child has its policy"
    text = (REPOSITORY / "docs" / DOCUMENT).read_text(encoding="utf-8")
    (race,) = re.findall(r"^python -m orchestrator compare .*", text, re.MULTILINE)
    filled = race.replace("FIRST,BEST", f"{rows[0]['name']},{rows[-1]['name']}")
    assert filled != race
    assert VERDICT.search(" ".join(reader.run(f"{filled} --most-seeds 3").split()))
