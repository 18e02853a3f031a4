"""The code blocks of a Markdown page, and what a test does with each.

A comment before a block says so where it is not obvious:

    <!-- docs-test: skip: needs a Slurm cluster -->   the console block is not run, for this reason
    <!-- docs-test: file: train.py -->                the block is written to this file, on which later blocks rely
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"<!-- docs-test: (?P<verb>\w+): (?P<argument>[^>]*?\S) -->\s*\Z")
_ANY_DIRECTIVE = re.compile(r"<!--\s*docs-test")

SHELLS = ("bash", "sh", "shell")


class WrongPageError(Exception):
    """A page has a block that is neither run nor left out with a reason."""


@dataclass(frozen=True)
class Command:
    """One command of a console block.

    Attributes:
        line: Line of the page, from 1.
        text: What the shell is given; of several lines where one ends with a backslash.
        expected: Lines that the page shows as its output; empty: none are shown, and any will do.
    """

    line: int
    text: str
    expected: tuple[str, ...]


@dataclass(frozen=True)
class ConsoleBlock:
    """A console block.

    Attributes:
        line: Line of the page at which it begins, from 1.
        commands: What is typed, in order.
        skipped: Why it is not run; empty: it is run.
    """

    line: int
    commands: tuple[Command, ...]
    skipped: str = ""


@dataclass(frozen=True)
class FileBlock:
    """A block that stands for a file.

    Attributes:
        path: Where the page's reader saves it, relative to the working directory.
        text: What is in it.
    """

    path: str
    text: str


def read_blocks(markdown: str) -> list[ConsoleBlock | FileBlock]:
    """Console blocks and files of a page, in order.

    Raises:
        WrongPageError: a directive stands before no block or is unknown, a block of commands is no `console` block, or
            a console block has no command.
    """
    found: list[ConsoleBlock | FileBlock] = []
    directives = 0
    end = 0
    for fence in _FENCE.finditer(markdown):
        line = markdown[: fence.start()].count("\n") + 1
        directive = _DIRECTIVE.search(markdown[end : fence.start()])
        verb, argument = (directive["verb"], directive["argument"]) if directive else ("", "")
        directives += directive is not None
        end = fence.end()
        if fence["language"] in SHELLS or (not fence["language"] and fence["text"].startswith("$ ")):
            raise WrongPageError(f"line {line}: commands belong into a ```console block")
        if fence["language"] == "console" and verb in ("", "skip"):
            found.append(ConsoleBlock(line, read_commands(fence["text"], line + 1), argument))
        elif verb == "file":
            found.append(FileBlock(argument, fence["text"]))
        elif verb:
            raise WrongPageError(f"line {line}: `docs-test: {verb}` says nothing about this block")
    if directives != len(_ANY_DIRECTIVE.findall(markdown)):
        raise WrongPageError("a docs-test comment does not stand directly before a block, or is misspelt")
    return found


def read_commands(text: str, first_line: int) -> tuple[Command, ...]:
    """Commands of a console block with the output that is shown for each.

    Raises:
        WrongPageError: the block does not begin with a command.
    """
    found: list[Command] = []
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        if not lines[index].startswith("$ "):
            raise WrongPageError(f"line {first_line + index}: expected a command after `$ `, got {lines[index]!r}")
        start = index
        while lines[index].endswith("\\"):
            index += 1
        command = "\n".join([lines[start].removeprefix("$ "), *lines[start + 1 : index + 1]])
        index += 1
        output = index
        while index < len(lines) and not lines[index].startswith("$ "):
            index += 1
        found.append(Command(first_line + start, command, tuple(lines[output:index])))
    if not found:
        raise WrongPageError(f"line {first_line}: a console block without a command")
    return tuple(found)


def matches(expected: Sequence[str], output: str) -> bool:
    """Whether output is what a page shows.

    `...` alone on a line stands for any lines, `...` within a line for any text. Blanks count as one, since columns of
    tables are as wide as their contents.
    """
    pattern = "".join(r"(?:.*\n)*" if line.strip() == "..." else _line_pattern(line) for line in expected)
    shown = "".join(f"{' '.join(line.split())}\n" for line in output.splitlines())
    return re.fullmatch(pattern, shown) is not None


def _line_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in " ".join(line.split()).split("...")) + r"\n"
