"""Finding and reading every file that an MJCF refers to, as MuJoCo itself would find it.

MuJoCo looks for an include beside the main file, then beside the including file. It looks for an
asset in the compiler's directory below the main file, then beside the file that names it, with and
without the folders in its name. A sub-model is a main file of its own. Every existing candidate is
collected, at its own place relative to the main file, so that MuJoCo makes the same choice in the
copy as in the original. A file with an absolute path gets a place in the folder ``elsewhere``
beside the main file, and the attribute that names it is rewritten in the copy; all other bytes stay
as they are. So names and contents do not depend on where the robot lies.

A robot may come from strangers: no file is taken that MuJoCo would not read, and none of the
kernel's. What names each file is noted, for :func:`why_outside`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.files.regular_files import open_regular, read_up_to
from orchestrator.worker.robots.xml_elements import Attribute, Tag, elements, escaped

ASSET_TAGS = frozenset({"mesh", "texture", "hfield", "skin", "flexcomp"})
READ_TAGS = ASSET_TAGS | {"include", "model", "compiler"}
DIRECTORY_ATTRIBUTES = ("meshdir", "texturedir", "assetdir")
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
"""Their files describe processes and devices."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108
"""In them, and yet an ordinary file system."""
ELSEWHERE = "elsewhere"
"""The folder of the copy for files with absolute paths."""
MAX_BYTES = 1 << 30
"""Size of one file beyond which it is refused as a mistake."""
MAX_TOTAL_BYTES = 2 << 30
"""Size of all files of a robot together, which are in memory at once."""


LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of the text that Git checks out in place of a file whose content was not fetched."""


class BundleError(Exception):
    """The robot's files cannot be collected; the message names file, line and reason."""


def read_regular_file(path: Path, named: str, limit_bytes: int = MAX_BYTES) -> bytes:
    """The content of a file of a robot.

    :param named: what names it, for messages.
    :raises BundleError: it is too large, or not a readable regular file (a pipe would block for
        ever).
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise BundleError(f"{named}: is a folder, expected a file")
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{named}: is not a regular file")
        real = Path(os.path.realpath(path))
        if any(map(real.is_relative_to, KERNEL_FOLDERS)) and not real.is_relative_to(SHARED_MEMORY):
            raise BundleError(
                f"{named}: is {real}, a file of the kernel; expected a file of the robot"
            )
        content = b""
        if status.st_size <= limit_bytes:
            with open_regular(path) as file:
                content = read_up_to(file, limit_bytes + 1)  # it may grow meanwhile
        if (size := max(status.st_size, len(content))) > limit_bytes:
            raise BundleError(f"{named}: has {size:_} bytes, expected at most {limit_bytes:_}")
        if content.startswith(LFS_POINTER):
            raise BundleError(f"{named}: is a Git LFS pointer: run `git lfs pull`")
        return content
    except FileNotFoundError:
        raise BundleError(f"{named}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BundleError(f"{named}: cannot be read: {reason}") from None


def why_outside(named: str, path: Path, folders: Iterable[Path]) -> str | None:
    """Return why a file of a robot needs ``allow_outside``, or None if it lies below one of
    ``folders``, after links are resolved.

    :param named: what names it, for messages.
    """
    real = Path(os.path.realpath(path))
    if any(real.is_relative_to(os.path.realpath(folder)) for folder in folders):
        return None
    return (
        f"{named}: leads to {real}, outside of the folders of the robot and of the job file; move "
        "the file there or, if you trust the robot, set allow_outside = true in its job or [defaults]"
    )


def lexical(path: Path) -> Path:
    """Without ``.`` and ``..``: as MuJoCo reads a path, and as the file lies in the copy, which has
    no links.
    """
    return Path(os.path.normpath(path))


@dataclass(frozen=True, slots=True)
class MappedPath:
    """A file or folder of the user's, and its path in the copy."""

    source: Path
    target: Path

    @property
    def folder(self) -> MappedPath:
        return MappedPath(self.source.parent, self.target.parent)

    def at(self, name: str) -> MappedPath:
        source = self.source / name
        return MappedPath(
            lexical(source) if os.path.lexists(lexical(source)) else source,
            lexical(self.target / name),
        )


@dataclass(frozen=True, slots=True)
class _Mjcf:
    mapped: MappedPath
    elements: list[Tag]
    is_included: bool


class FileCollector:
    """Reads a main MJCF and every file that it refers to.

    :param padding: number of nested folders in ``elsewhere`` above each file, for ``..`` in names
        to climb.
    """

    def __init__(self, xml: Path, padding: int, limit_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.sources: dict[Path, Path] = {}
        """Path in the copy → the file that was read."""
        self.modes: dict[Path, int] = {}
        """Path in the copy → permission bits of the file that was read."""
        self.named: dict[Path, str] = {}
        """Path in the copy → what names the file, for messages."""
        self.folders: list[Path] = []
        """Absolute folders that were named, in order."""
        self.climbs = 0
        """The largest number of ``..`` in a name."""
        self._contents: dict[Path, bytes] = {}
        self._edits: dict[Path, dict[tuple[int, int], bytes]] = {}
        """Path in the copy → what replaces the bytes from start to end there."""
        self._padding = padding
        self._limit_bytes = limit_bytes
        self._total_bytes = 0
        self._elsewhere = ELSEWHERE
        main = xml.absolute()
        while os.path.lexists(main.parent / self._elsewhere):
            self._elsewhere += "_"
        self._read_document(MappedPath(main, main), str(xml), ())

    def rewritten(self) -> dict[Path, bytes]:
        """Path in the copy → content, with absolute paths replaced by those of the copy."""
        contents = dict(self._contents)
        for target, edits in self._edits.items():
            for (start, end), text in sorted(edits.items(), reverse=True):
                contents[target] = contents[target][:start] + text + contents[target][end:]
        return contents

    def _read_document(self, main: MappedPath, named: str, including: tuple[Path, ...]) -> None:
        """Read a main MJCF or sub-model, what it includes, and then the assets of all of them."""
        main = MappedPath(main.source, lexical(main.target))
        files: list[_Mjcf] = []
        self._read_mjcf(main, main.folder, named, including, files)
        folders = list(self._directories(main.folder, files))
        for file in files:
            for element in file.elements:
                here = f"{file.mapped.source}, line {element.line}: <{element.name}>"
                for attribute in files_read(element):
                    if element.name == "model":
                        sub_model = self._find(attribute, [file.mapped.folder], file, here)
                        chain = (*including, lexical(main.source))
                        self._read_document(sub_model, f"{here} {attribute.value}", chain)
                    elif element.name in ASSET_TAGS:
                        self._take_asset(attribute, element.name, file, main.folder, folders, here)

    def _read_mjcf(
        self,
        mapped: MappedPath,
        main_folder: MappedPath,
        named: str,
        including: tuple[Path, ...],
        files: list[_Mjcf],
    ) -> None:
        source = lexical(mapped.source)
        if source in including:
            cycle = " → ".join(
                file.name for file in (*including[including.index(source) :], source)
            )
            raise BundleError(f"{named}: includes itself: {cycle}; remove one of these includes")
        if any(file.mapped.target == mapped.target for file in files):
            return
        content = self._read(mapped, named)
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise BundleError(
                f"{named}: is encoded in UTF-16, which MuJoCo cannot read; save it as UTF-8"
            )
        if b"\0" in content or not content.strip():
            problem = "the file is empty" if not content.strip() else "is a binary file"
            raise BundleError(f"{named}: {problem}, expected an MJCF (<mujoco> … </mujoco>)")
        tags = list(elements(content, READ_TAGS))
        if not including and tags and tags[0].name != "mujoco":
            raise BundleError(f"{named}: the root element is <{tags[0].name}>, expected <mujoco>")
        self._put(mapped, content, named)
        file = _Mjcf(mapped, tags, is_included=bool(files))
        files.append(file)
        for element in tags:
            if element.name != "include":
                continue
            for attribute in files_read(element):
                here = f"{mapped.source}, line {element.line}: <include>"
                included = self._find(attribute, [main_folder, mapped.folder], file, here)
                self._read_mjcf(
                    included, main_folder, f"{here} {attribute.value}", (*including, source), files
                )

    def _directories(self, main_folder: MappedPath, files: list[_Mjcf]) -> Iterator[MappedPath]:
        """Every folder that a <compiler> of the document names."""
        for file in files:
            for attribute in _directory_attributes(file):
                name = self._name(attribute)
                if Path(name).is_absolute():
                    moved = self._rewrite(file, attribute, lexical(Path(name)))
                    yield MappedPath(Path(name), main_folder.target / moved)
                else:
                    yield main_folder.at(name)

    def _take_asset(
        self,
        attribute: Attribute,
        tag: str,
        file: _Mjcf,
        main_folder: MappedPath,
        folders: list[MappedPath],
        here: str,
    ) -> None:
        name = self._name(attribute)
        named = f"{here} {attribute.value}"
        absolute = lexical(Path(name)) if Path(name).is_absolute() else None
        # With strippath MuJoCo uses the last part of an absolute path, too.
        base = name.rpartition("/")[2]
        names = (base,) if absolute else (name, base)
        candidates = [
            folder.at(name)
            for folder in (*folders, main_folder, file.mapped.folder)
            for name in names
        ]
        existing = [mapped for mapped in candidates if _exists(mapped.source)]
        if absolute and _exists(absolute):
            moved = self._rewrite(file, attribute, absolute.parent, absolute.name)
            # Read from the compiler's directory, but some kinds of assets are first looked for
            # beside the main file.
            searched_beside = not folders or file.is_included or tag not in ("mesh", "texture")
            below = (*folders, main_folder) if searched_beside else folders
            existing += [MappedPath(absolute, folder.at(moved).target) for folder in below]
        if not existing:
            candidates += [MappedPath(absolute, absolute)] if absolute else []
            raise _missing_file_error(attribute.value, candidates, here)
        for mapped in existing:
            self._put(mapped, self._read(mapped, named), named)

    def _find(
        self, attribute: Attribute, folders: list[MappedPath], file: _Mjcf, here: str
    ) -> MappedPath:
        """The MJCF that an <include> or <model> refers to: the first that exists in ``folders``."""
        name = self._name(attribute)
        if Path(name).is_absolute():
            source = lexical(Path(name))
            moved = self._rewrite(file, attribute, source.parent, source.name)
            return MappedPath(source, lexical(folders[0].target / moved))
        candidates = [folder.at(name) for folder in folders]
        for mapped in candidates:
            if _exists(mapped.source):
                return mapped
        raise _missing_file_error(attribute.value, candidates, here)

    def _name(self, attribute: Attribute) -> str:
        name = attribute.value.replace("\\", "/")
        self.climbs = max(self.climbs, name.split("/").count(".."))
        return name

    def _rewrite(self, file: _Mjcf, attribute: Attribute, folder: Path, *name: str) -> str:
        """Make ``attribute`` name the copy of an absolute folder, or of a file in it; returns that
        name.
        """
        if folder not in self.folders:
            self.folders.append(folder)
        number = str(self.folders.index(folder))
        padding = ["_"] * self._padding
        moved = "/".join([self._elsewhere, number, *padding, *name])
        edits = self._edits.setdefault(file.mapped.target, {})
        edits[attribute.start, attribute.end] = escaped(moved)
        return moved

    def _read(self, mapped: MappedPath, named: str) -> bytes:
        earlier = self._contents.get(mapped.target, b"")  # of the same file, which counts once
        left = self._limit_bytes - self._total_bytes + len(earlier)
        if left < MAX_BYTES and _exists(mapped.source):
            size = mapped.source.stat().st_size
            if size > left:
                raise BundleError(
                    f"{named}: has {size:_} bytes, which are too many: the files of a robot may have "
                    f"{self._limit_bytes:_} bytes together, which have to fit into memory"
                )
        return read_regular_file(mapped.source, named, min(left, MAX_BYTES))

    def _put(self, mapped: MappedPath, content: bytes, named: str) -> None:
        mode = stat.S_IMODE(mapped.source.stat().st_mode)
        self.modes[mapped.target] = self.modes.get(mapped.target, mode) & mode
        self.named.setdefault(mapped.target, named)
        earlier = self.sources.setdefault(mapped.target, mapped.source)
        if mapped.target not in self._contents:
            self._total_bytes += len(content)
        if self._contents.setdefault(mapped.target, content) != content:
            raise BundleError(
                f"{named}: would have the path of {earlier} in a copy of the robot; rename one of them"
            )


def _directory_attributes(file: _Mjcf) -> Iterator[Attribute]:
    """The attributes of <compiler> that name a folder."""
    for element in file.elements:
        if element.name != "compiler":
            continue
        for attribute in element.attributes:
            if attribute.name in DIRECTORY_ATTRIBUTES and attribute.value:
                yield attribute


def files_read(element: Tag) -> list[Attribute]:
    """The attributes of ``element`` that name a file which MuJoCo reads."""
    values = {attribute.name: attribute.value for attribute in element.attributes}
    if element.name == "texture" and values.get("builtin", "none") != "none":
        return []  # generated
    if element.name == "flexcomp" and values.get("type") not in ("mesh", "gmsh"):
        return []
    files = [one for one in element.attributes if one.name.startswith("file") and one.value]
    # A cube texture has ``fileright`` … ``fileback``, which ``file`` overrides.
    return [one for one in files if one.name == "file"] or files


def _exists(path: Path) -> bool:
    """False also where access is denied, as MuJoCo does."""
    return os.access(path, os.F_OK)


def _missing_file_error(name: str, candidates: list[MappedPath], here: str) -> BundleError:
    """The error that says why none of ``candidates`` can be read."""
    for mapped in candidates:
        try:
            mapped.source.stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                return BundleError(
                    f"{here} {name}: cannot be read: {error.strerror}: {mapped.source}"
                )
        except ValueError as error:
            return BundleError(f"{here} {name!r}: cannot be read: {error}")
    where = ", ".join(dict.fromkeys(str(mapped.source.parent) for mapped in candidates))
    return BundleError(
        f"{here} names {name!r}: no such file in {where}; correct the name or add the file"
    )
