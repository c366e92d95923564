"""Pages of the site from files beside ``docs/``, and links as the site has them: a hook of MkDocs.

``README.md`` is the first page. Documents keep the links that work in the repository; here each
becomes that of the page which the site makes from the file. A link to a file that the site does not
have stays, and the build refuses it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Path in the repository → that of the page."""
SHOWN = ("jobs/**/*.toml", "benchmarks/*.toml")
"""Files with a page that shows their text."""
COPIED = ("examples/*.ipynb",)
LINK = re.compile(r"\]\((?![a-z]+:|#)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")

TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]*`")


def on_config(config: MkDocsConfig) -> None:
    """Put the job files into the navigation, which lists all else by name."""
    examples = [site_path(name) for name in _names(SHOWN) if name.startswith("jobs/")]
    for section in config.nav or []:
        if "Reference" in section:
            section["Reference"].append({"Example job files": examples})


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the pages."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for name in _names(SHOWN):
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(
            File.generated(config, site_path(name), content=f"# {name}\n\n```toml\n{text}```\n")
        )
    for name in _names(COPIED):
        files.append(File.generated(config, site_path(name), abs_src_path=str(ROOT / name)))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # called by name
    """Turn what the repository's pages understand into what the site does: links, and ``|`` in the
    code of a table.
    """
    return TABLE_ROW.sub(without_escapes, links_of_site(markdown, page.file.src_uri))


def links_of_site(markdown: str, page: str) -> str:
    """:param page: path in the site of the page with this text."""
    names = {path: name for name, path in PAGES.items()}
    folder = posixpath.dirname(names.get(page, f"docs/{page}"))

    def of_site(link: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(folder, link["path"]))
        if not (ROOT / name).exists():
            return link[0]
        target = posixpath.relpath(site_path(name), posixpath.dirname(page) or ".")
        return f"]({target}{link['anchor'] or ''})"

    return LINK.sub(of_site, markdown)


def without_escapes(row: re.Match[str]) -> str:
    """A row of a table whose code has ``|`` in place of ``\\|``, which Python-Markdown would show
    as it is.
    """
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])


def site_path(name: str) -> str:
    """The path in the site of what a file of the repository becomes."""
    if name in PAGES:
        return PAGES[name]
    return f"{name}.md" if name.endswith(".toml") else name.removeprefix("docs/")


def _names(patterns: tuple[str, ...]) -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)
    )
