"""Files exchanged through a file system that both sides reach (``--storage URI``), by fsspec."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from orchestrator.core.errors import UsageError, is_disk_full
from orchestrator.core.front_end import option
from orchestrator.core.text import install_extra

COPY_BYTES = 2**20
EXAMPLES = "such as s3://bucket/folder or file:///mnt/shared/folder"


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder for files in transit, each under a name that is used once.

    :param uri: of the folder; it is created if missing.
    :param subfolder: name of a folder in it that belongs to one run directory, so that
        :meth:`clear` can remove what earlier supervisors of that run directory left there.

    Every failure is raised as an OSError that names the URI.
    """

    uri: str
    subfolder: str
    named: str = field(default="", compare=False)
    """As the option of the run that asked for it, also in messages of other machines."""

    def __post_init__(self) -> None:
        if not self.named:
            object.__setattr__(self, "named", option("storage", self.uri))

    def check(self) -> None:
        """Write, read and remove a file.

        :raises UsageError: not a URI, or a package is missing that this kind of URI needs.
        :raises OSError: the storage does not answer, or does not return what was written.
        """
        filesystem, folder = self._open()
        with self._errors_name_uri("checking"):
            name = f"{folder}/{secrets.token_hex(16)}"
            content = secrets.token_bytes(16)
            filesystem.makedirs(folder, exist_ok=True)
            filesystem.pipe_file(name, content)
            returned = filesystem.cat_file(name)
            filesystem.rm_file(name)
            if returned != content:
                raise OSError(errno.EIO, "it returns other bytes than were written")

    def put(self, file: BinaryIO) -> str:
        """Copy all of ``file`` to the storage. Returns its name there."""
        filesystem, folder = self._open()
        name = secrets.token_hex(16)
        with self._errors_name_uri("writing to"):
            filesystem.makedirs(folder, exist_ok=True)
            try:
                with filesystem.open(f"{folder}/{name}", "wb") as stored:
                    shutil.copyfileobj(file, stored, COPY_BYTES)
            except BaseException:
                with contextlib.suppress(OSError):  # the driver clears the storage at its end
                    self.remove(name)
                raise
        return name

    def fetch(self, name: str, into: BinaryIO) -> None:
        """Copy the file of that name to ``into``, whose own errors are raised unchanged."""
        filesystem, folder = self._open()
        with self._errors_name_uri("reading from"):
            stored = filesystem.open(f"{folder}/{name}", "rb")
        with stored:
            while True:
                with self._errors_name_uri("reading from"):
                    content = stored.read(COPY_BYTES)
                if not content:
                    return
                into.write(content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        filesystem, folder = self._open()
        with self._errors_name_uri("removing from"), contextlib.suppress(FileNotFoundError):
            filesystem.rm_file(f"{folder}/{name}")

    def clear(self) -> None:
        """Remove every file of the run directory, if there are any. To be called when none is in transit."""
        filesystem, folder = self._open()
        with self._errors_name_uri("clearing"), contextlib.suppress(FileNotFoundError):
            filesystem.rm(folder, recursive=True)

    def _open(self) -> tuple[Any, str]:
        filesystem, folder = open_uri(self.uri)
        return filesystem, f"{folder}/{self.subfolder}"

    @contextlib.contextmanager
    def _errors_name_uri(self, doing: str) -> Iterator[None]:
        prefix = f"{doing} {self.named}"
        try:
            yield
        except FileNotFoundError as error:
            text = f"{prefix}: a file is missing; every machine must see the same folder under this URI"
            raise FileNotFoundError(errno.ENOENT, text) from error
        except OSError as error:
            # A full one is not this machine's disk, which would end the run.
            number = errno.EIO if is_disk_full(error) else error.errno or errno.EIO
            raise OSError(number, f"{prefix}: {error.strerror or error}") from error
        except Exception as error:  # each file system has exceptions of its own
            raise OSError(errno.EIO, f"{prefix}: {type(error).__name__}: {error}") from error


@functools.cache
def open_uri(uri: str) -> tuple[Any, str]:
    """The file system of ``uri``, and the path in it.

    :raises UsageError: not a URI that fsspec knows, or a package is missing, which is named.
    """
    given = option("storage", uri)
    scheme, separator, _ = uri.partition("://")
    if not separator:
        raise UsageError(f"{given}: expected auto, shared, stream or a URI {EXAMPLES}")
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError as error:
        why = "a URI needs the package fsspec, which is not installed"
        raise UsageError(
            f"{given}: {why}; it comes with the extra `ray`: {install_extra('ray')}"
        ) from error
    try:
        filesystem, folder = core.url_to_fs(uri)
    except ImportError as error:
        why = f"{scheme}:// needs a package that is not installed here ({error})"
        raise UsageError(f"{given}: {why}; install it on every machine") from error
    except ValueError as error:
        raise UsageError(
            f"{given}: fsspec does not know it ({error}); expected a URI {EXAMPLES}"
        ) from error
    return filesystem, folder.rstrip("/")
