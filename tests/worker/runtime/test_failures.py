"""What a worker says about the exception that ended its attempt."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import LARGEST_BYTES
from orchestrator.core.text import LONGEST_TEXT
from orchestrator.worker.runtime import failures
from orchestrator.worker.runtime.attempt_facts import AttemptFacts


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("kind", [ValueError, OSError, failures.Diverged, failures.RankLostError])
def test_a_message_without_end_is_cut_without_copies_of_it(kind: type[Exception]) -> None:
    message = os.fsdecode(b"/dM\xfcl ") + "x" * 4_000_000
    error = raised(kind(message))
    tracemalloc.start()
    code, text, trace = failures.classify(error)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * len(message) * 2  # a str with a character beyond Latin-1 takes two bytes each
    assert r"/dM\udcfcl x" in text
    assert len(text) < LONGEST_TEXT
    assert len(trace) <= LONGEST_TEXT
    assert f"{kind.__name__}: " in trace
    facts = AttemptFacts(
        started=0.0, unsaveable=message * 2, learner_reason="\n".join([message] * 9)
    )
    assert len(facts.record(code, message, message).to_json()) < LARGEST_BYTES / 10


def test_the_last_lines_of_a_traceback_are_kept() -> None:
    def deep(level: int) -> None:
        if level == 0:
            raise RecursionError("\n".join(map(str, range(100))))
        deep(level - 1)

    with pytest.raises(RecursionError) as caught:
        deep(3)
    code, _, trace = failures.classify(caught.value)
    assert code == ExitCode.ERROR
    assert trace.splitlines()[-1] == "99"
    assert len(trace.splitlines()) == 40


def test_the_place_is_the_last_line_of_the_users_own_code_also_behind_an_error_that_hides_it(
    tmp_path: Path,
) -> None:
    code = {
        "gait.py": "def fall():\n    return {}['knee']\n\ndef step():\n    fall()\n",
        "site-packages/wrapper.py": "def call(step):\n    try:\n        step()\n    except KeyError as error:\n"
        "        raise ValueError('cannot step') from error\n",
    }
    defined: dict[str, Any] = {}
    for name, text in code.items():
        exec(compile(text, str(tmp_path / name), "exec"), defined)
    with pytest.raises(KeyError) as direct:
        defined["step"]()
    assert failures.describe(direct.value) == f"KeyError: 'knee' ({tmp_path / 'gait.py'}:2)"
    with pytest.raises(ValueError, match="cannot step") as hidden:
        defined["call"](defined["step"])
    assert hidden.value.__traceback__ is not None
    error = hidden.value.with_traceback(
        hidden.value.__traceback__.tb_next
    )  # without this file, which is the user's too
    assert failures.describe(error) == f"ValueError: cannot step ({tmp_path / 'gait.py'}:2)"
