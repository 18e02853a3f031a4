"""Reference page of the command, made by Typer from the verbs' docstrings and options."""

from __future__ import annotations

import re
import subprocess
import sys

_SECTION = re.compile(r"^##+ `malletrain (?P<verb>[a-z ]+)`\n\n(?P<summary>[^\n]+)", re.MULTILINE)


def reference_page() -> str:
    """Markdown of the page.

    Raises:
        subprocess.CalledProcessError: the command can't be imported.
    """
    words = ["typer", "tools.docs.every_verb", "utils", "docs", "--name", "malletrain", "--title", "The command"]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
    # Typer writes text for HTML; in code blocks and code spans a quotation mark must stand as it is.
    text = done.stdout.replace("&#x27;", "'").replace("&quot;", '"')
    head, commands, verbs = text.partition("**Commands**:\n")
    return f"{head}{commands}\n{_contents(verbs)}\n{verbs[verbs.index('## ') :]}"


def _contents(verbs: str) -> str:
    """A list of all verbs with links. Typer's own list cuts the descriptions short."""
    found = [(section["verb"], section["summary"]) for section in _SECTION.finditer(verbs)]
    return "".join(f"* [`{verb}`](#malletrain-{verb.replace(' ', '-')}): {summary}\n" for verb, summary in found)
