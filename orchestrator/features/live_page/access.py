"""Who may see and do what: checked before anything else looks at a request.

- ``Host`` must be a name of this server. A page of another site whose name was made to lead here
  (DNS rebinding) is refused.
- Data is not given to a page of another site, which could make the server read without end.
- Data needs the token, if the server listens on more than the loopback address, has a name by which
  a reverse proxy passes on what others ask.
- Nothing can be changed: only GET and HEAD are answered.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

DATA = "/api/"
"""What is below needs the token where there is one; the page itself then holds no data."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
TOKEN_HEADER = "x-orchestrator-token"  # noqa: S105 - the name of a header, not a secret
"""Where our page has the token, so that a proxy may ask for a password of its own in
``Authorization``. Programs may send it as a bearer there."""
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:;"
    " media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[bytes, bytes] = {
    b"content-security-policy": CONTENT_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    hosts: frozenset[str]
    """Names and addresses that a request may be for, in small letters, without ports."""
    token: str | None
    """Needed to look; None: everybody who reaches the server may look."""


class Guard:
    """Refuses what :class:`AccessRules` does not allow; adds headers that limit what a browser may
    do with the rest.
    """

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # neither a websocket nor anything else is served
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        refusal = self._refusal(scope["method"], scope["path"], headers)

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", ()))
                present = {name for name, _ in own}
                more = [(name, value) for name, value in HEADERS.items() if name not in present]
                message["headers"] = [*own, *more]
            await send(message)

        app = self._app
        if refusal is not None:
            status, why = refusal
            app = PlainTextResponse(f"{why}\n", status_code=status)
        await app(scope, receive, answer)

    def _refusal(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> tuple[int, str] | None:
        """Status code and reason; None if the request is allowed."""
        if host_name(headers.get("host", "")) not in self._rules.hosts:
            return (
                421,
                "This server is not called that. Use the address that `serve` has printed, or allow"
                " the name with `serve --name HOST`.",
            )
        if method not in ("GET", "HEAD"):
            return 405, "This page is read-only: only GET and HEAD are answered."
        if path.startswith(DATA) and is_of_another_site(headers):
            return 403, "A request of another site is refused."
        if path.startswith(DATA) and not self._may_look(headers):
            return 401, "This needs the token: use the whole address that `serve` has printed."
        return None

    def _may_look(self, headers: Mapping[str, str]) -> bool:
        token = self._rules.token
        if token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        bearer = given.strip() if scheme.lower() == "bearer" else ""
        shown = headers.get(TOKEN_HEADER) or bearer
        return hmac.compare_digest(shown.encode("latin-1"), token.encode())


def is_of_another_site(headers: Mapping[str, str]) -> bool:
    """Whether a page of another site has made a browser ask for this, or has led it here."""
    return headers.get("sec-fetch-site") == "cross-site"


def host_name(host: str) -> str:
    """The name or address in a ``Host`` header, in small letters; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a server at that address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def own_names(address: str) -> frozenset[str]:
    """What a server that listens at ``address`` may be called."""
    names: Iterable[str] = (*LOOPBACK_NAMES, address)
    if not is_loopback(address):
        own = [
            one.address.partition("%")[0] for each in psutil.net_if_addrs().values() for one in each
        ]
        names = [*names, socket.gethostname(), socket.getfqdn(), *own]
    return frozenset(name.lower() for name in names)
