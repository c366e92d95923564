"""Files that travel through a file system which both sides see (``--storage URI``), by way of fsspec."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import io
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from orchestrator.core.errors import UsageError
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS
from orchestrator.core.text import INSTALL_RAY

CHUNK_BYTES = 2**20
EXAMPLES = "such as s3://bucket/folder or file:///mnt/shared/folder"


@dataclass(frozen=True, slots=True)
class Storage:
    """A place for files on their way, each under a name that is used once.

    :param uri: of a folder; it is made where it is missing.
    :param below: name of a folder in it that belongs to one run directory, so that :meth:`clear` can take away what
        earlier supervisors of it left there.

    Failures of whatever kind are raised as OSError, naming the URI.
    """

    uri: str
    below: str

    def check(self) -> None:
        """Write, read and remove a file.

        :raises UsageError: it is no URI, or a package is missing that such URIs need: which.
        :raises OSError: it does not answer, or does not give back what was written.
        """
        filesystem, folder = _opened(self.uri)
        with self._told("checking"):
            name, content = f"{folder}/{self.below}/{secrets.token_hex(16)}", secrets.token_bytes(16)
            filesystem.makedirs(f"{folder}/{self.below}", exist_ok=True)
            filesystem.pipe_file(name, content)
            given = filesystem.cat_file(name)
            filesystem.rm_file(name)
            if given != content:
                raise OSError(errno.EIO, "it gives back other bytes than were written to it")

    def problem(self, mark: str) -> str | None:
        """Why files cannot travel this way from here to where :meth:`put` has said ``mark``; None: they can."""
        try:
            self.check()
            self.fetch(mark, io.BytesIO())
        except (UsageError, OSError) as error:
            return str(error)
        return None

    def put(self, file: BinaryIO) -> str:
        """Copy all of ``file`` there. Returns its name there."""
        filesystem, folder = _opened(self.uri)
        name = secrets.token_hex(16)
        with self._told("writing to"):
            filesystem.makedirs(f"{folder}/{self.below}", exist_ok=True)
            try:
                with filesystem.open(f"{folder}/{self.below}/{name}", "wb") as there:
                    shutil.copyfileobj(file, there, CHUNK_BYTES)
            except BaseException:
                with contextlib.suppress(OSError):
                    self.remove(name)
                raise
        return name

    def fetch(self, name: str, into: BinaryIO) -> None:
        """Copy the file of that name to ``into``, whose own errors are raised as they are."""
        filesystem, folder = _opened(self.uri)
        with self._told("reading from"):
            there = filesystem.open(f"{folder}/{self.below}/{name}", "rb")
        with there:
            while True:
                with self._told("reading from"):
                    chunk = there.read(CHUNK_BYTES)
                if not chunk:
                    return
                into.write(chunk)

    def remove(self, name: str) -> None:
        filesystem, folder = _opened(self.uri)
        with self._told("removing from"), contextlib.suppress(FileNotFoundError):
            filesystem.rm_file(f"{folder}/{self.below}/{name}")

    def clear(self) -> None:
        """Remove everything below. To be called when nothing is on its way."""
        filesystem, folder = _opened(self.uri)
        with self._told("clearing"), contextlib.suppress(FileNotFoundError):
            filesystem.rm(f"{folder}/{self.below}", recursive=True)

    @contextlib.contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            text = f"{doing} --storage {self.uri}: a file is not there; every machine must see the same place there"
            raise FileNotFoundError(errno.ENOENT, text) from error
        except OSError as error:
            text = f"{doing} --storage {self.uri}: {error.strerror or error}"
            full = error.errno in DISK_FULL_ERRNOS  # not this machine's disk: that would be the end of it
            raise OSError(errno.EIO if full else error.errno or errno.EIO, text) from error
        except Exception as error:  # each file system has errors of its own
            text = f"{doing} --storage {self.uri}: {type(error).__name__}: {error}"
            raise OSError(errno.EIO, text) from error


@functools.cache
def _opened(uri: str) -> tuple[Any, str]:
    """The file system of ``uri``, and the path there. :raises UsageError: with what is missing."""
    if "://" not in uri:
        raise UsageError(f"--storage {uri}: expected auto, shared, stream or a URI {EXAMPLES}")
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise UsageError(
            f"--storage {uri}: a URI needs the package fsspec, which is not installed; it comes with the extra "
            f"`ray`: {INSTALL_RAY}"
        ) from error
    scheme = uri.partition("://")[0]
    try:
        filesystem, folder = core.url_to_fs(uri)
    except ImportError as error:
        raise UsageError(
            f"--storage {uri}: {scheme}:// needs a package that is not installed here ({error}); "
            "install it on every machine"
        ) from error
    except ValueError as error:
        raise UsageError(f"--storage {uri}: fsspec does not know it ({error}); expected a URI {EXAMPLES}") from error
    return filesystem, folder.rstrip("/")
