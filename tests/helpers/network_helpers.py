"""Simulated machines: network namespaces, each with an address and a host name, on one switch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest


class Network:
    """A switch, and a namespace for each of ``addresses`` connected to it; packets to other
    addresses are lost.

    :raises OSError: no permission to create namespaces.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._stem = f"oc{os.getpid()}"
        self.names = [f"{self._stem}-{number}" for number in range(len(addresses))]
        self.devices = [f"{self._stem}e{number}" for number in range(len(addresses))]
        self._switch = f"{self._stem}-switch"
        try:
            for name in (*self.names, self._switch):
                self._ip("netns", "add", name)
            self._ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
            self._ip("-n", self._switch, "link", "set", "bridge0", "up")
            machines = zip(self.names, self.devices, self.addresses, strict=True)
            for number, (name, ours, address) in enumerate(machines):
                theirs = f"{self._stem}s{number}"
                cable = ("link", "add", ours, "netns", name, "type", "veth", "peer", "name", theirs)
                self._ip(*cable, "netns", self._switch)
                self._ip("-n", self._switch, "link", "set", theirs, "master", "bridge0", "up")
                self._ip("-n", name, "address", "add", f"{address}/24", "dev", ours)
                for device in ("lo", ours):
                    self._ip("-n", name, "link", "set", device, "up")
                self._ip(
                    "-n",
                    name,
                    "route",
                    "add",
                    "default",
                    "via",
                    f"{address.rpartition('.')[0]}.254",
                )
        except OSError:
            self.remove()
            raise

    def _ip(self, *arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def within(self, number: int, host: str) -> list[str]:
        """Prefix of a command that is to run on that machine."""
        # Not `ip netns exec`, which hides the control groups.
        enter = ["nsenter", f"--net=/run/netns/{self.names[number]}", "unshare", "--uts"]
        return [*enter, "sh", "-c", f'hostname {host} && exec "$@"', "sh"]

    def received_bytes(self, number: int) -> int:
        """Bytes received by that machine."""
        file = f"/sys/class/net/{self.devices[number]}/statistics/rx_bytes"
        command = ["ip", "netns", "exec", self.names[number], "cat", file]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def stall(self, number: int, *, up: bool) -> None:
        """Disconnect that machine, or connect it again, unnoticed by its own interface."""
        state = "up" if up else "down"
        self._ip("-n", self._switch, "link", "set", f"{self._stem}s{number}", state)

    @contextmanager
    def stalled(self, number: int) -> Iterator[None]:
        """Disconnect that machine during the block."""
        self.stall(number, up=False)
        try:
            yield
        finally:
            self.stall(number, up=True)

    def remove(self) -> None:
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@contextmanager
def network(*addresses: str) -> Iterator[Network]:
    """The machines during the block; skips the test if they cannot be created."""
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"`{program}` is not installed (packages iproute2 and util-linux)")
    try:
        made = Network(addresses)
    except OSError as error:
        pytest.skip(f"no permission to create network namespaces: {error}")
    try:
        yield made
    finally:
        made.remove()
