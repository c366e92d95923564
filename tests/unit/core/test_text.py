"""Text of any content can be stored, kept short and shown, and means the same in JSON."""

from __future__ import annotations

import io
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from orchestrator.core.columns import Column
from orchestrator.core.text import LONGEST_LINE, LONGEST_TEXT, plain, shortened, storable
from orchestrator.terminal import output, run_view
from orchestrator.terminal.jobs_table import JobsTable
from orchestrator.terminal.run_view import JsonReporter, LineReporter

anything = st.text(st.characters(codec=None, exclude_categories=()))
"""With lone surrogates and control characters."""
HOSTILE = "a\x1b]52;c;ZXZpbA==\x07b\x9b2J\u202ec\udcfcd"


@given(anything)
def test_every_text_can_be_stored_and_is_the_same_in_json(text: str) -> None:
    stored = storable(text)
    stored.encode()
    assert storable(stored) == stored
    assert json.loads(storable(json.dumps(text, ensure_ascii=False))) == json.loads(
        json.dumps(text)
    )


@given(text=anything, repeats=st.integers(1, 5000))
def test_a_message_has_a_bounded_length_however_often_it_is_cut(text: str, repeats: int) -> None:
    short = shortened(text * repeats)
    short.encode()
    assert len(short) <= LONGEST_TEXT == 16_384
    assert max(map(len, short.split("\n"))) <= LONGEST_LINE + 1
    assert shortened(short) == short


@given(anything)
def test_nothing_that_is_shown_controls_the_terminal_and_json_stays_the_same(text: str) -> None:
    shown = plain(text)
    shown.encode()
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in shown)
    assert plain(shown) == shown
    assert json.loads(plain(json.dumps(text, ensure_ascii=False))) == json.loads(json.dumps(text))
    assert plain(text, keep="\n").count("\n") == text.count("\n")


def test_what_is_printed_on_a_console_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("job", lambda row: HOSTILE), Column("state", lambda row: "ok")]
    output.show_table(
        columns, [0], above=[HOSTILE, Text.assemble((HOSTILE, "bold"), "\nnext line")]
    )
    shown = capsys.readouterr().out
    assert shown.count(r"a\u001b]52;c;ZXZpbA==") == shown.count(r"b\u009b2J\u202ec\udcfcd") == 3
    assert not set(shown) & set("\x1b\x07\x9b\u202e\udcfc")
    *_, next_line, heading, row = shown.splitlines()
    assert next_line == "next line"
    assert heading.index("state") == row.index("ok")


def test_an_event_is_one_line_that_every_stream_takes(capsys: pytest.CaptureFixture[str]) -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="ascii")
    LineReporter(stream).event("failed", f"{HOSTILE} → no\nsucceeded")
    assert content.getvalue().count(b"\n") == 1
    assert b"\x1b" not in content.getvalue()
    JsonReporter().event("failed", HOSTILE, reason=HOSTILE)
    shown = capsys.readouterr().out
    assert plain(shown, keep="\n") == shown
    assert json.loads(shown)["message"] == json.loads(shown)["reason"] == HOSTILE


def test_a_pipe_gets_a_line_with_the_totals_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr(run_view.time, "monotonic", lambda: now[0])
    reporter = LineReporter(stream)
    counts = Counter(SUCCEEDED=1, PENDING=2)
    table = JobsTable(
        elapsed_s=90.0,
        counts=counts,
        running=(),
        ended=(),
        next_up=(),
        steps_to_go=600,
        env_steps_per_s=10.0,
        remaining_s=60.0,
    )
    for seconds in (1.0, run_view.TOTALS_EVERY_S, run_view.TOTALS_EVERY_S + 1):
        now[0] = seconds
        reporter.draw(lambda: table)
    (line,) = stream.getvalue().splitlines()
    assert "1/3 jobs ended" in line
    assert "ETA 1:00" in line
