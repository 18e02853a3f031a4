"""Reference pages of the interface for Python and of the client, made from their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import malletrain
import malletrain.client
from malletrain.api.options import JobOptions

_HEADS = {
    "malletrain": """# Python

What `import malletrain` offers, from the docstrings. [The guide](../python.md) shows it at work.
""",
    "malletrain.client": """# The client in training scripts

What `malletrain.client` offers, from the docstrings. [The guide](../client.md) shows it at work.
""",
}
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_ENTRY = re.compile(r"^ {4}(\*{0,2}\w+(?:, \w+)*): (.*)$")
_INTERNAL = frozenset({"call", "progress_of", "stubs"})
"""What modules of the interface use of each other."""


def reference_pages() -> dict[str, str]:
    """Markdown of each page, by its path on the site."""
    return {
        "reference/python.md": _page("malletrain", [(name, getattr(malletrain, name)) for name in _names()]),
        "reference/client.md": _page(
            "malletrain.client", [(name, getattr(malletrain.client, name)) for name in malletrain.client.__all__]
        ),
    }


def documented(value: Any) -> list[tuple[str, Any]]:
    """Public methods and properties of a class, those that it has from others of ours included."""
    found = []
    for kind in reversed(value.__mro__):
        if kind.__module__.startswith("malletrain."):
            found += [(name, member) for name, member in vars(kind).items() if not name.startswith("_")]
    last = dict(found)
    return [(name, member) for name, member in last.items() if _is_shown(name, member)]


def _is_shown(name: str, member: Any) -> bool:
    return name not in _INTERNAL and (callable(member) or isinstance(member, property))


def _names() -> list[str]:
    """Functions first, then classes, then errors."""
    first = ("submit", "submit_array", "search", "jobs", "job", "connect", "local")
    others = [name for name in malletrain.__all__ if name not in first and name != "AutoExecutor"]
    return [*first, *sorted(others, key=lambda name: (name.endswith("Error"), name))]


def _page(module: str, entries: list[tuple[str, Any]]) -> str:
    lines = [_HEADS[module]]
    for name, value in entries:
        lines += _entry("##", f"{module}.{name}", name, value)
    if module == "malletrain":
        lines += _entry("##", "Options of jobs", "JobOptions", JobOptions)
    return "\n".join(lines) + "\n"


def _entry(level: str, title: str, name: str, value: Any) -> Iterator[str]:
    yield from (f"{level} {title}", "")
    if inspect.isclass(value):
        if not (is_dataclass(value) or issubclass(value, Exception | Enum | dict)):
            yield from ("```python", f"class {name}{_signature(value)}", "```", "")
        yield from markdown(inspect.getdoc(value) or "")
        if not issubclass(value, Enum | dict | Exception):
            for member_name, member in documented(value):
                yield from _entry("###", f"{name}.{member_name}", member_name, member)
        return
    if isinstance(value, property):
        yield from markdown(inspect.getdoc(value) or "")
        return
    start = "async def" if inspect.iscoroutinefunction(value) else "def"
    yield from ("```python", f"{start} {name}{_signature(value)}", "```", "")
    yield from markdown(inspect.getdoc(value) or "")


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r"(?<=[:>] )'([^']*)'", r"\1", text)  # annotations, but not defaults
    return re.sub(r"\(self(, )?", "(", text)


def markdown(docstring: str) -> Iterator[str]:
    """A docstring in Google's form as Markdown: its sections as lists."""
    in_list = False
    for line in docstring.splitlines():
        if section := _SECTION.match(line):
            in_list = True
            yield from (f"**{section[1]}**", "")
        elif in_list and (entry := _ENTRY.match(line)):
            yield f"- `{entry[1]}`: {entry[2]}"
        elif in_list and line.startswith("    "):
            yield f"  {line.strip()}"
        else:
            in_list = in_list and not line.strip()
            yield line
    yield ""
