"""Every message that the page on trouble-shooting quotes is in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.markdown import fences
from tests.docs.shell import ROOT

PAGE = ROOT / "docs/operators/troubleshooting.md"
SOURCES = (ROOT / "services/malletrain", ROOT / "clients/malletrain")
GAP = "\0"
"""Stands for what is filled into a text."""


def quoted() -> list[str]:
    """The messages of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return [line for block in fences(text, "text") for line in block.splitlines()]


@cache
def texts() -> tuple[str, ...]:
    """Every text in the code, with gaps where something is filled in."""
    return tuple(
        text
        for source in SOURCES
        for path in source.rglob("*.py")
        for text in texts_in(path.read_text(encoding="utf-8"))
    )


def texts_in(code: str) -> Iterator[str]:
    """The texts of a module; those that stand alone, as docstrings do, are said to nobody."""
    tree = ast.parse(code)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return (text for node in ast.walk(tree) if id(node) not in alone and (text := _text(node)))


def _text(node: ast.AST) -> str:
    match node:
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else GAP for part in parts)
        case ast.Constant(value=str(value)):
            return value
    return ""


def fragments(message: str) -> Iterator[str]:
    """The parts of a message that stand in the code as they are."""
    return (part.strip(" .:;,()") for part in message.split("...") if part.strip(" .:;,()"))


def test_docstrings_are_no_messages() -> None:
    code = '"""Module."""\nX = "said"\n"""Of X."""\ndef f():\n    """Function."""\n    say(f"{X} to all")\n'
    assert set(texts_in(code)) == {"said", f"{GAP} to all", " to all"}


def test_the_page_quotes_messages() -> None:
    assert len(quoted()) > 30


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_in_the_code(message: str) -> None:
    wanted = list(fragments(message))
    assert any(_in_order(wanted, text) for text in texts()), f"no text of the code has {wanted} in this order"


def _in_order(wanted: list[str], text: str) -> bool:
    place = 0
    for part in wanted:
        if (place := text.find(part, place)) < 0:
            return False
        place += len(part)
    return True
