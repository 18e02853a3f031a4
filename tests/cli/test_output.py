"""Tables for people."""

from __future__ import annotations

import re

import pytest

from malletrain.cli.shared.output import print_table, shorten

LONG = "worker on n1: exit status 1; restarted 3 times before; the last lines of its log:\nn1 | ValueError: [lr] is NaN"


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_reason_of_several_lines_takes_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "160")
    print_table(("job", "reason"), [("j000001", LONG), ("j000002", "x" * 400)], one_line=True)
    lines = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in printed(capsys)]
    assert len(lines) == 6, "a heading, three rules, and one line for each job"
    assert {len(line) for line in lines} == {160}
    assert "ValueError" not in "".join(lines)
    assert "the last lines of its log:" in lines[3]
    assert lines[4].rstrip(" │").endswith("xxx…")


def test_what_goes_into_a_pipe_has_a_reasons_whole_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("job", "reason"), [("j000001", LONG), ("j000002", "x" * 400)], one_line=True)
    lines = printed(capsys)
    assert len(lines) == 6
    assert "ValueError" not in "".join(lines)
    assert "x" * 400 in lines[4]


def test_elsewhere_nothing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("job", "reason"), [("j000001", LONG)])
    assert "ValueError: [lr] is NaN" in "".join(printed(capsys))


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
