"""Addresses: what users write, which of them are this machine's, and what answers there."""

from __future__ import annotations

import errno
import ipaddress
import socket

from orchestrator.core.errors import UsageError

DEFAULT_PORT = 6379
CONNECT_S = 5.0


def parse(text: str, default_port: int | None = None) -> tuple[str, int]:
    """``HOST:PORT`` → a numeric address and the port; names are looked up.

    :raises UsageError: it is no such thing, or there is no such host.
    """
    host, _, port = text.rpartition(":")
    if default_port is not None and (not host or text.endswith("]") or (text.count(":") > 1 and "[" not in text)):
        host, port = text, str(default_port)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is no address: expected HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}")
    return lookup(host.strip("[]")), int(port)


def lookup(host: str) -> str:
    """The numeric address of ``host``, IPv4 where it has one. :raises UsageError: there is no such host."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"{host}: no such host ({error})") from None
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def own(towards: str) -> str:
    """The address of this machine as ``towards`` sees it. :raises UsageError: there is no way there."""
    with _socket(towards, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # sends nothing
        except OSError as error:
            raise UsageError(f"{towards}: there is no way there from this machine ({error.strerror})") from None
        return str(probe.getsockname()[0])


def outward() -> str | None:
    """The address of this machine on the way to everywhere else; None where it has no such way."""
    try:
        return own("192.0.2.1")  # of nobody, by RFC 5737: only the route is asked for
    except UsageError:
        return None


def check_own(host: str, port: int = 0) -> None:
    """:raises UsageError: ``host`` is not an address of this machine, or somebody listens at ``port`` already."""
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        raise UsageError(f"{host} is every address at once; give the one that the others reach, or no --address")
    with _socket(host, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(f"{joined(host, port)}: another program listens there; give another --port") from None
            if error.errno == errno.EACCES:
                raise UsageError(
                    f"{joined(host, port)}: ports below 1024 are the system's; give another --port"
                ) from None
            raise UsageError(
                f"{host} is no address of this machine ({error.strerror}); `ip address` shows which it has"
            ) from None


def answers(host: str, port: int, timeout_s: float = CONNECT_S) -> str | None:
    """None where something listens there; else why not."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except TimeoutError:
        return f"nothing answered within {timeout_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None


def _socket(host: str, kind: socket.SocketKind) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
