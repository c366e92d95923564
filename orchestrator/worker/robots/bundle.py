"""A robot as a self-contained folder: its MJCF and every file that it names, with a content hash.

MuJoCo looks for an include beside the main file, then beside the including file, and for an asset in
the compiler's directory, beside the main file and beside the file that names it, with and without
the folders in its name. Every existing candidate is collected, at its own place relative to the main
file, so that MuJoCo makes the same choice in the copy. A sub-model is a main file of its own.

A file with an absolute path is copied to the same place below the folder of the main file, or to its
whole path below the folder ``elsewhere`` there, and the attribute that names it is rewritten: the copy
does not depend on where a robot lies that a function makes. All other bytes stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.robot_hash import robot_hash
from orchestrator.core.robot_sources import MJCF_SUFFIX
from orchestrator.worker.robots.unfit import UnfitError, WrongRootError
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
    "compiler": ("meshdir", "texturedir", "assetdir"),
}
"""The elements that name files or folders, and their attributes that do."""
ELSEWHERE = "elsewhere"
MAX_TOTAL_BYTES = 2 << 30
"""Size of all files of a robot together, which are in memory at once."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of the text that Git checks out in place of a file whose content was not fetched."""


@dataclass(frozen=True, slots=True)
class RobotFile:
    content: bytes = field(repr=False)
    source: Path
    """The user's own file."""
    named: str
    """What names it, for messages."""


@dataclass(frozen=True)
class Bundle:
    """The files that make up a robot."""

    main: str
    """Path of the main MJCF in the copy."""
    xml: Path
    """The user's main MJCF."""
    files: Mapping[str, RobotFile]
    """By path in the copy."""

    @functools.cached_property
    def hash(self) -> str:
        return robot_hash(self.main, {name: file.content for name, file in self.files.items()})

    @property
    def includes(self) -> tuple[str, ...]:
        """The real paths of the MJCFs that the main one includes, directly or not."""
        return tuple(
            os.path.realpath(file.source)
            for name, file in self.files.items()
            if name != self.main and file.source.suffix.lower() == MJCF_SUFFIX
        )

    def outside(self, job_folder: str | None = None) -> str | None:
        """Return which file needs ``allow_outside``, and why, or None if all lie below the folder of
        the main MJCF or below ``job_folder``.
        """
        folders = [self.xml.parent]
        if job_folder is not None:
            folders.append(Path(job_folder))
        for name, file in self.files.items():
            if name != self.main and (why := why_outside(file.named, file.source, folders)):
                return why
        return None

    def write(self, folder: Path) -> Path:
        """Write all files below ``folder``. Return the path of the main MJCF there."""
        for name, file in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
        return folder / self.main

    def with_users_paths(self, text: str, copy: Path) -> str:
        """``text`` with the user's paths in the place of those of a copy.

        :param copy: its main MJCF.
        """
        return text.replace(
            str(copy).removesuffix(self.main), str(self.xml).removesuffix(self.main)
        )


def collect(xml: Path, memory_mib: int | None = None) -> Bundle:
    """Read ``xml`` and every file that it names.

    :param memory_mib: size of all of them together.
    :raises UnfitError: a file is missing, unreadable, no regular file, too large, or includes
        itself.
    """
    files = _FileCollector(xml, most_bytes(memory_mib)).files()
    origin = os.path.commonpath([path.parent for path in files])
    users = next(iter(files))
    main = users.relative_to(origin).as_posix()
    if main.encode(errors="ignore").decode() != main:
        raise UnfitError(
            f"{xml}: MuJoCo reads no name that is not UTF-8; rename the file or folder"
        )
    named = {path.relative_to(origin).as_posix(): file for path, file in files.items()}
    return Bundle(main=main, xml=users, files=named)


def most_bytes(memory_mib: int | None) -> int:
    """Return the size that all files of a robot may have where so much memory is available."""
    return MAX_TOTAL_BYTES if memory_mib is None else min(MAX_TOTAL_BYTES, memory_mib << 20)


def read_regular_file(path: Path, named: str, limit_bytes: int) -> bytes:
    """Read a file of a robot.

    :param named: what names it, for messages.
    :raises UnfitError: it is too large, a Git LFS pointer, or not a readable regular file.
    """
    try:
        content = read_regular(path, limit_bytes)
    except FileNotFoundError:
        raise UnfitError(f"{named}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnfitError(f"{named}: cannot be read: {reason}") from None
    if content.startswith(LFS_POINTER):
        raise UnfitError(f"{named}: is a Git LFS pointer: run `git lfs pull`")
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


@dataclass(frozen=True, slots=True)
class _Place:
    """A file or folder of the user's, and its path in the copy."""

    source: Path
    target: Path

    @property
    def folder(self) -> _Place:
        return _Place(self.source.parent, self.target.parent)

    def at(self, name: str, in_copy: str) -> _Place:
        return _Place(_lexical(self.source / name), _lexical(self.target / in_copy))


@dataclass(frozen=True, slots=True)
class _Reference:
    """An attribute that names a file or folder."""

    file: _Place
    """The MJCF that it is in."""
    element: str
    line: int
    attribute: Attribute

    @property
    def name(self) -> str:
        return self.attribute.value.replace("\\", "/")

    def __str__(self) -> str:
        return f"{self.file.source}, line {self.line}: <{self.element}> {self.attribute.value}"


class _FileCollector:
    """Reads a main MJCF and every file that it names."""

    def __init__(self, xml: Path, limit_bytes: int) -> None:
        self._main = _lexical(xml.absolute())
        self._files: dict[Path, RobotFile] = {}
        """By path in the copy."""
        self._edits: dict[Path, dict[tuple[int, int], bytes]] = {}
        """Path in the copy → what replaces the bytes from start to end there."""
        self._left_bytes = limit_bytes
        self._read_document(_Place(self._main, self._main), str(xml), ())

    def files(self) -> dict[Path, RobotFile]:
        """Path in the copy → file, with absolute paths replaced by those of the copy."""
        files = dict(self._files)
        for target, edits in self._edits.items():
            content = files[target].content
            for (start, end), text in sorted(edits.items(), reverse=True):
                content = content[:start] + text + content[end:]
            files[target] = dataclasses.replace(files[target], content=content)
        return files

    def _read_document(self, main: _Place, named: str, chain: tuple[Path, ...]) -> None:
        """Read a main MJCF or sub-model, what it includes, and then the assets of all of them.

        :param chain: the main MJCF and sub-models that lead to it.
        """
        if main.source in chain:
            raise UnfitError(f"{named}: includes itself; remove this element")
        references: list[_Reference] = []
        self._read_mjcf(main, named, main.folder, [], references)
        folders = [main.folder]
        for reference in references:
            if reference.element == "compiler":
                folders.append(main.folder.at(reference.name, self._name_in_copy(reference)))
        for reference in references:
            beside = reference.file.folder
            if reference.element == "model":
                sub_model = self._find(reference, [beside])[0]
                self._read_document(sub_model, str(reference), (*chain, main.source))
            elif reference.element not in ("compiler", "include"):
                for found in self._find(reference, [*folders, beside]):
                    self._take(found, str(reference))

    def _read_mjcf(
        self,
        file: _Place,
        named: str,
        main_folder: _Place,
        included: list[Path],
        references: list[_Reference],
    ) -> None:
        """Read an MJCF and what it includes, and add what they name to ``references``.

        :param included: the files that were read so for the same main MJCF.
        """
        if file.source in included:  # MuJoCo refuses both
            raise UnfitError(f"{named}: includes itself or is included twice; remove this element")
        included.append(file.source)
        content = self._take(file, named)
        if b"\0" in content or not content.strip():
            raise UnfitError(f"{named}: is empty or no text in UTF-8, expected an MJCF")
        tags = list(elements(content, FILE_ATTRIBUTES))
        if file.source == self._main and tags and tags[0].name != "mujoco":
            root = tags[0].name
            raise WrongRootError(f"{named}: the root element is <{root}>, expected <mujoco>", root)
        for tag in tags:
            for attribute in _files_read(tag):
                reference = _Reference(file, tag.name, tag.line, attribute)
                references.append(reference)
                if tag.name == "include":
                    inner = self._find(reference, [main_folder, file.folder])[0]
                    self._read_mjcf(inner, str(reference), main_folder, included, references)

    def _find(self, reference: _Reference, folders: list[_Place]) -> list[_Place]:
        """All files in ``folders`` that MuJoCo may take for a name, the likeliest first."""
        name = reference.name
        base = name.rpartition("/")[2]  # with strippath, MuJoCo uses this part alone
        in_copy = self._name_in_copy(reference) if os.path.lexists(name) else name
        candidates = [
            *(folder.at(name, in_copy) for folder in folders),
            *(folder.at(base, base) for folder in folders),
        ]
        found = [place for place in candidates if os.path.lexists(place.source)]
        if not found:
            searched = ", ".join(dict.fromkeys(str(place.source.parent) for place in candidates))
            raise UnfitError(
                f"{reference}: no such file in {searched}; correct the name or add the file"
            )
        return found

    def _name_in_copy(self, reference: _Reference) -> str:
        """Return the path that a reference names relative to a folder of the copy. An absolute one is
        replaced in the MJCF.
        """
        if not reference.name.startswith("/"):
            return reference.name
        path = _lexical(Path(reference.name))
        robot = self._main.parent
        is_inside = path.is_relative_to(robot)
        name = str(path.relative_to(robot)) if is_inside else f"{ELSEWHERE}{path}"
        attribute = reference.attribute
        edits = self._edits.setdefault(reference.file.target, {})
        edits[attribute.start, attribute.end] = escaped(name)
        return name

    def _take(self, file: _Place, named: str) -> bytes:
        """Read a file, once for each place in the copy."""
        if file.target not in self._files:
            content = read_regular_file(file.source, named, self._left_bytes)
            self._left_bytes -= len(content)
            self._files[file.target] = RobotFile(content, file.source, named)
        return self._files[file.target].content


def _files_read(tag: Tag) -> list[Attribute]:
    """The attributes of an element that name a file or folder which MuJoCo reads."""
    values = {attribute.name: attribute.value for attribute in tag.attributes}
    is_generated = (tag.name == "texture" and values.get("builtin", "none") != "none") or (
        tag.name == "flexcomp" and values.get("type") not in ("mesh", "gmsh")
    )
    names = () if is_generated else FILE_ATTRIBUTES.get(tag.name, ())
    read = [one for one in tag.attributes if one.value and one.name in names]
    # ``file`` of a texture overrides its sides.
    return [one for one in read if one.name == "file"] or read


def _lexical(path: Path) -> Path:
    """``path`` without ``.`` and ``..``, as MuJoCo reads it."""
    return Path(os.path.normpath(path))
