"""A document as Markdown, for an issue or an appendix; without images in tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.report.document import Document, Figure, Part, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def markdown(document: Document, folder: str) -> str:
    """A report as Markdown. :param folder: the folder of the figures' files, as links name it."""
    headlines = [
        f"- {escape(one.label)}: **{escape(one.value)}**"
        + (f" ({escape(one.note)})" if one.note else "")
        for one in document.headlines
    ]
    lines = [f"# {escape(document.title)}", escape(document.subtitle), "\n".join(headlines)]
    for section in document.sections:
        lines.append(f"## {escape(section.title)}")
        lines += [_part(part, folder) for part in section.parts]
    return "\n\n".join(lines) + "\n"


def escape(text: str) -> str:
    """``text`` so that Markdown shows it literally."""
    return _SPECIAL.sub(r"\\\1", text)


def _part(part: Part, folder: str) -> str:
    if isinstance(part, Figure):
        address = re.sub(r"([<>\\])", r"\\\1", f"{folder}/{part.name}.png")
        return f"![{escape(part.title)}](<{address}>)\n\n**{escape(part.title)}.** {escape(part.caption)}"
    if isinstance(part, Table):
        return f"{escape(part.caption)}\n\n{_table(part)}"
    if len(part.sentences) == 1:
        return escape(part.sentences[0])
    return "\n".join(f"- {escape(sentence)}" for sentence in part.sentences)


def _table(table: Table) -> str:
    kept = [
        index
        for index in range(len(table.columns))
        if not any(row[index].image for row in table.rows)
    ]
    columns = [table.columns[index] for index in kept]
    rule = "|" + "|".join("---" if column in table.text else "---:" for column in columns) + "|"
    return "\n".join(
        [_row(columns), rule, *(_row([row[index].text for index in kept]) for row in table.rows)]
    )


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(map(escape, texts)) + " |"
