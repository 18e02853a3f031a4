"""How tables are laid out."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from malletrain.cli.shared.layout import Column, fit, fold_text, join_cells, lines_of, shorten, tab_separated

COLUMNS = (Column("job"), Column("name", rank=1, cut=True), Column("state"), Column("reason", rank=2, cut=True))
ROWS = [
    ("j000001", "a", "RUNNING", "trains on 4 nodes"),
    ("j000002", "resnet-18-on-generated-images", "RESCALING", "n3 left"),
]
TEXTS = st.text(alphabet=string.ascii_letters + " 漢é-\n", max_size=40)


def lines(width: int) -> list[str]:
    layout = fit(COLUMNS, ROWS, width)
    return [join_cells(line) for row in ROWS for line in lines_of(COLUMNS, row, layout)]


def test_a_wide_terminal_shows_everything() -> None:
    assert lines(200) == [
        "j000001  a                              RUNNING    trains on 4 nodes",
        "j000002  resnet-18-on-generated-images  RESCALING  n3 left",
    ]


def test_long_cells_are_cut_first_and_columns_of_the_highest_rank_go_then() -> None:
    assert lines(50)[0] == "j000001  a               RUNNING    trains on 4 n…"
    assert lines(50)[1] == "j000002  resnet-18-on-…  RESCALING  n3 left"
    assert lines(46) == ["j000001  a             RUNNING    trains on 4…", "j000002  resnet-18-o…  RESCALING  n3 left"]
    assert lines(45) == ["j000001  a                          RUNNING", "j000002  resnet-18-on-generated-i…  RESCALING"]


@pytest.mark.parametrize("width", [1, 10, 18])
def test_what_names_a_row_and_its_state_are_never_broken(width: int) -> None:
    assert lines(width) == ["j000001  RUNNING", "j000002  RESCALING"]


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=5), st.integers(20, 120))
def test_lines_fit_wherever_that_is_possible(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = (Column("a"), Column("b", rank=1), Column("c", rank=2, cut=True))
    layout = fit(columns, rows, width)
    least = max(cell_len(line) for row in rows for line in row[0].split("\n"))
    for row in rows:
        for line in lines_of(columns, row, layout):
            assert cell_len(join_cells(line)) <= max(width, least, 1)


@given(TEXTS, st.integers(2, 30))
def test_folding_loses_nothing_but_blanks(text: str, width: int) -> None:
    found = list(fold_text(text, width))
    assert max(map(cell_len, found)) <= width
    assert "".join("".join(found).split()) == "".join(text.split())


def test_texts_fold_between_words_and_long_words_anywhere() -> None:
    assert list(fold_text("no process of ours is left", 12)) == ["no process", "of ours is", "left"]
    assert list(fold_text("abcdefgh", 3)) == ["abc", "def", "gh"]


def test_numbers_end_at_one_place() -> None:
    columns, rows = (Column("job"), Column("samples", right=True)), [("a", "7"), ("b", "1,024")]
    layout = fit(columns, rows, 80)
    assert [join_cells(line) for row in rows for line in lines_of(columns, row, layout)] == [
        "a          7",
        "b      1,024",
    ]


@pytest.mark.parametrize(
    ("text", "cells", "expected"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("two\nlines", 20, "two"),
        ("a b c", 3, "a…"),
        ("漢字漢字", 5, "漢字…"),
        ("", 5, ""),
    ],
)
def test_shortening(text: str, cells: int, expected: str) -> None:
    assert shorten(text, cells) == expected


def test_a_pipe_gets_whole_cells_without_tabs_and_line_ends() -> None:
    assert tab_separated(("a\tb", "x" * 300, "two\nlines", "")) == "a b\t" + "x" * 300 + "\ttwo lines\t"
