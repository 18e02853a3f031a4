"""The page of typical mistakes and their answers, made from `mistakes.toml`, which a test goes through."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("mistakes.toml")
_HEAD = """# Typical mistakes

What people write, the words of the answer, and what to write instead. A test makes each of these mistakes on live
services. What goes wrong while jobs run is on another page: [when something is wrong](operators/troubleshooting.md).
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake with its answer.

    Attributes:
        group: Heading on the page.
        wrong: What is written.
        status: Exit status; of Python, 0 where nothing is raised.
        says: Words of the answer.
        right: What to do, in Markdown.
        python: Whether it is Python, and no shell's.
        file: A line of the job file that it names, after its command.
    """

    group: str
    wrong: str
    status: int
    says: tuple[str, ...]
    right: str
    python: bool = False
    file: str = ""


def read_mistakes() -> list[Mistake]:
    """Every mistake, in the order of the page."""
    return [_mistake(entry) for entry in tomllib.loads(PATH.read_text(encoding="utf-8"))["mistake"]]


def _mistake(entry: dict[str, Any]) -> Mistake:
    known = {field.name for field in fields(Mistake)}
    if unknown := entry.keys() - known:
        raise ValueError(f"{PATH.name}: {entry.get('wrong')}: unknown keys {sorted(unknown)}")
    return Mistake(**{**entry, "says": tuple(entry["says"])})


def page() -> str:
    """The page in Markdown."""
    parts = [_HEAD]
    for group, mistakes in groupby(read_mistakes(), key=lambda mistake: mistake.group):
        parts += [f"## {group}\n", *map(_entry, mistakes)]
    return "\n".join(parts)


def _entry(mistake: Mistake) -> str:
    language = "python" if mistake.python else "sh"
    lines = [
        f"```{language}",
        *([f"# with the line: {mistake.file}"] if mistake.file else []),
        mistake.wrong,
        "```",
        "",
    ]
    return "\n".join([*lines, f"> {' … '.join(map(_code, mistake.says))}", "", mistake.right, ""])


def _code(text: str) -> str:
    return f"`` {text} ``"
