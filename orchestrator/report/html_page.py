"""A document as one web page that needs no other file, no script and no network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

from orchestrator.report.document import Document
from orchestrator.report.drawing import COLOURS, Rendered

AFTER_PART = re.compile(r"(?<=[A-Za-z][._/])(?=[A-Za-z])")
"""Where a narrow column may break a long name, such as that of a key or a path."""
ZERO_WIDTH_SPACE = "\u200b"


def html(document: Document, drawings: Mapping[str, Rendered], *, has_files: bool = True) -> str:
    """The page of a report.

    :param drawings: figure name → figure. Their SVG is inserted as it is, every other text is
        escaped.
    :param has_files: whether the figures lie beside the page as well.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("orchestrator.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        document=document,
        has_files=has_files,
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        light={name: colour.light for name, colour in COLOURS.items()},
        dark={name: colour.dark for name, colour in COLOURS.items()},
        drawings={name: Markup(drawing.inline) for name, drawing in drawings.items()},  # noqa: S704 - made by drawing.py
        kind=lambda part: type(part).__name__.lower(),
        breakable=lambda text: Markup("<wbr>").join(AFTER_PART.split(text)),
        breakable_label=lambda text: ZERO_WIDTH_SPACE.join(AFTER_PART.split(text)),
    )
