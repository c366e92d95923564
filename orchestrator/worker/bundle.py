"""A robot as a folder that stands alone: its MJCF and every file that pulls in, with a content hash.

MuJoCo looks for an include beside the including file or beside the main one, and for an asset in the
compiler's directory or beside the file that names it, depending on how it came to be read. So every
candidate that exists is taken along, at its own place below the common ancestor, and MuJoCo's choice
among them in the copy is the one it would make in the original.
"""

from __future__ import annotations

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
    """One that names files, or directories to look in."""

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


def collect(xml: Path) -> Bundle:
    """Read ``xml`` and all it pulls in.

    :raises BundleError: something is missing, unreadable, not a file, an absolute path, or includes itself.
    """
    main = Path(os.path.abspath(xml))
    collector = _Collector(main.parent)
    collector.read_mjcf(main, (), str(xml))
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


class _Collector:
    def __init__(self, main_folder: Path) -> None:
        self.folder = main_folder
        self.contents: dict[Path, bytes] = {}

    def read_mjcf(self, path: Path, including: tuple[Path, ...], named: str) -> None:
        if path in including:
            circle = " → ".join(file.name for file in (*including[including.index(path) :], path))
            raise BundleError(f"{named}: includes itself: {circle}")
        if path in self.contents:
            return
        content = read_regular_file(path, named)
        if not content.strip():
            raise BundleError(f"{named}: the file is empty, expected an MJCF (<mujoco> … </mujoco>)")
        self.contents[path] = content
        root, elements = _scan(content)
        if not including and root not in (None, "mujoco"):
            raise BundleError(f"{named}: the root element is <{root}>, expected <mujoco>")
        directories = self._directories(elements, path)
        for element in elements:
            place = f"{path}, line {element.line}: <{element.tag}>"
            for name in element.files:
                candidates = self._candidates(name, path, place, directories if element.tag in ASSET_TAGS else [])
                if element.tag in NESTED_TAGS:
                    for candidate in candidates:
                        self.read_mjcf(candidate, (*including, path), f"{place} {name}")
                else:
                    for candidate in candidates:
                        self.contents.setdefault(candidate, read_regular_file(candidate, f"{place} {name}"))

    @staticmethod
    def _directories(elements: list[Element], path: Path) -> list[str]:
        found = []
        for element in elements:
            for name in DIRECTORY_ATTRIBUTES if element.tag == "compiler" else ():
                if directory := element.attributes.get(name):
                    _refuse_absolute(directory, f"{path}, line {element.line}: {name}")
                    found.append(directory)
        return found

    def _candidates(self, name: str, path: Path, place: str, directories: list[str]) -> list[Path]:
        """Every existing file that MuJoCo may mean by ``name``, as normalised absolute paths.

        :raises BundleError: there is none, or ``name`` is absolute.
        """
        _refuse_absolute(name, place)
        names = (name, Path(name.replace("\\", "/")).name)  # the latter where the compiler strips paths
        folders = [base / directory for base in (path.parent, self.folder) for directory in (".", *directories)]
        tried = [Path(os.path.normpath(folder / name)) for folder in folders for name in names]
        found = [candidate for candidate in dict.fromkeys(tried) if candidate.exists()]
        if not found:
            where = ", ".join(dict.fromkeys(os.path.normpath(folder) for folder in folders))
            raise BundleError(f"{place} names {name!r}: no such file in {where}")
        return found


def _refuse_absolute(name: str, place: str) -> None:
    if Path(name).is_absolute() or re.match(r"[A-Za-z]:[\\/]", name):
        raise BundleError(
            f"{place} names {name!r}: an absolute path cannot be taken along into the run directory; "
            "make it relative to the MJCF"
        )


def _scan(content: bytes) -> tuple[str | None, list[Element]]:
    """The root's tag, and the elements that name files or directories.

    What is not well-formed ends the scan quietly: MuJoCo, which compiles the copy next, says what is wrong.
    Comments go first, as MuJoCo's parser allows ``--`` in them and expat does not.
    """
    root: list[str] = []
    elements: list[Element] = []
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        if not root:
            root.append(tag)
        if tag == "compiler" or (tag in ASSET_TAGS | NESTED_TAGS and any(key.startswith("file") for key in attributes)):
            elements.append(Element(tag, attributes, parser.CurrentLineNumber))

    parser.StartElementHandler = start
    try:
        parser.Parse(_COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), content), True)
    except (expat.ExpatError, ValueError, LookupError):
        pass
    return (root[0] if root else None), elements
