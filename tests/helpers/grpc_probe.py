"""Calls to gRPC servers without gRPC: one request over HTTP/2, with or without a token. And a scan
for open ports.

``python grpc_probe.py HOST…`` prints, as JSON, the open TCP ports of each host, and the answers to
a caller without a token: of every method of Ray, or to an HTTP request.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import select
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, END_OF_HEADERS, END_OF_STREAM = 1, 4, 4, 1
UNIMPLEMENTED, UNAUTHENTICATED = "12", "16"
STATUS = b"grpc-status"
PORTS_AT_ONCE = 400


def call(
    host: str, port: int, method: str, *metadata: tuple[str, str], timeout_s: float = 5.0
) -> str | None:
    """The ``grpc-status`` of the answer to an empty message to ``/service/method``; None without an
    answer.

    :raises OSError: there is no connection.
    """
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", f"{host}:{port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]
    fields = b"".join(map(_literal, headers))
    message = struct.pack(">BI", 0, 0)
    received = b""
    with socket.create_connection((host, port), timeout=timeout_s) as stream:
        stream.sendall(
            PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, END_OF_HEADERS, 1, fields)
        )
        stream.sendall(_frame(0, END_OF_STREAM, 1, message))
        with contextlib.suppress(TimeoutError, ConnectionError):
            while STATUS not in received and (chunk := stream.recv(1 << 16)):
                received += chunk
    _, separator, rest = received.partition(
        STATUS
    )  # C's gRPC writes it uncompressed: name, length, value
    return rest[1 : 1 + rest[0]].decode() if separator else None


def http(host: str, port: int, path: str, timeout_s: float = 5.0) -> int | None:
    """The status of the answer to an empty POST; None if it is not HTTP/1.1."""
    request = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((host, port), timeout=timeout_s) as stream:
        stream.sendall(request.encode())
        with contextlib.suppress(TimeoutError, ConnectionError):
            line = stream.recv(4096).split(b"\r\n")[0]
            if (match := re.match(rb"HTTP/1\.[01] (\d{3})", line)) is not None:
                return int(match[1])
    return None


@functools.cache
def ray_methods() -> list[str]:
    """Every ``/service/method`` that the programs of the installed Ray contain."""
    import ray

    root = Path(ray.__file__).parent
    programs = [
        root / "core/src/ray/gcs/gcs_server",
        root / "core/src/ray/raylet/raylet",
        root / "_raylet.so",
    ]
    pattern = re.compile(rb"/ray\.rpc\.[A-Za-z0-9_.]+/[A-Za-z0-9]+")
    return sorted(
        {name.decode() for program in programs for name in pattern.findall(program.read_bytes())}
    )


def open_ports(
    host: str, ports: Iterable[int] = range(1, 65536), timeout_s: float = 5.0
) -> list[int]:
    """The IPv4 ports of ``host`` where something listens."""
    listening: list[int] = []
    remaining = list(ports)
    while remaining:
        batch, remaining = remaining[:PORTS_AT_ONCE], remaining[PORTS_AT_ONCE:]
        listening += _open_of(host, batch, timeout_s)
    return listening


def _open_of(host: str, ports: Sequence[int], timeout_s: float) -> list[int]:
    listening = []
    poll = select.poll()
    sockets: dict[int, tuple[socket.socket, int]] = {}
    try:
        for port in ports:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex((host, port))
            sockets[connection.fileno()] = connection, port
            poll.register(connection, select.POLLOUT)
        pending = set(sockets)
        while pending and (ready := poll.poll(timeout_s * 1000)):
            for descriptor, _ in ready:
                connection, port = sockets[descriptor]
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    listening.append(port)
                poll.unregister(descriptor)
                pending.discard(descriptor)
    finally:
        for connection, _ in sockets.values():
            connection.close()
    return listening


def _literal(field: tuple[str, str]) -> bytes:
    """A header in HPACK, without table or compression."""
    return b"\0" + b"".join(_integer(len(text)) + text.encode() for text in field)


def _integer(number: int) -> bytes:
    if number < 127:
        return bytes([number])
    number, encoded = number - 127, b"\x7f"
    while number >= 128:
        encoded += bytes([number % 128 + 128])
        number //= 128
    return encoded + bytes([number])


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def answers(host: str, port: int) -> dict[str, Any]:
    """The answers of an open port to a caller without a token."""
    if (status := http(host, port, "/get_or_create_runtime_env")) is not None:
        return {"http": status, "grpc": {}}
    # A call to the syncer without a node id crashes Ray's server, which ends a cluster but gives no
    # access to it. With an id the call gets as far as the check of the token.
    node = ("node_id", "ab" * 28)
    return {
        "http": None,
        "grpc": {method: call(host, port, method, node) for method in ray_methods()},
    }


def scan(host: str) -> dict[int, dict[str, Any]]:
    return {port: answers(host, port) for port in open_ports(host)}


if __name__ == "__main__":
    print(json.dumps({host: scan(host) for host in sys.argv[1:]}))
