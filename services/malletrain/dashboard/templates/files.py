"""Styles and scripts of the pages, as they are served: with a version, and compressed once."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

SCRIPTS = "bokeh.min.js"
SCRIPTS_COOKIE = "scripts"
"""Has the version of the scripts that a browser has been sent."""
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class File:
    """A file for browsers.

    Attributes:
        type: Its media type.
        content: What is in it.
        compressed: The same by gzip.
        version: Differs when its content does.
    """

    type: str
    content: bytes
    compressed: bytes
    version: str


@cache
def file_named(name: str) -> File | None:
    """A file; None where there is none of this name."""
    known = {
        "page.css": ("text/css", _FOLDER / "page.css"),
        "page.js": ("text/javascript", _FOLDER / "page.js"),
        SCRIPTS: ("text/javascript", files("bokeh") / "server/static/js/bokeh.min.js"),
    }
    if name not in known:
        return None
    media_type, path = known[name]
    content = path.read_bytes()
    return File(media_type, content, gzip.compress(content, mtime=0), hashlib.sha256(content).hexdigest()[:16])


def scripts_version() -> str:
    """The present version of the scripts that draw figures."""
    scripts = file_named(SCRIPTS)
    return scripts.version if scripts is not None else ""


def address_of(name: str) -> str:
    """The address at which browsers find a file in its present version."""
    file = file_named(name)
    if file is None:
        raise KeyError(name)
    return f"/files/{name}?v={file.version}"
