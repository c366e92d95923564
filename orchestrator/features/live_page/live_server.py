"""Starts the server of the live page, and says where it is."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from orchestrator.core.errors import UsageError
from orchestrator.core.files import secret_files
from orchestrator.features.live_page.access import (
    AccessRules,
    is_loopback,
    own_names,
)
from orchestrator.features.live_page.pages import LivePages
from orchestrator.features.live_page.request_timeout import TimedProtocol

TOKEN_FILE = "serve-token"  # noqa: S105 - the name of a file, not a secret
NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
MOST_CONNECTIONS = 200
"""More are answered that the server is busy."""
TICK_S = 0.5
LEAVE_S = 1
"""How long streams may go on after a signal to end."""


class QuietServer(uvicorn.Server):
    """Looks less often whether it is to end: uvicorn's ten times a second cost more than all that
    is read.
    """

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(TICK_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    """A server whose socket listens already."""

    address: str
    """What to open in a browser; with the token, if there is one, in the part that a browser sends
    to nobody."""
    listener: socket.socket
    server: uvicorn.Server

    def run(self) -> None:
        """Serve until a signal, or ``server.should_exit``, ends it."""
        with self.listener:
            self.server.run(sockets=[self.listener])


def open_server(
    root: Path | None,
    *,
    host: str,
    port: int,
    names: Sequence[str] = (),
) -> LiveServer:
    """A server for a run directory, a folder of them, or (None) all of this user on this machine.

    :param names: by which it is known elsewhere, as behind a reverse proxy.
    :raises UsageError: the address is not this machine's or is taken, a name is none, or the token
        cannot be used.
    """
    known_as = frozenset(map(_name_of_host, names))
    is_open = is_loopback(host) and not known_as
    listener = _listener(host, port)
    try:
        token = None if is_open else _token()
    except UsageError:
        listener.close()
        raise
    rules = AccessRules(hosts=own_names(host) | known_as, token=token)
    config = uvicorn.Config(
        LivePages(root, rules).application(),
        log_level="critical",
        access_log=False,
        lifespan="off",
        http=TimedProtocol,
        loop="asyncio",
        ws="none",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=LEAVE_S,
    )
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        shown = socket.gethostname()
    address = f"http://{shown}:{listener.getsockname()[1]}/"
    if token:
        address += f"#token={token}"
    return LiveServer(address=address, listener=listener, server=QuietServer(config))


def _name_of_host(given: str) -> str:
    """As :func:`host_name` gives it. :raises UsageError: it is no name or address of a host."""
    name = given.lower().rstrip(".")
    address = name.removeprefix("[").removesuffix("]")
    if not NAME.fullmatch(name) and not _is_ip_address(address):
        raise UsageError(
            f"serve: --name {given}: this is no name of a host; expected the name alone, as in"
            " `--name robots.example.org`, without https://, port and path"
        )
    return address


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _token() -> str:
    """The token of this user, made where there is none yet. :raises UsageError: it cannot be used."""
    path = secret_files.in_configuration(TOKEN_FILE)
    try:
        secret_files.create(path)
    except OSError as error:
        raise UsageError(f"{path}: the token cannot be written: {error.strerror}") from None
    missing = "Start `serve` again, which makes one"
    exposed = "see what you run"
    return secret_files.read(path, missing=missing, exposed=exposed, anew="`serve`")


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens there. :raises UsageError: it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
    except OSError as error:
        raise UsageError(
            f"serve: --host {host}: no address of a machine is known for that name: {error}"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        advice = (
            "choose another with --port; --port 0 takes a free one"
            if port
            else "choose another --host"
        )
        raise UsageError(
            f"serve: {host}, port {port}: cannot listen there: {error.strerror}; {advice}"
        ) from None
    return listener
