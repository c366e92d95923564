"""A robot as a folder that stands alone: its MJCF and every file that pulls in, with a content hash.

MuJoCo looks for an include beside the including file or beside the main one, and for an asset in the
compiler's directory or beside the file that names it, depending on how it came to be read. So every
candidate that exists is taken along, at its own place below the common ancestor, and MuJoCo's choice
among them in the copy is the one it would make in the original.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

ASSET_TAGS = frozenset({"mesh", "texture", "hfield", "skin", "flexcomp"})
NESTED_TAGS = frozenset({"include", "model"})
DIRECTORY_ATTRIBUTES = ("meshdir", "texturedir", "assetdir")
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)


class BundleError(Exception):
    """The robot's files cannot be brought together; the message names file, line and reason."""


@dataclass(frozen=True, slots=True)
class Element:
    """One start tag of an MJCF."""

    tag: str
    attributes: dict[str, str]
    line: int

    @property
    def files(self) -> Iterator[str]:
        """``file``, and a cube texture's ``fileright`` … ``fileback``."""
        return (value for name, value in self.attributes.items() if name.startswith("file") and value)


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a robot consists of."""

    main: str
    """Path of the main MJCF, relative to ``origin``."""
    origin: Path
    """Common ancestor of all files."""
    contents: dict[str, bytes] = field(repr=False)
    """Relative path → content."""

    @property
    def hash(self) -> str:
        """SHA-256 over names and contents, and which of them is the main one; hexadecimal."""
        digest = hashlib.sha256()
        for name in (self.main, *sorted(self.contents)):
            content = self.contents[name]
            digest.update(f"{len(name.encode())} {name} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    def write(self, folder: Path) -> Path:
        """Copy everything below ``folder`` → path of the main MJCF there."""
        for name, content in self.contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder / self.main

    def find_included(self, tag: str, attribute: str | None) -> str | None:
        """``FILE, line N`` of the first such element outside the main file, where MuJoCo counts no lines."""
        for name, content in self.contents.items():
            if name != self.main and name.endswith(".xml"):
                for element in _elements(content):
                    if element.tag == tag and (attribute is None or attribute in element.attributes):
                        return f"{self.origin / name}, line {element.line}"
        return None


def collect(xml: Path) -> Bundle:
    """Read ``xml`` and all it pulls in.

    :raises BundleError: something is missing, unreadable, not a file, an absolute path, or includes itself.
    """
    collector = _Collector(xml.absolute().parent)
    collector.read_mjcf(xml.absolute(), (), str(xml))
    main = _lexical(xml.absolute())
    origin = Path(os.path.commonpath([path.parent for path in collector.contents]))
    if origin == Path(origin.anchor) and main.parent != origin:
        raise BundleError(f"{xml}: its files have no folder in common below {origin}; keep them in one folder")
    contents = {path.relative_to(origin).as_posix(): content for path, content in collector.contents.items()}
    return Bundle(main=main.relative_to(origin).as_posix(), origin=origin, contents=contents)


def read_regular_file(path: Path, named: str) -> bytes:
    """:raises BundleError: for anything but a readable regular file (a pipe would block for ever)."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise BundleError(f"{named}: is a folder, expected a file")
        if not stat.S_ISREG(mode):
            raise BundleError(f"{named}: is not a regular file")
        return path.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"{named}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BundleError(f"{named}: cannot be read: {reason}") from None


def _lexical(path: Path) -> Path:
    """Without ``.`` and ``..``: the place in the copy, where there are no links to lead elsewhere."""
    return Path(os.path.normpath(path))


class _Collector:
    def __init__(self, main_folder: Path) -> None:
        self.folder = main_folder
        self.contents: dict[Path, bytes] = {}

    def read_mjcf(self, path: Path, including: tuple[Path, ...], named: str) -> None:
        place = _lexical(path)
        if place in including:
            circle = " → ".join(file.name for file in (*including[including.index(place) :], place))
            raise BundleError(f"{named}: includes itself: {circle}")
        if place in self.contents:
            return
        content = read_regular_file(path, named)
        if b"\0" in content:
            raise BundleError(f"{named}: is a binary file, expected an MJCF (<mujoco> … </mujoco>)")
        if not content.strip():
            raise BundleError(f"{named}: the file is empty, expected an MJCF (<mujoco> … </mujoco>)")
        self.contents[place] = content
        everything = _elements(content)
        if not including and everything and everything[0].tag != "mujoco":
            raise BundleError(f"{named}: the root element is <{everything[0].tag}>, expected <mujoco>")
        elements = [element for element in everything if element.tag in ASSET_TAGS | NESTED_TAGS | {"compiler"}]
        directories = self._directories(elements, path)
        for element in elements:
            here = f"{path}, line {element.line}: <{element.tag}>"
            for name in element.files:
                candidates = self._candidates(name, path, here, directories if element.tag in ASSET_TAGS else [])
                for candidate in candidates:
                    if element.tag in NESTED_TAGS:
                        self.read_mjcf(candidate, (*including, place), f"{here} {name}")
                    else:
                        content = read_regular_file(candidate, f"{here} {name}")
                        self.contents[_lexical(candidate)] = content

    @staticmethod
    def _directories(elements: list[Element], path: Path) -> list[str]:
        found = []
        for element in elements:
            for name in DIRECTORY_ATTRIBUTES if element.tag == "compiler" else ():
                if directory := element.attributes.get(name):
                    _refuse_absolute(directory, f"{path}, line {element.line}: {name}")
                    found.append(directory)
        return found

    def _candidates(self, name: str, path: Path, here: str, directories: list[str]) -> list[Path]:
        """Every existing file that MuJoCo may mean by ``name``.

        :raises BundleError: there is none, or ``name`` is absolute.
        """
        _refuse_absolute(name, here)
        names = (name, Path(name.replace("\\", "/")).name)  # the latter where the compiler strips paths
        folders = [base / directory for base in (path.parent, self.folder) for directory in (".", *directories)]
        tried = {_lexical(folder / name): folder / name for folder in folders for name in names}
        found = [candidate for candidate in tried.values() if candidate.exists()]
        if not found:
            where = ", ".join(dict.fromkeys(os.path.normpath(folder) for folder in folders))
            raise BundleError(f"{here} names {name!r}: no such file in {where}")
        return found


def _refuse_absolute(name: str, here: str) -> None:
    if Path(name).is_absolute() or re.match(r"[A-Za-z]:[\\/]", name):
        raise BundleError(
            f"{here} names {name!r}: an absolute path cannot be taken along into the run directory; "
            "make it relative to the MJCF"
        )


def _elements(content: bytes) -> list[Element]:
    """All elements in document order.

    What is not well-formed ends the list quietly: MuJoCo, which compiles the copy next, says what is wrong.
    Comments go first, as MuJoCo's parser allows ``--`` in them and expat does not.
    """
    elements: list[Element] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda tag, attributes: elements.append(
        Element(tag, attributes, parser.CurrentLineNumber)
    )
    with contextlib.suppress(expat.ExpatError, ValueError, LookupError):
        parser.Parse(_COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), content), True)
    return elements
