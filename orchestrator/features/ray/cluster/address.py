"""Network addresses: parsing, the addresses of this machine, and whether a port answers."""

from __future__ import annotations

import errno
import ipaddress
import socket

from orchestrator.core.errors import UsageError

DEFAULT_PORT = 6379
CONNECT_S = 5.0


def parse(text: str, default_port: int | None = None) -> tuple[str, int]:
    """``HOST:PORT`` → a numeric address and the port; host names are looked up.

    :raises UsageError: not an address, or the host is unknown.
    """
    host, _, port = text.rpartition(":")
    is_bare_ipv6 = text.count(":") > 1 and "[" not in text
    has_no_port = not host or text.endswith("]") or is_bare_ipv6
    if default_port is not None and has_no_port:
        host = text
        port = str(default_port)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{text!r} is not an address: expected HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}"
        )
    return lookup(host.strip("[]")), int(port)


def lookup(host: str) -> str:
    """The numeric address of ``host``, IPv4 if it has one. :raises UsageError: the host is
    unknown.
    """
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"{host}: no such host ({error})") from None
    return str(min(entries, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def own(towards: str) -> str:
    """Address of this machine on the route to ``towards``. :raises UsageError: there is no
    route.
    """
    with _socket(towards, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # sends nothing
        except OSError as error:
            raise UsageError(
                f"{towards}: this machine has no route to it ({error.strerror})"
            ) from None
        return str(probe.getsockname()[0])


def outward() -> str:
    """Address of this machine on its default route; that of the loopback interface without one."""
    try:
        return own("192.0.2.1")  # reserved by RFC 5737: only the route is looked up
    except UsageError:
        return "127.0.0.1"


def check_own(host: str, port: int = 0) -> None:
    """:raises UsageError: ``host`` is not an address of this machine, or ``port`` is taken."""
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        advice = "give the one at which the other machines reach this one, or no --address"
        raise UsageError(f"{host} is the wildcard address; {advice}")
    with _socket(host, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                problem = (
                    f"{host_port(host, port)}: another program listens there; give another --port"
                )
            elif error.errno == errno.EACCES:
                problem = f"{host_port(host, port)}: ports below 1024 need root privileges; give another --port"
            else:
                problem = (
                    f"{host} is not an address of this machine ({error.strerror}); "
                    "`ip address` lists its addresses"
                )
            raise UsageError(problem) from None


def connect_error(host: str, port: int, timeout_s: float = CONNECT_S) -> str | None:
    """Why a connection fails; None if something listens there."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None


def _socket(host: str, kind: socket.SocketKind) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
