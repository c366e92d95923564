"""Who may talk to a cluster: the token, the file it lies in, and what Ray's processes and clients must be told.

With ``RAY_AUTH_MODE=token`` Ray (from 2.52) lets nobody call anything at its ports who does not have the cluster's
token. Whoever has it can run code on every node, as the user who started the node.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.text import INSTALL_RAY
from orchestrator.executors.ray.cluster import node_state

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable, no secret
TOKEN_FILE_VARIABLE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - likewise
LOOPBACK = ("127.0.0.1", "::1")
LEAST_RAY = (2, 55)
"""The first in which a node that joins has a directory of its own for temporary files: before, all had to use the path
of the head's, which Ray made for everyone to enter. (Token authentication came with 2.52.)"""


def require_ray() -> str:
    """The version of the Ray that is installed; the import itself is left to who needs it.

    :raises UsageError: there is none, or it is one that this program cannot use.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"Ray is not installed here: {INSTALL_RAY}") from None
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < LEAST_RAY or numbers >= (3,):
        raise UsageError(f"Ray {version} is installed here; needed is one from 2.55 on, below 3: {INSTALL_RAY}")
    return version


def token_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the token lies: as ``RAY_AUTH_TOKEN_PATH`` says, else a file of our own below the user's configuration.

    Not Ray's own ``~/.ray/auth_token``: where Ray makes that file by itself, others can read it.
    """
    if named := environment.get(TOKEN_FILE_VARIABLE):
        return Path(named).expanduser().absolute()
    configuration = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(configuration).expanduser() / "orchestrator" / "cluster-token"


def has_token(environment: Mapping[str, str] = os.environ) -> bool:
    return bool(environment.get(TOKEN_VARIABLE)) or token_file(environment).exists()


def create_token(environment: Mapping[str, str] = os.environ) -> Path:
    """Make the token file where there is none: 256 random bits, readable by its owner alone. Returns where it is.

    :raises OSError: it cannot be written.
    """
    path = token_file(environment)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):  # whole at once, and the first of two that are made at a time
            os.link(beside, path)
    finally:
        beside.unlink()
    return path


def check_token(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a token that is no secret or no token.

    :raises UsageError: there is none, others can read or replace it, or it is empty or damaged.
    """
    if environment.get(TOKEN_VARIABLE):
        _check_text(environment[TOKEN_VARIABLE], f"the environment's {TOKEN_VARIABLE}")
        return
    path = token_file(environment)
    try:
        with path.open("rb") as file:
            found, content = os.fstat(file.fileno()), file.read(4096)
    except FileNotFoundError:
        raise UsageError(
            f"{path}: there is no token. Copy the file from the machine of the cluster's head, where `cluster up` has "
            "made it"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: the token cannot be read: {error.strerror}") from None
    if found.st_uid not in (os.getuid(), 0):
        raise UsageError(f"{path}: this token belongs to another user (uid {found.st_uid}), who could replace it")
    if found.st_mode & 0o077:
        raise UsageError(
            f"{path}: others can read this token (mode {stat.S_IMODE(found.st_mode):04o}), and whoever has it can run "
            f"code on every node. Where only you can have seen it so far: `chmod 600 {path}`; else remove it, and "
            "`cluster up` makes a new one"
        )
    _check_text(content.decode("latin-1").strip(), str(path))


def _check_text(token: str, where: str) -> None:
    if len(token) < 16 or not all("!" <= letter <= "~" for letter in token):
        raise UsageError(f"{where}: this is no token: expected at least 16 letters and digits without blanks")


def environment(*, insecure: bool = False, loopback: bool = False) -> dict[str, str]:
    """The variables for Ray's own processes and for every client, to be set before Ray is imported.

    :param insecure: no authentication at all.
    :param loopback: for a client of a head that listens on this machine alone. Ray's clients would look for it at the
        machine's other address.
    :raises UsageError: as :func:`check_token`. (Ray itself aborts the process where it finds no token.)
    """
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if loopback:
        # Ray has no other switch for it: with this one it takes 127.0.0.1 for this machine's address.
        quiet["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if insecure:
        return {**quiet, MODE_VARIABLE: "disabled"}
    check_token()
    secret = {} if os.environ.get(TOKEN_VARIABLE) else {TOKEN_FILE_VARIABLE: str(token_file())}
    return {**quiet, MODE_VARIABLE: "token", **secret}


def is_insecure(address: str) -> bool:
    """Whether the cluster at ``address`` (``HOST:PORT``) is to be spoken to without a token.

    One that this machine is a node of has a token or none, as was said when it became one. Another is tried without
    where we have none: where it wants one it says so.
    """
    node = node_state.load()
    return node.insecure if node is not None and node.cluster == address else not has_token()


def client_environment(address: str) -> dict[str, str]:
    """The variables for a driver of the cluster at ``address`` (``HOST:PORT``), to be set before Ray is imported.

    :raises UsageError: as :func:`check_token`, where there is a token.
    """
    host = address.rpartition(":")[0].strip("[]")
    return environment(insecure=is_insecure(address), loopback=host in (*LOOPBACK, "localhost"))
