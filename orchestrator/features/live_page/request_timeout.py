"""Closes connections of ``serve`` that keep it waiting: uvicorn itself waits without end for the
rest of a request, and for a client that takes nothing of a response.

There is room for :data:`~orchestrator.features.live_page.live_server.MOST_CONNECTIONS`, and a
request is judged by its token only when it is whole. So whoever reaches the server could otherwise
take all of that room, and keep it.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Longest time from the start of a connection to the end of its first request, and from the end of
each response to the end of the next request. A response has to be taken within that time, too, once
the server has made all of it. While the server waits for room to write more of a response, the
client has to take something of it in every such time."""
INCOMPLETE = (h11.IDLE, h11.SEND_BODY, h11.ERROR)
"""States of a client that has not sent a whole request."""


class TimedProtocol(H11Protocol):
    """One connection of a client."""

    _limit: asyncio.TimerHandle | None = None
    _write_limit: asyncio.TimerHandle | None = None
    """Set while the client has taken so little that the server writes no more."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._limit = self.loop.call_later(REQUEST_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._lift_limit_of_whole_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._lift_limit()
        # Not `close`, which waits until the client has taken what there is for it.
        self._limit = self.loop.call_later(REQUEST_S, self.transport.abort)
        # the next one, if it was sent before the end of this response
        self._lift_limit_of_whole_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._lift_write_limit()
        self._limit_writing()

    def resume_writing(self) -> None:
        self._lift_write_limit()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lift_limit()
        self._lift_write_limit()
        super().connection_lost(exc)

    def _lift_limit_of_whole_request(self) -> None:
        if self.conn.their_state not in INCOMPLETE:
            self._lift_limit()

    def _limit_writing(self) -> None:
        not_taken = self.transport.get_write_buffer_size()
        self._write_limit = self.loop.call_later(REQUEST_S, self._abort_unless_taken, not_taken)

    def _abort_unless_taken(self, not_taken: int) -> None:
        """:param not_taken: bytes that were left to write one time limit ago."""
        self._write_limit = None
        if self.transport.get_write_buffer_size() >= not_taken:
            self.transport.abort()
        else:
            self._limit_writing()

    def _lift_write_limit(self) -> None:
        if self._write_limit is not None:
            self._write_limit.cancel()
            self._write_limit = None

    def _lift_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
