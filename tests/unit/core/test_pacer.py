"""What is done again and again takes no more than its share of the time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from orchestrator.core import pacer
from orchestrator.core.pacer import Pace, Pacer


@pytest.mark.parametrize(
    ("pace", "took_s", "pause_s"),
    [
        (Pace(every_s=1.0, share=0.01), 0.001, 1.0),
        (Pace(every_s=1.0, share=0.01), 0.02, 2.0),
        (Pace(every_s=1.0, share=0.01, longest_s=10.0), 5.0, 10.0),
        (Pace(share=0.5), 0.0, 0.0),
        (Pace(share=0.5), 3.0, 6.0),
        (Pace(every_s=1.0), 3.0, 1.0),
    ],
)
def test_the_pause_grows_with_what_the_last_time_took(
    pace: Pace, took_s: float, pause_s: float
) -> None:
    assert pace.pause_s(took_s) == pytest.approx(pause_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(pacer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_first_time_is_at_once_and_the_next_after_the_pause(clock: SimpleNamespace) -> None:
    one = Pacer(Pace(every_s=1.0, share=0.1))
    assert one.is_due()
    with one.time_block():
        clock.now += 0.5
    assert not one.is_due()
    clock.now += 4.9
    assert not one.is_due()
    clock.now += 0.2
    assert one.is_due()


def test_one_that_raises_may_be_done_again_at_once(clock: SimpleNamespace) -> None:
    one = Pacer(Pace(every_s=1.0, share=0.1))

    def fail() -> None:
        with one.time_block():
            clock.now += 0.5
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert one.is_due()
