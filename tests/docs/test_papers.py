"""The page on the papers is made of its data, and what these name exists."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import typer.main

from malletrain.cli.main import application
from tools.docs.pages import ROOT
from tools.docs.papers import PAGE, PAPERS, STATES, PaperRow, page, read_rows

ROWS = read_rows()


def defines(text: str, name: str) -> bool:
    """Whether a file of Python defines a function, class or constant of that name."""
    return re.search(rf"^\s*((async )?def|class) {name}\b|^{name}\b.*=", text, re.MULTILINE) is not None


def missing(reference: str) -> str:
    """What is wrong with FILE or FILE:NAME; empty if nothing is."""
    file, _, name = reference.partition(":")
    path = ROOT / file
    if not path.is_file():
        return f"{file} is no file"
    if name and not defines(path.read_text(encoding="utf-8"), name):
        return f"{file} has no {name}"
    return ""


def known_command(line: str) -> bool:
    command = typer.main.get_command(application())
    found = command
    for word in line.split()[1:]:
        commands = getattr(found, "commands", None)
        if commands is None:
            return found is not command  # an argument of a command
        if word not in commands:
            return False
        found = commands[word]
    return found is not command


def test_the_page_is_made_of_the_data() -> None:
    """`python -m tools.docs.papers` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page(ROWS)


def test_each_paper_has_rows_and_none_twice() -> None:
    assert {row.paper for row in ROWS} == set(PAPERS)
    assert len(ROWS) >= 60
    assert [item for item, count in Counter((row.paper, row.item) for row in ROWS).items() if count > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper}: {row.item}"[:60])
def test_what_a_row_names_exists(row: PaperRow) -> None:
    assert row.state in STATES
    assert "|" not in row.item + row.note, "it would end the cell of the table"
    assert row.state == "done" or row.note, "it says what differs, and why"
    if row.state == "not done":
        assert (row.code, row.checked) == ((), ())
        return
    assert row.code
    assert row.checked
    commands = [one for one in row.checked if one.startswith("malletrain ")]
    assert all(map(known_command, commands))
    files = [*row.code, *(one for one in row.checked if one not in commands)]
    assert [told for told in map(missing, files) if told] == []
    assert all(one.startswith(("tests/", "benchmarks/")) for one in row.checked if one not in commands)


def test_it_notices_what_is_not_there() -> None:
    assert missing("tools/docs/papers.py:read_rows") == ""
    assert missing("tools/docs/papers.py:nothing") == "tools/docs/papers.py has no nothing"
    assert missing("tools/docs/nothing.py") == "tools/docs/nothing.py is no file"
    assert known_command("malletrain reproduce bbsched")
    assert known_command("malletrain trace describe")
    assert not known_command("malletrain guess")
