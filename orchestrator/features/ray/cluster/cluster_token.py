"""Who may use a cluster: the token, its file, and the environment variables for Ray's processes and
clients.

With ``RAY_AUTH_MODE=token`` Ray (from 2.52) answers only callers that have the cluster's token.
Whoever has it can run code on every node, as the user who started the node.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.files import secret_files
from orchestrator.core.text import install_extra
from orchestrator.features.ray.cluster import node_state

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable, not a secret
TOKEN_FILE_VARIABLE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - the name of a variable, not a secret
LOOPBACK = ("127.0.0.1", "::1")
LEAST_RAY = (2, 55)
"""The first version in which a node that joins has a directory of its own for temporary files.
Before, all nodes had to use the path of the head's, which Ray made accessible to everyone. (Token
authentication came with 2.52.)"""


def require_ray() -> str:
    """The version of the installed Ray, without importing it.

    :raises UsageError: Ray is not installed, or this program cannot use its version.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"Ray is not installed here: {install_extra('ray')}") from None
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < LEAST_RAY or numbers >= (3,):
        raise UsageError(
            f"Ray {version} is installed here; expected 2.55 or later, below 3: {install_extra('ray')}"
        )
    return version


def token_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Path of the token: ``RAY_AUTH_TOKEN_PATH``, or a file of this program in the user's
    configuration directory.

    It is not Ray's own ``~/.ray/auth_token``: if Ray creates that file by itself, others can read
    it.
    """
    if path := environment.get(TOKEN_FILE_VARIABLE):
        return Path(path).expanduser().absolute()
    return secret_files.in_configuration("cluster-token", environment)


def has_token(environment: Mapping[str, str] = os.environ) -> bool:
    return bool(environment.get(TOKEN_VARIABLE)) or token_file(environment).exists()


def create_token(environment: Mapping[str, str] = os.environ) -> Path:
    """Create the token file if it is missing: 256 random bits, readable by its owner only. Returns
    its path.

    :raises OSError: it cannot be written.
    """
    path = token_file(environment)
    secret_files.create(path)
    return path


def check_token(environment: Mapping[str, str] = os.environ) -> None:
    """:raises UsageError: there is no token, it is not valid, or others can read or replace it."""
    if environment.get(TOKEN_VARIABLE):
        secret_files.check_token(environment[TOKEN_VARIABLE], f"the environment's {TOKEN_VARIABLE}")
        return
    hint = "Copy the file from the machine of the cluster's head, where `cluster up` created it"
    exposed = "run code on every node"
    secret_files.read(token_file(environment), missing=hint, exposed=exposed, anew="`cluster up`")


def environment(*, insecure: bool = False, loopback: bool = False) -> dict[str, str]:
    """The variables for Ray's own processes and for every client, to be set before Ray is imported.

    :param insecure: without authentication.
    :param loopback: for a client of a head that listens on the loopback address. Ray's clients
        would look for it at the machine's other address.
    :raises UsageError: as :func:`check_token`. (Without a token Ray aborts the process.)
    """
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    variables[MODE_VARIABLE] = "disabled" if insecure else "token"
    if loopback:  # Ray has no other switch that makes it take 127.0.0.1 for this machine's address
        variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if not insecure:
        check_token()
        if not os.environ.get(TOKEN_VARIABLE):
            variables[TOKEN_FILE_VARIABLE] = str(token_file())
    return variables


def is_insecure(cluster: str) -> bool:
    """Whether to call the cluster at ``HOST:PORT`` without a token.

    The record of this machine's node says so for its own cluster. Another one is called without a
    token if there is none here; a cluster that requires one refuses then.
    """
    node = node_state.load()
    return node.insecure if node is not None and node.cluster == cluster else not has_token()


def client_environment(cluster: str) -> dict[str, str]:
    """The variables for a driver of the cluster at ``HOST:PORT``, to be set before Ray is imported.

    :raises UsageError: as :func:`check_token`, if there is a token.
    """
    host = cluster.rpartition(":")[0].strip("[]")
    return environment(insecure=is_insecure(cluster), loopback=host in (*LOOPBACK, "localhost"))
