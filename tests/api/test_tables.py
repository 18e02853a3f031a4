"""Tables of jobs in notebooks and terminals: what users have written is text in them, and nothing else."""

from __future__ import annotations

from malletrain.api.tables import facts_html, table_html, table_text

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
