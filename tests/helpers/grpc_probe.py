"""Calls to gRPC servers without gRPC: one request over HTTP/2, with a token or none. And a scan for open ports.

``python grpc_probe.py HOST…`` prints, in JSON, the open TCP ports of each, and what a caller without a token is
answered there: by every method of Ray's, or to an HTTP request.
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
AT_ONCE = 400


def call(host: str, port: int, method: str, *metadata: tuple[str, str], timeout_s: float = 5.0) -> str | None:
    """The ``grpc-status`` that an empty message to ``/service/method`` has as its answer; None without an answer.

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
    heard = b""
    with socket.create_connection((host, port), timeout=timeout_s) as stream:
        stream.sendall(PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, END_OF_HEADERS, 1, fields))
        stream.sendall(_frame(0, END_OF_STREAM, 1, message))
        with contextlib.suppress(TimeoutError, ConnectionError):
            while STATUS not in heard and (chunk := stream.recv(1 << 16)):
                heard += chunk
    _, found, rest = heard.partition(STATUS)  # C's gRPC writes it uncompressed: name, length, value
    return rest[1 : 1 + rest[0]].decode() if found else None


def http(host: str, port: int, path: str, timeout_s: float = 5.0) -> int | None:
    """The status that a bare POST has as its answer; None where that is no HTTP/1.1."""
    request = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, port), timeout=timeout_s) as stream:
        stream.sendall(request.encode())
        with contextlib.suppress(TimeoutError, ConnectionError):
            line = stream.recv(4096).split(b"\r\n")[0]
            if (found := re.match(rb"HTTP/1\.[01] (\d{3})", line)) is not None:
                return int(found[1])
    return None


@functools.cache
def ray_methods() -> list[str]:
    """Every ``/service/method`` of Ray's own that the installed Ray's programs know."""
    import ray

    root = Path(ray.__file__).parent
    programs = [root / "core/src/ray/gcs/gcs_server", root / "core/src/ray/raylet/raylet", root / "_raylet.so"]
    pattern = re.compile(rb"/ray\.rpc\.[A-Za-z0-9_.]+/[A-Za-z0-9]+")
    return sorted({found.decode() for program in programs for found in pattern.findall(program.read_bytes())})


def open_ports(host: str, ports: Iterable[int] = range(1, 65536), timeout_s: float = 5.0) -> list[int]:
    """Where something listens at ``host``, IPv4."""
    found: list[int] = []
    waiting = list(ports)
    while waiting:
        batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        found += _open_of(host, batch, timeout_s)
    return found


def _open_of(host: str, ports: Sequence[int], timeout_s: float) -> list[int]:
    found = []
    poll = select.poll()
    sockets: dict[int, tuple[socket.socket, int]] = {}
    try:
        for port in ports:
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((host, port))
            sockets[one.fileno()] = one, port
            poll.register(one, select.POLLOUT)
        left = set(sockets)
        while left and (ready := poll.poll(timeout_s * 1000)):
            for descriptor, _ in ready:
                one, port = sockets[descriptor]
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.append(port)
                poll.unregister(descriptor)
                left.discard(descriptor)
    finally:
        for one, _ in sockets.values():
            one.close()
    return found


def _literal(field: tuple[str, str]) -> bytes:
    """A header as HPACK has it without any table or compression."""
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
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def answers(host: str, port: int) -> dict[str, Any]:
    """What a caller without a token is answered at an open port."""
    if (status := http(host, port, "/get_or_create_runtime_env")) is not None:
        return {"http": status, "grpc": {}}
    # Without a node's name in it a call to its syncer makes Ray's server fall over: a way to end a cluster, not a way
    # into it. With one it gets as far as the question for the token.
    node = ("node_id", "ab" * 28)
    return {"http": None, "grpc": {method: call(host, port, method, node) for method in ray_methods()}}


def scan(host: str) -> dict[int, dict[str, Any]]:
    return {port: answers(host, port) for port in open_ports(host)}


if __name__ == "__main__":
    print(json.dumps({host: scan(host) for host in sys.argv[1:]}))
