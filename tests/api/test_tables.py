"""Tables of jobs in notebooks and terminals: what users have written is text in them, and nothing else."""

from __future__ import annotations

from malletrain.api.job import changed_lines, facts_html, table_html, table_text

ATTACK = "<script>alert(1)</script>"


def test_html_of_users_is_escaped() -> None:
    shown = table_html(("job", ATTACK), [("j1", ATTACK)]) + facts_html({ATTACK: ATTACK})
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;") == 4


def test_long_cells_are_cut_and_control_characters_shown() -> None:
    text = table_text(("job", "reason"), [("j1", "\x1b[31m" + "x" * 500)])
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 220
    assert text.splitlines()[1].endswith("…")


def test_columns_are_aligned() -> None:
    assert table_text(("job", "name"), [("j000001", "a"), ("j2", "bc")]) == "job      name\nj000001  a\nj2       bc"


def test_no_jobs() -> None:
    assert table_text(("job",), []) == "no jobs"
    assert "no jobs" in table_html(("job",), [])
    assert facts_html({"job": "j1", "reason": ""}).count("<tr>") == 1


def test_only_lines_with_news_are_shown_again() -> None:
    columns, first = ("job", "state", "samples"), [("j1", "RUNNING", "1"), ("j2", "QUEUED", "0")]
    later = [("j1", "RUNNING", "9"), ("j2", "RUNNING", "0")]
    assert changed_lines(columns, None, first) == table_text(columns, first)
    assert changed_lines(columns, first, later, ["samples"]) == "j2   RUNNING  0"
    assert changed_lines(columns, first, [("j1", "RUNNING", "9"), first[1]], ["samples"]) == ""
    assert changed_lines(columns, None, []) == "no jobs"
    assert changed_lines(columns, [], []) == ""
