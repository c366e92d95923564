"""A document as one web page that needs no other file, no script and no network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from importlib.resources import files

from orchestrator.report.document import Document
from orchestrator.report.drawing import Rendered


def html(document: Document, drawings: Mapping[str, Rendered], *, has_files: bool = True) -> str:
    """Return the page of a report.

    :param drawings: figure name → figure.
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
        drawings={name: b64encode(drawing.svg).decode() for name, drawing in drawings.items()},
        kind=lambda part: type(part).__name__.lower(),
        zip=zip,
    )
