"""Pages of the project, and what can be looked up in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.shell import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")],
    key=lambda page: str(page.relative_to(ROOT)),
)
"""All Markdown files that people have written."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(`+)(?P<text>.+?)\1")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)


def name_of(page: Path) -> str:
    """Path of a page in the repository."""
    return str(page.relative_to(ROOT))


def fences(text: str, language: str) -> Iterator[str]:
    """Blocks of a language; an empty one has none."""
    return (fence["text"] for fence in _FENCE.finditer(text) if fence["language"] == language)


def prose(text: str) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", text)


def spans(text: str) -> Iterator[str]:
    """Code spans of a page, those in blocks left out."""
    return (" ".join(span["text"].split()) for span in _SPAN.finditer(prose(text)))


def links(text: str) -> Iterator[str]:
    """Targets of a page's links, those in blocks and code spans left out."""
    return (link["target"] for link in _LINK.finditer(_SPAN.sub("", prose(text))))


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub and MkDocs make them."""
    titles = (
        re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading["title"]) for heading in _HEADING.finditer(prose(text))
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
