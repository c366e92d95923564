"""How large are kernel, worker and features, and who imports a feature?

    python -m benchmarks.size

Size is the number of nodes of the syntax tree, which layout and comments do not change. An import
of a feature is a statement, or a text that is the name of a module, as ``import_module`` takes
it. Those under ``TYPE_CHECKING``, which no process executes, are counted apart: the kernel has them
for the names that features add to ``import orchestrator``, which type checkers see only there.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT
from orchestrator.core.feature import features

KERNEL = "kernel"
WORKER = "worker"
TYPE_CHECKING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
MODULE_OF_FEATURE = re.compile(r"orchestrator\.features\.(?P<feature>\w+)(\.\w+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOfFeature:
    """A place that imports a feature of which it is no part."""

    path: Path
    line: int
    feature: str
    is_for_types: bool
    """Under ``TYPE_CHECKING``."""

    def __str__(self) -> str:
        why = " (under TYPE_CHECKING)" if self.is_for_types else ""
        return f"{self.path}:{self.line} imports {self.feature}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Kernel, worker or a feature."""

    modules: int
    nodes: int
    imports: tuple[ImportOfFeature, ...]
    """Of features, or of other features."""


def survey(root: Path, elsewhere: Mapping[str, str]) -> dict[str, Part]:
    """The parts of the program below ``root``: kernel, worker, then features by their names.

    :param elsewhere: files and folders that belong to a feature and are not in its folder → its name.
    """
    trees: dict[str, dict[Path, ast.Module]] = {KERNEL: {}, WORKER: {}}
    for file in sorted((root / "orchestrator").rglob("*.py")):
        path = file.relative_to(root)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        trees.setdefault(_owner(path, elsewhere), {})[path] = tree
    return {
        name: Part(
            modules=len(own),
            nodes=sum(1 for tree in own.values() for _ in ast.walk(tree)),
            imports=tuple(
                one
                for path, tree in own.items()
                for one in _imports(path, tree)
                if one.feature != name
            ),
        )
        for name, own in trees.items()
    }


def _owner(path: Path, elsewhere: Mapping[str, str]) -> str:
    for place, feature in elsewhere.items():
        if path.is_relative_to(place):
            return feature
    match path.parts:
        case ("orchestrator", "features", feature, _, *_):
            return feature
        case ("orchestrator", "worker", *_):
            return WORKER
    return KERNEL


def _imports(path: Path, tree: ast.Module) -> Iterator[ImportOfFeature]:
    """The imports of features in a module, its own feature's included."""
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in TYPE_CHECKING
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Constant):
            for module in _modules(node):
                if named := MODULE_OF_FEATURE.fullmatch(module):
                    yield ImportOfFeature(
                        path=path,
                        line=node.lineno,
                        feature=named["feature"],
                        is_for_types=node in for_types,
                    )


def _modules(node: ast.Import | ast.ImportFrom | ast.Constant) -> list[str]:
    """The modules that a node imports or names."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module="orchestrator.features", names=names):
            return [f"orchestrator.features.{alias.name}" for alias in names]
        case ast.ImportFrom(module=str(module)):
            return [module]
        case ast.Constant(value=str(text)):
            return [text]
    return []


def table(parts: Mapping[str, Part]) -> str:
    """In Markdown: a row for each part, features by their size, and the imports one by one below."""
    of_features = sorted(parts.keys() - {KERNEL, WORKER}, key=lambda name: -parts[name].nodes)
    rows = [
        "| part | modules | nodes | imports of features | under TYPE_CHECKING |",
        "|---|---|---|---|---|",
    ]
    for name in (KERNEL, WORKER, *of_features):
        part = parts[name]
        for_types = sum(one.is_for_types for one in part.imports)
        executed = len(part.imports) - for_types
        rows.append(f"| {name} | {part.modules} | {part.nodes:,} | {executed} | {for_types} |")
    imports = [str(one) for part in parts.values() for one in part.imports]
    return "\n".join([*rows, "", *imports])


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    elsewhere = {
        path: feature.name
        for feature in features()
        for path in feature.belongings
        if path.startswith("orchestrator/")
    }
    print(table(survey(ROOT, elsewhere)))


if __name__ == "__main__":
    main()
