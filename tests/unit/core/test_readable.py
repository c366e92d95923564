"""Which files can be read, also with descriptors that ``select.select`` refuses."""

from __future__ import annotations

import socket

from file_helpers import SELECTABLE, low_descriptors_taken

from orchestrator.core.processes.readable import readable


def test_what_can_be_read_or_has_ended_is_found_whatever_its_descriptor() -> None:
    with low_descriptors_taken():
        pairs = [socket.socketpair() for _ in range(3)]
    silent, speaks, has_ended = [ours for ours, _ in pairs]
    try:
        assert silent.fileno() > SELECTABLE
        assert readable([silent, speaks, has_ended]) == []
        pairs[1][1].send(b"word")
        pairs[2][1].close()
        assert set(readable([silent, speaks, has_ended], 60.0)) == {speaks, has_ended}
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
