"""Secrets in files: tokens that whoever uses something has to show. Only their owner may read
them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.errors import UsageError

LARGEST_BYTES = 4096
FEWEST_LETTERS = 16


def in_configuration(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The path of a file of this program in the user's configuration directory."""
    configuration = Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return configuration / "orchestrator" / name


def create(path: Path) -> None:
    """Create the file if it is missing: 256 random bits, readable by its owner only.

    :raises OSError: it cannot be written.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.")  # noqa: SIM115
    with temporary as file:  # which has mode 0600
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
        # Of two files created at the same time, the first remains.
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)


def read(path: Path, *, missing: str, exposed: str, anew: str) -> str:
    """The token in ``path``.

    :param missing: what to do where there is no such file.
    :param exposed: what those can do who have read it.
    :param anew: what creates a new one.
    :raises UsageError: there is no token, it is not valid, or others can read or replace it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(LARGEST_BYTES)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no token. {missing}") from None
    except OSError as error:
        raise UsageError(f"{path}: the token cannot be read: {error.strerror}") from None
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o077:
        raise UsageError(
            f"{path}: others can read or replace this token (its owner has uid {status.st_uid}, its mode is "
            f"{stat.S_IMODE(status.st_mode):04o}), and whoever has it can {exposed}. Remove the file; {anew} creates"
            " a new one"
        )
    return check_token(content.decode("latin-1").strip(), str(path))


def check_token(token: str, where: str) -> str:
    """:raises UsageError: it is not a token."""
    if len(token) < FEWEST_LETTERS or not all("!" <= letter <= "~" for letter in token):
        what = f"expected at least {FEWEST_LETTERS} letters and digits without blanks"
        raise UsageError(f"{where}: not a valid token: {what}")
    return token
