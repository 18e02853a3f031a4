"""Where each page of the site comes from, and where links between files of the repository lead on the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

COPIED = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "licence.md",
    "examples/digits/README.md": "examples/digits.md",
    "examples/nasbench/README.md": "examples/nasbench.md",
}
"""Files outside `docs/` that are pages, by their path in the repository."""

PROTOS = {
    f"protos/malletrain/v1/{path.name}": f"reference/protos/{path.stem}.md"
    for path in sorted((ROOT / "protos/malletrain/v1").glob("*.proto"))
}
"""Reference page of each proto file."""

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+).*?^(?P=indent)(?P=ticks) *$", re.MULTILINE | re.DOTALL)
_TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_SPAN = re.compile(r"`[^`]+`")
_DIRECTIVE = re.compile(r"^<!-- docs-test:.*?-->\n", re.MULTILINE | re.DOTALL)


def written_pages() -> dict[str, str]:
    """Every page that people have written: its path on the site by that of its file in the repository."""
    docs = {str(path.relative_to(ROOT)): str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    return docs | COPIED


def page_text(source: str, page: str) -> str:
    """Markdown of a page that people have written; a file of plain text becomes a block.

    Args:
        source: Path of the file in the repository.
        page: Path of the page on the site.
    """
    text = (ROOT / source).read_text(encoding="utf-8")
    return for_site(text, source, page) if source.endswith(".md") else f"# Licence\n\n```text\n{text.strip()}\n```\n"


def for_site(markdown: str, source: str, page: str) -> str:
    """A file's Markdown as the site needs it: without test directives, and with links to pages of the site.

    A link to a file that is no page of the site becomes its text. A link to nothing stays, so that the strict build
    refuses it.

    Args:
        markdown: Text of the file.
        source: Path of the file in the repository.
        page: Path of the page on the site.
    """
    markdown = _DIRECTIVE.sub("", markdown)
    parts, position = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_relinked(markdown[position : fence.start()], source, page), fence.group()]
        position = fence.end()
    return "".join([*parts, _relinked(markdown[position:], source, page)])


def _pages() -> dict[str, str]:
    """Page of the site by the path of its file; also by the folder of a README."""
    folders = {posixpath.dirname(path): page for path, page in COPIED.items() if "/README" in path}
    return written_pages() | PROTOS | folders


def _relinked(text: str, source: str, page: str) -> str:
    pages = _pages()

    def replace(link: re.Match[str]) -> str:
        target, hash_mark, anchor = link["target"].partition("#")
        if not target or ":" in target:
            return link.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if link["image"]:
            there = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(page) or ".")
            return f"![{link['text']}]({there})"
        if path in pages:
            there = posixpath.relpath(pages[path], posixpath.dirname(page) or ".")
            return f"[{link['text']}]({there}{hash_mark}{anchor})"
        return link["text"] if (ROOT / path).exists() else link.group()

    return _TABLE_ROW.sub(_without_escapes, _LINK.sub(replace, text))


def _without_escapes(row: re.Match[str]) -> str:
    """A row of a table without the backslashes that GitHub wants before bars in code spans, and MkDocs shows."""
    return _SPAN.sub(lambda span: span.group().replace("\\|", "|"), row.group())
