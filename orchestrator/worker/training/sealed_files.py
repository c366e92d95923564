"""Files that end with a digest of their content, so that damage is noticed."""

from __future__ import annotations

import hashlib

DIGEST_BYTES = hashlib.sha256().digest_size


class DamagedError(Exception):
    """A file is missing, or its bytes are not those that were written."""


def seal(content: bytes) -> bytes:
    """Return what to write for ``content``."""
    return content + hashlib.sha256(content).digest()


def unseal(written: bytes) -> bytes:
    """Return the content that was sealed. :raises DamagedError: it is not whole."""
    content = written[:-DIGEST_BYTES]
    if hashlib.sha256(content).digest() != written[-DIGEST_BYTES:]:
        raise DamagedError("its content does not match its checksum")
    return content
