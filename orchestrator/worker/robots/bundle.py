"""A robot as a folder that stands alone: its MJCF and every file that pulls in, with a content hash.

MuJoCo looks for an include beside the main file, then beside the including one; for an asset in the compiler's
directory below the main file, then beside the file that names it, with or without the folders in its name. A
sub-model is a main file of its own. Whatever exists of what it might mean is taken along at its own place relative
to the main file, so that MuJoCo's choice in the copy is the one it makes in the original. What is named by an
absolute path gets a place in the folder ``elsewhere`` beside the main file, and that one attribute names it in the
copied text; all other bytes stay as they are. So names and contents do not depend on where the robot lies.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.worker.robots.markup import Attribute, Element, elements, escaped

ASSET_TAGS = frozenset({"mesh", "texture", "hfield", "skin", "flexcomp"})
READ_TAGS = ASSET_TAGS | {"include", "model", "compiler"}
DIRECTORY_ATTRIBUTES = ("meshdir", "texturedir", "assetdir")
ELSEWHERE = "elsewhere"
MOST_BYTES = 1 << 30
"""Of one file; beyond this it is taken for a mistake."""


class BundleError(Exception):
    """The robot's files cannot be brought together; the message names file, line and reason."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a robot consists of."""

    main: str
    """Path of the main MJCF, relative to ``origin``."""
    origin: Path
    """Where the user keeps the files: common ancestor of all that are not in ``moved``."""
    contents: dict[str, bytes] = field(repr=False)
    """Relative path → content."""
    moved: dict[str, Path] = field(default_factory=dict, repr=False)
    """Relative path → the user's own file, where that lies elsewhere."""

    @property
    def hash(self) -> str:
        """SHA-256 over all contents and, as seen from the main file, the others' names; hexadecimal.

        So copies under another name have the same.
        """
        digest = hashlib.sha256()
        here = str(Path("/", self.main).parent)
        named = {os.path.relpath(f"/{name}", here): self.contents[name] for name in self.contents if name != self.main}
        for name, content in [("", self.contents[self.main]), *sorted(named.items())]:
            digest.update(b"%d %b %d\n" % (len(os.fsencode(name)), os.fsencode(name), len(content)))
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
                for element in elements(content, {tag}):
                    names = {found.name for found in element.attributes}
                    if element.tag == tag and (attribute is None or attribute in names):
                        return f"{self.moved.get(name, self.origin / name)}, line {element.line}"
        return None


def collect(xml: Path) -> Bundle:
    """Read ``xml`` and all it pulls in.

    :raises BundleError: something is missing, unreadable, not a file, too large, or includes itself.
    """
    main = xml.absolute()
    collector = _Collector(main, padding=0)
    collector.read_document(_Spot(main, main), str(xml), ())
    if collector.climbs and collector.folders:  # ``..`` must not lead from one folder of elsewhere into another
        collector = _Collector(main, padding=2 * collector.climbs)
        collector.read_document(_Spot(main, main), str(xml), ())
    contents = collector.rewritten()
    origin = Path(os.path.commonpath([place.parent for place in contents]))

    def name(place: Path) -> str:
        return place.relative_to(origin).as_posix()

    main_name = name(_lexical(main))
    if main_name != os.fsencode(main_name).decode(errors="ignore"):
        raise BundleError(f"{xml}: the name is not UTF-8, as MuJoCo needs it; rename the file or folder")
    return Bundle(
        main=main_name,
        origin=origin,
        contents={name(place): content for place, content in contents.items()},
        moved={name(place): source for place, source in collector.sources.items() if _lexical(source) != place},
    )


def read_regular_file(path: Path, named: str) -> bytes:
    """:raises BundleError: for anything but a readable regular file (a pipe would block for ever)."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise BundleError(f"{named}: is a folder, expected a file")
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{named}: is not a regular file")
        if status.st_size > MOST_BYTES:
            raise BundleError(f"{named}: has {status.st_size:_} bytes, and a file of a robot at most {MOST_BYTES:_}")
        return path.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"{named}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BundleError(f"{named}: cannot be read: {reason}") from None


def _lexical(path: Path) -> Path:
    """Without ``.`` and ``..``: as MuJoCo takes a path, and as it lies in the copy, where there are no links."""
    return Path(os.path.normpath(path))


@dataclass(frozen=True, slots=True)
class _Spot:
    """A file or folder where the user has it, and the place that stands for it in the copy."""

    source: Path
    place: Path

    @property
    def folder(self) -> _Spot:
        return _Spot(self.source.parent, self.place.parent)

    def at(self, name: str) -> _Spot:
        source = self.source / name
        return _Spot(_lexical(source) if os.path.lexists(_lexical(source)) else source, _lexical(self.place / name))


@dataclass(frozen=True, slots=True)
class _Mjcf:
    spot: _Spot
    elements: list[Element]
    is_included: bool


class _Collector:
    """Reads a main file and all it pulls in.

    :param padding: depth of folders in ``elsewhere`` that ``..`` may climb.
    """

    def __init__(self, main: Path, padding: int) -> None:
        self.sources: dict[Path, Path] = {}
        """Place → file it was read from."""
        self.folders: list[Path] = []
        """Absolute folders that were named, in this order."""
        self.climbs = 0
        """The most ``..`` in a name."""
        self._contents: dict[Path, bytes] = {}
        self._edits: dict[Path, dict[tuple[int, int], bytes]] = {}
        self._padding = padding
        self._elsewhere = ELSEWHERE
        while os.path.lexists(main.parent / self._elsewhere):
            self._elsewhere += "_"

    def rewritten(self) -> dict[Path, bytes]:
        """Place → content, every file that was moved under its new name."""
        contents = dict(self._contents)
        for place, edits in self._edits.items():
            for (start, end), text in sorted(edits.items(), reverse=True):
                contents[place] = contents[place][:start] + text + contents[place][end:]
        return contents

    def read_document(self, main: _Spot, named: str, including: tuple[Path, ...]) -> None:
        """A main MJCF or sub-model, what it includes, and then the assets of them all."""
        main = _Spot(main.source, _lexical(main.place))
        files: list[_Mjcf] = []
        self._read_mjcf(main, main.folder, named, including, files)
        folders = list(self._directories(main.folder, files))
        for file in files:
            for element in file.elements:
                here = f"{file.spot.source}, line {element.line}: <{element.tag}>"
                if element.tag == "model":
                    for attribute in element.files:
                        found = self._found(attribute, [file.spot.folder], file, here)
                        chain = (*including, _lexical(main.source))
                        self.read_document(found, f"{here} {attribute.value}", chain)
                elif element.tag in ASSET_TAGS:
                    for attribute in element.files:
                        self._take_asset(attribute, element.tag, file, main.folder, folders, here)

    def _read_mjcf(
        self, spot: _Spot, main_folder: _Spot, named: str, including: tuple[Path, ...], files: list[_Mjcf]
    ) -> None:
        source = _lexical(spot.source)
        if source in including:
            circle = " → ".join(file.name for file in (*including[including.index(source) :], source))
            raise BundleError(f"{named}: includes itself: {circle}")
        if any(file.spot.place == spot.place for file in files):
            return
        content = read_regular_file(spot.source, named)
        if b"\0" in content:
            raise BundleError(f"{named}: is a binary file, expected an MJCF (<mujoco> … </mujoco>)")
        if not content.strip():
            raise BundleError(f"{named}: the file is empty, expected an MJCF (<mujoco> … </mujoco>)")
        found = list(elements(content, READ_TAGS))
        if not including and found and found[0].tag != "mujoco":
            raise BundleError(f"{named}: the root element is <{found[0].tag}>, expected <mujoco>")
        self._put(spot, content, named)
        file = _Mjcf(spot, found, is_included=bool(files))
        files.append(file)
        for element in found:
            for attribute in element.files if element.tag == "include" else ():
                here = f"{spot.source}, line {element.line}: <include>"
                included = self._found(attribute, [main_folder, spot.folder], file, here)
                self._read_mjcf(included, main_folder, f"{here} {attribute.value}", (*including, source), files)

    def _directories(self, main_folder: _Spot, files: list[_Mjcf]) -> Iterator[_Spot]:
        """Every folder that a compiler element of the document names."""
        for file in files:
            for element in file.elements:
                for attribute in element.attributes if element.tag == "compiler" else ():
                    if attribute.name in DIRECTORY_ATTRIBUTES and attribute.value:
                        name = self._name(attribute)
                        if Path(name).is_absolute():
                            moved = self._rewrite(file, attribute, _lexical(Path(name)))
                            yield _Spot(Path(name), main_folder.place / moved)
                        else:
                            yield main_folder.at(name)

    def _take_asset(
        self, attribute: Attribute, tag: str, file: _Mjcf, main_folder: _Spot, folders: list[_Spot], here: str
    ) -> None:
        name, named = self._name(attribute), f"{here} {attribute.value}"
        absolute = _lexical(Path(name)) if Path(name).is_absolute() else None
        # Of an absolute path the last part counts too, where the compiler strips paths.
        names = (_base(name),) if absolute else (name, _base(name))
        spots = [folder.at(name) for folder in (*folders, main_folder, file.spot.folder) for name in names]
        found = [spot for spot in spots if _exists(spot.source)]
        if absolute and _exists(absolute):
            moved = self._rewrite(file, attribute, absolute.parent, absolute.name)
            # Read from the compiler's directory; but for some kinds MuJoCo first looks whether one is here.
            looked_for = not folders or file.is_included or tag not in ("mesh", "texture")
            below = (*folders, main_folder) if looked_for else folders
            found += [_Spot(absolute, folder.at(moved).place) for folder in below]
        if not found:
            raise _missing(attribute.value, [*spots, _Spot(absolute, absolute)] if absolute else spots, here)
        for spot in found:
            self._put(spot, read_regular_file(spot.source, named), named)

    def _found(self, attribute: Attribute, folders: list[_Spot], file: _Mjcf, here: str) -> _Spot:
        """The MJCF that an include or model element means: what exists in the first of ``folders``."""
        name = self._name(attribute)
        if Path(name).is_absolute():
            source = _lexical(Path(name))
            moved = self._rewrite(file, attribute, source.parent, source.name)
            return _Spot(source, _lexical(folders[0].place / moved))
        spots = [folder.at(name) for folder in folders]
        found = next((spot for spot in spots if _exists(spot.source)), None)
        if found is None:
            raise _missing(attribute.value, spots, here)
        return found

    def _name(self, attribute: Attribute) -> str:
        name = attribute.value.replace("\\", "/")
        self.climbs = max(self.climbs, name.split("/").count(".."))
        return name

    def _rewrite(self, file: _Mjcf, attribute: Attribute, folder: Path, *name: str) -> str:
        """Let ``attribute`` name the place of the absolute ``folder``, or of a file there; it is returned."""
        if folder not in self.folders:
            self.folders.append(folder)
        moved = "/".join([self._elsewhere, str(self.folders.index(folder)), *["_"] * self._padding, *name])
        self._edits.setdefault(file.spot.place, {})[attribute.start, attribute.end] = escaped(moved)
        return moved

    def _put(self, spot: _Spot, content: bytes, named: str) -> None:
        earlier = self.sources.setdefault(spot.place, spot.source)
        if self._contents.setdefault(spot.place, content) != content:
            raise BundleError(f"{named}: would lie where {earlier} lies in a copy of the robot; rename one of them")


def _exists(path: Path) -> bool:
    """False too for what cannot be looked at, as with MuJoCo."""
    return os.access(path, os.F_OK)


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _missing(name: str, spots: list[_Spot], here: str) -> BundleError:
    """Why none of ``spots`` can be read."""
    for spot in spots:
        try:
            spot.source.stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                return BundleError(f"{here} {name}: cannot be read: {error.strerror}: {spot.source}")
        except ValueError as error:
            return BundleError(f"{here} {name!r}: cannot be read: {error}")
    where = ", ".join(dict.fromkeys(str(spot.source.parent) for spot in spots))
    return BundleError(f"{here} names {name!r}: no such file in {where}")
