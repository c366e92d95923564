"""Documents are written in short sentences."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MOST_WORDS = 30

CODE_BLOCK = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"\]\([^)]*\)")
CODE = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)
LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
SENTENCE_END = re.compile(r"(?<=[.!?])[*_\"”’)\]]*\s+(?=[*_\"“‘(\[]*[A-Z0-9])")


def passages(markdown: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables. Code in a line counts as one word, a link as its text."""
    text = CODE.sub("CODE", TARGET.sub("]", CODE_BLOCK.sub("", markdown)))
    passage = ""
    for line in text.splitlines():
        begins = LIST_ITEM.match(line)
        if begins or not line.strip() or line.lstrip().startswith(("#", "|")):
            yield passage
            passage = ""
        if line.lstrip().startswith("|"):
            yield from line.split("|")
        else:
            passage += " " + line[begins.end() if begins else 0 :]
            if line.startswith("#"):
                yield passage
                passage = ""
    yield passage


def long_sentences(markdown: str) -> list[str]:
    sentences = [sentence for passage in passages(markdown) for sentence in SENTENCE_END.split(passage.strip())]
    return [sentence for sentence in sentences if len(re.findall(r"\S*\w\S*", sentence)) > MOST_WORDS]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_sentence_has_more_than_30_words(document: Path) -> None:
    assert long_sentences(document.read_text(encoding="utf-8")) == []


def test_words_of_a_sentence_are_counted_over_lines_and_without_code_and_addresses() -> None:
    thirty = "word " * 24 + "\nand `python -m orchestrator` and\n[two words](https://example.org/a-b) **end**."
    assert long_sentences(f"# Title\n\n{thirty} Another one.\n\n```\n{'word ' * 40}\n```\n") == []
    assert len(long_sentences(f"- one {thirty}\n- {thirty}\n\n| {thirty.replace(chr(10), ' ')} | two |\n")) == 1
    assert len(long_sentences(f"| one {thirty} |".replace("\n", " "))) == 1
