"""What ranks tell each other where others can write too: nothing is read that was not signed by one
of them."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ranks_helpers as helpers
import torch
import torch.distributed as dist
from executor_helpers import local, make_rank_group, until_exit
from ranks_intruder import Code

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes.environment_variables import RANKS_SECRET_VARIABLE
from orchestrator.worker.ranks import process_group
from orchestrator.worker.ranks.exchange import MessageSigner
from orchestrator.worker.ranks.ranks import RanksError
from orchestrator.worker.runtime.failures import RankLostError

SECRET = helpers.SECRET[RANKS_SECRET_VARIABLE]
OTHER_SECRET = "of ranks of another attempt, or made up"


@pytest.fixture
def code(tmp_path: Path) -> tuple[bytes, Path]:
    """A pickle that makes a file when it is read, and the file, which is not there."""
    file = tmp_path / "code has run"
    content = pickle.dumps(Code(file))
    pickle.loads(content)
    assert file.exists()
    file.unlink()
    return content, file


def signed_by(secret: str, rank: int, calls: int = 1, tells: Any = None) -> list[bytes]:
    """The messages of a rank's first ``calls`` exchanges, in each of which it tells ``[rank,
    call]``, or ``tells``."""
    seal, told = MessageSigner(secret, rank), []

    def exchanged(message: bytes) -> list[bytes]:
        told.append(message)
        return []

    for call in range(calls):
        seal.all_gather_object(tells or [rank, call], exchanged)
    return told


def read(*others: bytes) -> list[Any]:
    """What rank 0 reads in its first exchange, in which it gets these messages of ranks 1, 2, …"""
    return MessageSigner(SECRET, 0).all_gather_object("own", lambda own: [own, *others])


def test_objects_come_in_order_of_rank_call_after_call() -> None:
    seal, others = MessageSigner(SECRET, 0), [signed_by(SECRET, rank, calls=2) for rank in (1, 2)]
    for call in range(2):
        told = seal.all_gather_object(
            "own", lambda own, call=call: [own, *(other[call] for other in others)]
        )  # type: ignore[misc]
        assert told == ["own", [1, call], [2, call]]


def forged(code: bytes) -> dict[str, bytes]:
    right = signed_by(SECRET, 1)[0]
    signature = MessageSigner.BYTES
    return {
        "no signature": code,
        "nothing at all": b"",
        "another's signature": right[:signature] + code,
        "a part of the content": right[:-1],
        "another bit": right[:-1] + bytes([right[-1] ^ 1]),
        "another secret": signed_by(OTHER_SECRET, 1)[0],
        "what another rank said": signed_by(SECRET, 2)[0],
        "what it said in a later exchange": signed_by(SECRET, 1, calls=2)[1],
    }


@pytest.mark.parametrize("forgery", forged(b""))
def test_what_no_rank_has_signed_is_not_read(forgery: str, code: tuple[bytes, Path]) -> None:
    content, file = code
    with pytest.raises(RankLostError):
        read(forged(content)[forgery])
    assert not file.exists()


# -- whole workers


def test_ranks_of_one_attempt_are_given_a_secret_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RANKS_SECRET_VARIABLE, SECRET)
    secrets = []
    with local() as executor:
        for job_id in ("a", "b"):
            launch = make_rank_group(tmp_path, job_id, [("look", None)], [("look", None)])
            until_exit(executor, executor.submit(launch))
            ranks = [
                json.loads((launch.job_dir / name).read_text())
                for name in ("seen.json", "seen-1.json")
            ]
            secrets.append({rank[RANKS_SECRET_VARIABLE] for rank in ranks})
    (first,), (second,) = secrets
    assert len({SECRET, first, second}) == 3
    assert len(first) == len(second) == 64


def free_port() -> int:
    """A port below those that the kernel gives to connections, so that none takes it before the
    ranks do."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@pytest.mark.nightly
def test_a_stranger_who_comes_to_the_meeting_place_first_is_refused(
    tmp_path: Path, code: tuple[bytes, Path]
) -> None:
    content, file = code
    port = free_port()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    alone = {"WORLD_SIZE": "2"}
    with helpers.Attempt(
        helpers.job(tmp_path / "job"), ranks=1, environments=[alone], **place
    ) as attempt:
        store = dist.TCPStore(
            "127.0.0.1", port, 2, is_master=False, timeout=timedelta(seconds=helpers.TIMEOUT_S)
        )  # type: ignore[attr-defined]
        store.set("0/1", content)  # in the place of rank 1, which is not there yet
        assert attempt.codes() == [ExitCode.RANK_LOST], attempt.log
        assert len(attempt.records) == 1
    assert not file.exists()


@pytest.mark.parametrize("secret", [None, "guess me"])
def test_without_a_secret_ranks_do_not_meet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secret: str | None
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    if secret is None:
        monkeypatch.delenv(RANKS_SECRET_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(RANKS_SECRET_VARIABLE, secret)
    with pytest.raises(RanksError):
        process_group.join(2, "auto", torch.device("cpu"), tmp_path / "rendezvous")
    assert not (tmp_path / "rendezvous").exists()
