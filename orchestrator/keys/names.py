"""Names that users give, as directory names that are safe on every file system."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from typing import Any

LONGEST = 64
"""Characters to which a name is shortened; a job_id stays far below the 255 bytes of a file
name."""
SAFE = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?\Z")


def digest(text: str) -> str:
    """Return the first 8 hexadecimal digits of the SHA-256 of ``text``."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def safe_name(text: str) -> str:
    """Return ``text`` if it is a safe directory name, otherwise its safe characters and a hash of
    the whole.

    The result holds ASCII letters, digits, ``.``, ``_`` and ``-`` only, does not start with ``.``
    or ``-``, is at most :data:`LONGEST` characters long, and depends on nothing but ``text``.
    """
    if len(text) <= LONGEST and SAFE.match(text):
        return text
    letters = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", letters).strip("-._")
    beginning = readable[: LONGEST - 16].rstrip("-._")  # so that the hash has room
    return f"{beginning or 'unnamed'}-{digest(text)}"


def is_showable(text: str) -> bool:
    """Return whether ``text`` can be printed and written as UTF-8: no control characters, no line breaks,
    no surrogates.
    """
    return not any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text
    )


def canonical(value: Any) -> str:
    """Return JSON text that is equal exactly for values of equal types and contents."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
