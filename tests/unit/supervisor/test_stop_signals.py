"""Which signals ask for a stop, and which are left as whoever calls has set them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from orchestrator.client.stop_signals import StopRequests


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of the process are back afterwards."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_of_each_signal_is_one_request(number: signal.Signals) -> None:
    stops = StopRequests()
    with stops.handle_signals():
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            stops.check()
    assert stops.count == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_the_caller_ignores_stays_ignored(number: signal.Signals) -> None:
    """As `nohup` ignores SIGHUP."""
    stops = StopRequests()
    signal.signal(number, signal.SIG_IGN)
    with stops.handle_signals():
        os.kill(os.getpid(), number)
    assert (stops.count, signal.getsignal(number)) == (0, signal.SIG_IGN)
