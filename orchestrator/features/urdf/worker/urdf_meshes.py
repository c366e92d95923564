"""The mesh files of a URDF: found as its author meant them, and copied beside the MJCF under names
of their own.

``package://NAME/meshes/x.stl`` is looked for in each folder of ``asset_paths``, which may hold the
package or be the package; then in the folders above the URDF that are called NAME, as in
``NAME/urdf/robot.urdf``. Any other name is relative to ``meshdir`` of the URDF's own
``<mujoco><compiler>``, to its folder, or to a folder of ``asset_paths``. Folders of the user's, in
which a URDF was found that is examined alone, are looked into last, as if they were of
``asset_paths``.

A robot may come from strangers: what lies below neither the folder of the URDF, nor that of the job
file, nor one of ``asset_paths`` needs ``allow_outside``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.features.urdf.worker.urdf_tree import Node, UrdfError
from orchestrator.worker.robots.bundle import read_regular_file, why_outside
from orchestrator.worker.robots.unfit import UnfitError

READABLE = (".stl", ".obj", ".msh")
PACKAGES = ("package", "model")
"""Schemes of an URI whose first part is the name of a package."""


class UrdfMeshes:
    """Copies meshes to ``folder``.

    :param compiler: ``<mujoco><compiler>`` of the URDF.
    """

    def __init__(
        self,
        xml: Path,
        asset_paths: Sequence[str],
        compiler: Node,
        folder: Path,
        limit_bytes: int,
        user_folders: Sequence[str] = (),
        job_folder: str | None = None,
    ) -> None:
        self.copied: dict[Path, tuple[Path, int]] = {}
        """Copy → the file that it is of, and the line that names it first."""
        self.replaced: list[str] = []
        """Which files were taken in the place of those that MuJoCo cannot read, in words."""
        self.folders_needed: list[str] = []
        """Those of ``user_folders`` in which meshes were found that are nowhere else."""
        self.outside: UrdfError | None = None
        """The first mesh that needs ``allow_outside``."""
        self._user_folders = user_folders
        self._xml = xml
        self._folder = folder
        self._left = limit_bytes
        self._asset_paths = [Path(path) for path in asset_paths]
        self._inside = [xml.parent, *self._asset_paths]
        if job_folder is not None:
            self._inside.append(Path(job_folder))
        self._mesh_folder = xml.parent / (
            compiler.attributes.get("meshdir") or compiler.attributes.get("assetdir", "")
        )
        self._strips = compiler.attributes.get("strippath") == "true"
        self._copies: dict[str, str] = {}
        """Real path of a mesh → its name in ``folder``."""
        self._stems: set[str] = set()

    def take(self, node: Node, of: str) -> None:
        """Copy the file of a ``<mesh>``, and name the copy in it.

        :param of: what it belongs to, for messages.
        :raises UrdfError: there is no such file, MuJoCo cannot read it, or it is too large.
        """
        written = node.attributes.get("filename", "")
        here = f"<mesh> of {of}"
        if not written:
            raise UrdfError(
                f"{here} has no filename; expected the path of an STL or OBJ file", node.line
            )
        source = self._find(written, here, node.line)
        if source.suffix.lower() not in READABLE:
            source = self._converted(source, f"{here} names {written!r}", node.line)
        node.attributes["filename"] = self._copy_of(source, here, node.line)

    def _converted(self, source: Path, named: str, line: int) -> Path:
        """The file of the same name beside ``source`` that MuJoCo can read.

        :raises UrdfError: there is none.
        """
        for path in (source.with_suffix(suffix) for suffix in READABLE):
            if path.is_file():
                text = f"{path.name} in the place of {source.name}, which MuJoCo cannot read"
                if text not in self.replaced:
                    self.replaced.append(text)
                return path
        raise UrdfError(
            f"{named}, which MuJoCo cannot read: expected {', '.join(READABLE)}; convert it, for example in Blender or "
            f"MeshLab, to {source.with_suffix('.obj').name} beside it, which is then taken",
            line,
        )

    def _find(self, written: str, here: str, line: int) -> Path:
        candidates = list(dict.fromkeys(self._candidates(written, self._asset_paths)))
        for path in candidates:
            if path.is_file():
                return path
        for folder in self._user_folders:
            for path in self._candidates(written, [Path(folder)]):
                if path.is_file():
                    if folder not in self.folders_needed:
                        self.folders_needed.append(folder)
                        self._inside.append(Path(folder))
                    return path
        scheme, _, rest = written.partition("://")
        folders = ", ".join(dict.fromkeys(str(path.parent) for path in candidates)) or "any folder"
        message = f"{here} names {written!r}: no such file in {folders}"
        advice = "correct the name or add the file"
        if scheme in PACKAGES:
            package = rest.lstrip("/").partition("/")[0]
            advice = f'set urdf.asset_paths = ["…"] to the folder of the package {package}, or to the one that holds it'
        raise UrdfError(f"{message}; {advice}", line)

    def _candidates(self, written: str, folders: Sequence[Path]) -> Iterator[Path]:
        """:param folders: those that may hold a package, or be one."""
        name = written.replace("\\", "/")
        if self._strips:
            name = name.rpartition("/")[2]
        scheme, _, rest = name.partition("://")
        if scheme in PACKAGES:
            package, _, below = rest.lstrip("/").partition("/")
            for folder in folders:
                yield folder / package / below
                if folder.name == package:
                    yield folder / below
            for folder in self._xml.parents:
                if folder.name == package:
                    yield folder / below
            return
        if scheme == "file":
            name = unquote(urlsplit(name).path)
        yield from (folder / name for folder in (self._mesh_folder, self._xml.parent, *folders))

    def _copy_of(self, source: Path, here: str, line: int) -> str:
        real = os.path.realpath(source)
        if real not in self._copies:
            try:
                content = read_regular_file(source, f"{here} {source}", self._left)
            except UnfitError as error:
                raise UrdfError(str(error), line) from None
            why = why_outside(f"{here} {source}", source, self._inside)
            if why is not None and self.outside is None:
                self.outside = UrdfError(why, line)
            self._left -= len(content)
            self._copies[real] = self._unused_name(source)
            copy = self._folder / self._copies[real]
            copy.write_bytes(content)
            self.copied[copy] = source, line
        return self._copies[real]

    def _unused_name(self, source: Path) -> str:
        """A file name whose stem, by which MuJoCo calls the mesh, no other copy has."""
        stem = source.stem
        number = 1
        while stem.lower() in self._stems:
            number += 1
            stem = f"{source.stem}_{number}"
        self._stems.add(stem.lower())
        return stem + source.suffix
