"""A robot as a self-contained folder: its MJCF and every file that it names, with a content hash.

MuJoCo looks for an include beside the main file, then beside the including file, and for an asset in
the compiler's directory, beside the main file and beside the file that names it, with and without
the folders in its name. Every existing candidate is collected, at its own place relative to the main
file, so that MuJoCo makes the same choice in the copy. A sub-model is a main file of its own.

The copy has the folders that all of the files have in common with one another; an absolute path is
rewritten as a relative one. All other bytes stay as they are.
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
from orchestrator.worker.robots.xml_elements import Attribute, elements, escaped

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
class _Reference:
    """An attribute that names a file or folder."""

    file: Path
    """The MJCF that it is in."""
    element: str
    line: int
    attribute: Attribute

    @property
    def name(self) -> str:
        return self.attribute.value.replace("\\", "/")

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: <{self.element}> {self.attribute.value}"


class _FileCollector:
    """Reads a main MJCF and every file that it names."""

    def __init__(self, xml: Path, limit_bytes: int) -> None:
        self._files: dict[Path, RobotFile] = {}
        self._edits: dict[Path, dict[tuple[int, int], bytes]] = {}
        """MJCF → what replaces the bytes from start to end there."""
        self._left_bytes = limit_bytes
        self._read_document(_lexical(xml.absolute()), str(xml), ())

    def files(self) -> dict[Path, RobotFile]:
        """Path in the copy → file, with relative paths in place of absolute ones."""
        files = dict(self._files)
        for path, edits in self._edits.items():
            content = files[path].content
            for (start, end), text in sorted(edits.items(), reverse=True):
                content = content[:start] + text + content[end:]
            files[path] = dataclasses.replace(files[path], content=content)
        return files

    def _read_document(self, main: Path, named: str, chain: tuple[Path, ...]) -> None:
        """Read a main MJCF or sub-model, what it includes, and then the assets of all of them.

        :param chain: the main MJCF and sub-models that lead to it.
        """
        if main in chain:
            raise UnfitError(f"{named}: includes itself; remove this element")
        references: list[_Reference] = []
        self._read_mjcf(main, named, main.parent, [], references)
        folders = [main.parent]
        for reference in references:
            if reference.element == "compiler":
                folder = self._make_relative(reference, main.parent)
                folders.append(_lexical(main.parent / folder))
        for reference in references:
            beside = reference.file.parent
            if reference.element == "model":
                sub_model = next(iter(self._find(reference, [beside])))
                self._read_document(sub_model, str(reference), (*chain, main))
            elif reference.element not in ("compiler", "include"):
                for target, source in self._find(reference, [*folders, beside]).items():
                    self._take(target, source, str(reference))

    def _read_mjcf(
        self,
        file: Path,
        named: str,
        main_folder: Path,
        included: list[Path],
        references: list[_Reference],
    ) -> None:
        """Read an MJCF and what it includes, and add what they name to ``references``.

        :param included: the files that were read so for the same main MJCF.
        """
        if file in included:  # MuJoCo refuses both
            raise UnfitError(f"{named}: includes itself or is included twice; remove this element")
        included.append(file)
        content = self._take(file, file, named)
        if b"\0" in content or not content.strip():
            raise UnfitError(f"{named}: is empty or no text in UTF-8, expected an MJCF")
        tags = list(elements(content, FILE_ATTRIBUTES))
        if len(self._files) == 1 and tags and tags[0].name != "mujoco":
            root = tags[0].name
            raise WrongRootError(f"{named}: the root element is <{root}>, expected <mujoco>", root)
        for tag in tags:
            for attribute in tag.attributes:
                if not attribute.value or attribute.name not in FILE_ATTRIBUTES.get(tag.name, ()):
                    continue
                reference = _Reference(file, tag.name, tag.line, attribute)
                references.append(reference)
                if tag.name == "include":
                    inner = next(iter(self._find(reference, [main_folder, file.parent])))
                    self._read_mjcf(inner, str(reference), main_folder, included, references)

    def _find(self, reference: _Reference, folders: list[Path]) -> dict[Path, Path]:
        """Path in the copy → path, for all files in ``folders`` that MuJoCo may take for a name, the
        likeliest first.
        """
        base = reference.name.rpartition("/")[2]  # with strippath, MuJoCo uses this part alone
        candidates = [
            _lexical(folder / name) for name in (reference.name, base) for folder in folders
        ]
        found = {path: path for path in candidates if os.path.lexists(path)}
        if not found:
            searched = ", ".join(dict.fromkeys(str(path.parent) for path in candidates))
            raise UnfitError(
                f"{reference}: no such file in {searched}; correct the name or add the file"
            )
        if reference.name.startswith("/") and os.path.lexists(reference.name):
            relative = self._make_relative(reference, folders[0])
            found |= {_lexical(folder / relative): candidates[0] for folder in folders}
        return found

    def _make_relative(self, reference: _Reference, folder: Path) -> str:
        """Return the path of a reference; an absolute one is replaced by one relative to
        ``folder``.
        """
        if not reference.name.startswith("/"):
            return reference.name
        relative = os.path.relpath(reference.name, folder)
        attribute = reference.attribute
        edits = self._edits.setdefault(reference.file, {})
        edits[attribute.start, attribute.end] = escaped(relative)
        return relative

    def _take(self, target: Path, source: Path, named: str) -> bytes:
        """Read a file, once for each place in the copy."""
        if target not in self._files:
            content = read_regular_file(source, named, self._left_bytes)
            self._left_bytes -= len(content)
            self._files[target] = RobotFile(content, source, named)
        if self._files[target].source != source:
            raise UnfitError(f"{named}: its relative path names another file; rename the file")
        return self._files[target].content


def _lexical(path: Path) -> Path:
    """``path`` without ``.`` and ``..``, as MuJoCo reads it."""
    return Path(os.path.normpath(path))
