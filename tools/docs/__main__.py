"""`python -m tools.docs`: gather the pages of the docs site in `build/docs`, from which MkDocs builds it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.docs import command, drawing, mistakes, notebook, pages, protos, python, settings

OUT = pages.ROOT / "build/docs"
_RANKED_BELOW_GUIDES = "---\nsearch:\n  boost: 0.4\n---\n\n"
"""A reference has a word more often than the guide that explains it; the site's search would show it first."""


def write_pages() -> None:
    """Write every page, in place of those of an earlier call."""
    shutil.rmtree(OUT, ignore_errors=True)
    written = {page: pages.page_text(source, page) for source, page in pages.written_pages().items()}
    generated = protos.reference_pages() | python.reference_pages()
    generated |= {"reference/command.md": command.reference_page(), "reference/settings.md": settings.reference_page()}
    ranked = {page: _RANKED_BELOW_GUIDES + text for page, text in generated.items()}
    for page, text in (written | ranked).items():
        path = OUT / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(Path(__file__).with_name("extra.css"), OUT)
    shutil.copy(drawing.PATH, OUT)
    shutil.copytree(pages.ROOT / "docs/pictures", OUT / "pictures")
    (OUT / "mistakes.md").write_text(mistakes.page(), encoding="utf-8")
    (OUT / notebook.PAGE).write_text(notebook.notebook((pages.ROOT / notebook.SOURCE).read_text(encoding="utf-8")))


if __name__ == "__main__":
    write_pages()
