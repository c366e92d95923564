"""Reading every file that an MJCF names, as MuJoCo finds it.

MuJoCo looks for an include beside the main file, then beside the including file, and for an asset in
the compiler's directory, beside the main file and beside the file that names it, with and without
the folders in its name. Every existing candidate is collected, at its own place relative to the main
file, so that MuJoCo makes the same choice in the copy. A sub-model is a main file of its own.

A file with an absolute path is copied to the same place below the folder of the main file, or to its
whole path below the folder ``elsewhere`` there, and the attribute that names it is rewritten. All
other bytes stay as they are.

A robot may come from strangers: only files that MuJoCo would read are taken, and none of the
kernel's. What names each file is noted, for :func:`why_outside`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.files.regular_files import read_regular
from orchestrator.worker.robots.xml_elements import Attribute, Tag, elements, escaped

SIDES = ("fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")
FILE_ATTRIBUTES = {
    "include": ("file",),
    "model": ("file",),
    "mesh": ("file",),
    "hfield": ("file",),
    "skin": ("file",),
    "flexcomp": ("file",),
    "texture": ("file", *SIDES),
}
"""The elements that name files, and their attributes that do."""
DIRECTORY_ATTRIBUTES = ("meshdir", "texturedir", "assetdir")
"""The attributes of <compiler> that name folders."""
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
"""Their files describe processes and devices."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108
"""In them, and yet an ordinary file system."""
ELSEWHERE = "elsewhere"
MAX_TOTAL_BYTES = 2 << 30
"""Size of all files of a robot together, which are in memory at once."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of the text that Git checks out in place of a file whose content was not fetched."""


class BundleError(Exception):
    """The robot's files cannot be collected; the message names file, line and reason."""


def read_regular_file(path: Path, named: str, limit_bytes: int = MAX_TOTAL_BYTES) -> bytes:
    """Read a file of a robot.

    :param named: what names it, for messages.
    :raises BundleError: it is too large, a Git LFS pointer, or not a readable regular file.
    """
    try:
        real = Path(os.path.realpath(path))
        if any(map(real.is_relative_to, KERNEL_FOLDERS)) and not real.is_relative_to(SHARED_MEMORY):
            raise BundleError(
                f"{named}: is {real}, a file of the kernel; expected one of the robot"
            )
        content = read_regular(path, limit_bytes)
    except FileNotFoundError:
        raise BundleError(f"{named}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BundleError(f"{named}: cannot be read: {reason}") from None
    if content.startswith(LFS_POINTER):
        raise BundleError(f"{named}: is a Git LFS pointer: run `git lfs pull`")
    return content


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
    """``path`` without ``.`` and ``..``, as MuJoCo reads it."""
    return Path(os.path.normpath(path))


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder of the user's, and its path in the copy."""

    source: Path
    target: Path

    @property
    def folder(self) -> Place:
        return Place(self.source.parent, self.target.parent)

    def at(self, name: str) -> Place:
        return Place(lexical(self.source / name), lexical(self.target / name))


@dataclass(frozen=True, slots=True)
class RobotFile:
    content: bytes = field(repr=False)
    source: Path
    """The user's own file."""
    named: str
    """What names it, for messages."""


class FileCollector:
    """Reads a main MJCF and every file that it names."""

    def __init__(self, xml: Path, limit_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.main = lexical(xml.absolute())
        self._files: dict[Path, RobotFile] = {}
        """By path in the copy."""
        self._edits: dict[Path, dict[tuple[int, int], bytes]] = {}
        """Path in the copy → what replaces the bytes from start to end there."""
        self._left_bytes = limit_bytes
        self._read_document(Place(self.main, self.main), str(xml), ())

    def files(self) -> dict[Path, RobotFile]:
        """Path in the copy → file, with absolute paths replaced by those of the copy."""
        files = dict(self._files)
        for target, edits in self._edits.items():
            content = files[target].content
            for (start, end), text in sorted(edits.items(), reverse=True):
                content = content[:start] + text + content[end:]
            files[target] = dataclasses.replace(files[target], content=content)
        return files

    def _read_document(self, main: Place, named: str, chain: tuple[Path, ...]) -> None:
        """Read a main MJCF or sub-model, what it includes, and then the assets of all of them.

        :param chain: the files that name it, from the robot's main file on.
        """
        files: list[tuple[Place, Tag]] = []
        self._read_mjcf(main, main.folder, named, chain, files)
        folders = [main.folder]
        for file, tag in files:
            for attribute in tag.attributes if tag.name == "compiler" else ():
                if attribute.name in DIRECTORY_ATTRIBUTES and attribute.value:
                    folders.append(self._copied(attribute, file, main.folder))
        for file, tag in files:
            for attribute in files_read(tag):
                named = f"{file.source}, line {tag.line}: <{tag.name}> {attribute.value}"
                if tag.name == "model":
                    sub_model = self._find(attribute, file, [file.folder], named)[0]
                    self._read_document(sub_model, named, (*chain, main.source))
                elif tag.name != "include":
                    for found in self._find(attribute, file, [*folders, file.folder], named):
                        self._take(found, named)

    def _read_mjcf(
        self,
        file: Place,
        main_folder: Place,
        named: str,
        chain: tuple[Path, ...],
        files: list[tuple[Place, Tag]],
    ) -> None:
        """Read an MJCF and what it includes, and add their elements to ``files``."""
        if file.source in chain:
            raise BundleError(f"{named}: includes itself; remove this element")
        if any(file.target == earlier.target for earlier, _ in files):
            return
        content = self._take(file, named)
        if b"\0" in content or not content.strip():
            raise BundleError(f"{named}: is empty or no text in UTF-8, expected an MJCF")
        tags = list(elements(content, {*FILE_ATTRIBUTES, "compiler"}))
        if not chain and tags and tags[0].name != "mujoco":
            raise BundleError(f"{named}: the root element is <{tags[0].name}>, expected <mujoco>")
        files += [(file, tag) for tag in tags]
        for tag in tags:
            for attribute in files_read(tag) if tag.name == "include" else ():
                named = f"{file.source}, line {tag.line}: <include> {attribute.value}"
                included = self._find(attribute, file, [main_folder, file.folder], named)[0]
                self._read_mjcf(included, main_folder, named, (*chain, file.source), files)

    def _find(
        self, attribute: Attribute, file: Place, folders: list[Place], named: str
    ) -> list[Place]:
        """All files in ``folders`` that MuJoCo may take for a name, the likeliest first."""
        name = _path(attribute)
        base = name.rpartition("/")[2]  # with strippath, MuJoCo uses this part alone
        found: list[Place] = []
        candidates = [folder.at(base) for folder in folders]
        if not name.startswith("/"):
            candidates = [folder.at(name) for folder in folders] + candidates
        elif _exists(Path(name)):
            found = [self._copied(attribute, file, folder) for folder in folders]
        found += [candidate for candidate in candidates if _exists(candidate.source)]
        if not found:
            searched = ", ".join(dict.fromkeys(str(one.source.parent) for one in candidates))
            raise BundleError(
                f"{named}: no such file in {searched}; correct the name or add the file"
            )
        return found

    def _copied(self, attribute: Attribute, file: Place, folder: Place) -> Place:
        """The file or folder that an attribute names relative to ``folder`` or by an absolute path,
        which is rewritten.
        """
        name = _path(attribute)
        if not name.startswith("/"):
            return folder.at(name)
        path = lexical(Path(name))
        robot = self.main.parent
        moved = path.relative_to(robot) if path.is_relative_to(robot) else f"{ELSEWHERE}{path}"
        edits = self._edits.setdefault(file.target, {})
        edits[attribute.start, attribute.end] = escaped(str(moved))
        return Place(path, folder.at(str(moved)).target)

    def _take(self, file: Place, named: str) -> bytes:
        """Read a file, once for each place in the copy."""
        if file.target not in self._files:
            content = read_regular_file(file.source, named, self._left_bytes)
            self._left_bytes -= len(content)
            self._files[file.target] = RobotFile(content, file.source, named)
        return self._files[file.target].content


def files_read(tag: Tag) -> list[Attribute]:
    """The attributes of an element that name a file which MuJoCo reads."""
    values = {attribute.name: attribute.value for attribute in tag.attributes}
    if tag.name == "texture" and values.get("builtin", "none") != "none":
        return []  # generated
    if tag.name == "flexcomp" and values.get("type") not in ("mesh", "gmsh"):
        return []
    names = FILE_ATTRIBUTES.get(tag.name, ())
    files = [one for one in tag.attributes if one.name in names and one.value]
    # ``file`` of a texture overrides its sides.
    return [one for one in files if one.name == "file"] or files


def _path(attribute: Attribute) -> str:
    return attribute.value.replace("\\", "/")


def _exists(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # a null character in the name
        return False
