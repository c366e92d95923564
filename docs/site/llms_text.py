"""``llms.txt`` of the site: its pages by section, each with its first sentence, in the form of
llmstxt.org. A hook of MkDocs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

FILE = "llms.txt"
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
SENTENCE_END = re.compile(r"(?<=[.:?])\s")
MARKS = re.compile(r"[*`]")
NO_PROSE = ("#", "|", "```", "!", "- ", "<", "::")
"""How lines begin that are no sentence."""

_sections: list[tuple[str, Sequence[Page]]] = []


def on_nav(nav: Navigation, /, **_: Any) -> None:
    """Keep the pages of each section; those of none come first."""
    alone = [item for item in nav.items if isinstance(item, Page)]
    sections = [item for item in nav.items if isinstance(item, Section)]
    _sections[:] = [
        ("Start", alone),
        *((section.title, list(_pages(section.children))) for section in sections),
    ]


def on_post_build(config: MkDocsConfig) -> None:
    text = llms_text(config.site_name, config.site_description or "", _sections)
    (Path(config.site_dir) / FILE).write_text(text, encoding="utf-8")


def llms_text(name: str, description: str, sections: Sequence[tuple[str, Sequence[Page]]]) -> str:
    lines = [f"# {name}", "", f"> {description}"]
    for section, pages in sections:
        lines += ["", f"## {section}", ""]
        for page in pages:
            told = first_sentence(page.markdown or "")
            title = html.unescape(str(page.title))
            lines.append(f"- [{title}]({page.url}){f': {told}' if told else ''}")
    return "\n".join(lines) + "\n"


def first_sentence(markdown: str) -> str:
    """The first one of prose, as plain text; empty where there is none."""
    for block in re.split(r"\n\s*\n", markdown):
        text = " ".join(block.split())
        if text and not text.startswith(NO_PROSE):
            plain = MARKS.sub("", LINK.sub(r"\1", text))
            return SENTENCE_END.split(plain, maxsplit=1)[0].rstrip(":")
    return ""


def _pages(items: Sequence[StructureItem]) -> Iterator[Page]:
    for item in items:
        if isinstance(item, Page):
            yield item
        elif isinstance(item, Section):
            yield from _pages(item.children)
