"""In which colour a terminal shows a line of a log: by its level, as loggers and Python itself write it. Pure."""

from __future__ import annotations

import re

_LOOKED_AT = 300
"""Characters at the beginning of a line in which its level stands."""
_LEVEL = re.compile(
    r"\b(?P<error>CRITICAL|FATAL|ERROR|SEVERE|PANIC)\b|\b(?P<warning>WARN|WARNING)\b|\b(?P<debug>DEBUG|TRACE)\b"
    r"|(?:^|[\[<(])\s*(?:(?P<error2>critical|fatal|error)|(?P<warning2>warn|warning)|(?P<debug2>debug))\s*[\]>):]"
)
_GLOG = re.compile(r"([EFW])\d{4} \d\d:\d\d:\d\d")
_RAISED = re.compile(r"(?:Traceback \(most recent call last\):|[\w.]*(?:Error|Exception|Interrupt)(?::|$))")
_WARNED = re.compile(r"\b\w*Warning: ")
_STYLES = {"error": "red", "warning": "yellow", "debug": "dim"}


def style_of(line: str) -> str:
    """The style of a line; empty: none.

    Args:
        line: As "n017 | text".
    """
    text = line.partition(" | ")[2][:_LOOKED_AT]
    if found := _LEVEL.search(text):
        return _STYLES[str(found.lastgroup).rstrip("2")]
    if found := _GLOG.match(text):
        return _STYLES["warning" if found[1] == "W" else "error"]
    if _RAISED.match(text):
        return _STYLES["error"]
    return _STYLES["warning"] if _WARNED.search(text) else ""
