"""A robot as a self-contained folder: its MJCF and every file that it refers to, with a content
hash.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.robot_hash import robot_hash
from orchestrator.worker.robots.file_collector import (
    MAX_TOTAL_BYTES,
    BundleError,
    FileCollector,
    lexical,
    why_outside,
)
from orchestrator.worker.robots.xml_elements import elements


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files that make up a robot."""

    main: str
    """Path of the main MJCF, relative to ``origin``."""
    origin: Path
    """The user's folder: the common ancestor of all files that are not in ``moved``."""
    contents: dict[str, bytes] = field(repr=False)
    """Relative path → content."""
    moved: dict[str, Path] = field(default_factory=dict, repr=False)
    """Relative path → the user's own file, where that lies at another place."""
    modes: dict[str, int] = field(default_factory=dict, repr=False)
    """Relative path → permission bits of the user's own file."""
    named: dict[str, str] = field(default_factory=dict, repr=False)
    """Relative path → what names the file, for messages."""

    @property
    def hash(self) -> str:
        return robot_hash(self.main, self.contents)

    def outside(self, job_folder: str | None = None) -> str | None:
        """Return which file needs ``allow_outside``, and why, or None if all lie below the folder of
        the main MJCF or below ``job_folder``.
        """
        folders = [self.users_path(self.main).parent]
        if job_folder is not None:
            folders.append(Path(job_folder))
        others = ((name, named) for name, named in self.named.items() if name != self.main)
        reasons = (why_outside(named, self.users_path(name), folders) for name, named in others)
        return next(filter(None, reasons), None)

    def write(self, folder: Path) -> Path:
        """Copy everything below ``folder``, for the same readers; returns the path of the main MJCF
        there.
        """
        for name, content in self.contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = self.modes.get(name, 0o666) & 0o666 | 0o600
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with open(descriptor, "wb") as file:  # noqa: PTH123 - pathlib has no mode
                file.write(content)
        return folder / self.main

    def stamp(self) -> object:
        """Changes when one of the user's files is changed or replaced."""
        stamps: list[tuple[int | None, ...]] = []
        for name in self.contents:
            try:
                now = self.users_path(name).stat()
            except OSError as error:
                stamps.append((error.errno,))
            else:
                stamps.append(
                    (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
                )
        return stamps

    def find_included(self, tag: str, attribute: str | None) -> str | None:
        """``FILE, line N`` of the first such element in an included file, for which MuJoCo gives no
        line numbers; None: there is none.

        :param attribute: one that it has; None: any element with the tag.
        """
        for name, content in self.contents.items():
            if name == self.main or not name.endswith(".xml"):
                continue
            for element in elements(content, {tag}):
                names = [own.name for own in element.attributes]
                if element.name == tag and (attribute is None or attribute in names):
                    return f"{self.users_path(name)}, line {element.line}"
        return None

    def users_path(self, name: str) -> Path:
        """The user's own file that has the relative path ``name`` in the copy."""
        return self.moved.get(name, self.origin / name)


def collect(xml: Path, limit_bytes: int = MAX_TOTAL_BYTES) -> Bundle:
    """Read ``xml`` and every file that it refers to.

    :param limit_bytes: size of all of them together.

    :raises BundleError: a file is missing, unreadable, no regular file, too large, or includes
        itself.
    """
    main = xml.absolute()
    collector = FileCollector(xml, 0, limit_bytes)
    # ``..`` must not lead from one outside folder into another.
    if collector.climbs and collector.folders:
        collector = FileCollector(xml, 2 * collector.climbs, limit_bytes)
    contents = collector.rewritten()
    origin = Path(os.path.commonpath([target.parent for target in contents]))

    def name(target: Path) -> str:
        return target.relative_to(origin).as_posix()

    main_name = name(lexical(main))
    if main_name != os.fsencode(main_name).decode(errors="ignore"):
        raise BundleError(
            f"{xml}: the name is not valid UTF-8, which MuJoCo requires; rename the file or folder"
        )
    return Bundle(
        main=main_name,
        origin=origin,
        contents={name(target): content for target, content in contents.items()},
        moved={
            name(target): source
            for target, source in collector.sources.items()
            if lexical(source) != target
        },
        modes={name(target): mode for target, mode in collector.modes.items()},
        named={name(target): named for target, named in collector.named.items()},
    )
