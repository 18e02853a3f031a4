"""A page as a notebook: its prose and its Python blocks as cells, for who would rather run it than read it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

SOURCE = "docs/tutorial.md"
PAGE = "reference/tutorial.ipynb"
_SITE_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")
_BLOCK = re.compile(
    r"^(?:<!-- docs-test: file: (?P<file>[\w.]+) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_ONLY_ON_THE_PAGE = re.compile(r"^\[This page as a notebook\].*?(?=^## )", re.MULTILINE | re.DOTALL)


def notebook(markdown: str) -> str:
    """The page as a notebook in Jupyter's format 4.5, without outputs.

    A block that stands for a file becomes a cell that writes it. Links to other pages of the site become their text.

    Args:
        markdown: The page as it is in the repository.
    """
    parts = [(kind, text.strip()) for kind, text in _parts(markdown) if text.strip()]
    cells = [_cell(number, kind, text) for number, (kind, text) in enumerate(parts)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _parts(markdown: str) -> Iterator[tuple[str, str]]:
    position = 0
    text = _ONLY_ON_THE_PAGE.sub("", markdown)
    for block in _BLOCK.finditer(text):
        yield "markdown", _SITE_LINK.sub(r"\1", text[position : block.start()])
        yield "code", f"%%writefile {block['file']}\n{block['code']}" if block["file"] else block["code"]
        position = block.end()
    yield "markdown", _SITE_LINK.sub(r"\1", text[position:])


def _cell(number: int, kind: str, text: str) -> dict[str, object]:
    identifier = hashlib.sha256(f"{number} {text}".encode()).hexdigest()[:8]
    cell: dict[str, object] = {"cell_type": kind, "id": identifier, "metadata": {}, "source": text}
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell
