"""Charts inside a page."""

from __future__ import annotations

import re

from malletrain.simulator.report.axes import Axis
from malletrain.simulator.report.page import as_markup
from malletrain.simulator.report.plots import Chart, bars, lines

SERIES = {"ours": ([1.0, 2.0], [3e9, 4e9]), "<script>alert(1)</script>": ([1.0, 2.0], [1e9, 2e9])}


def chart(title: str = "x") -> Chart:
    return lines(title, "nodes", Axis("samples", zero=True), SERIES, published={"ours": ([1.0], [2e9])})


def test_it_loads_nothing_and_takes_its_colours_from_the_page() -> None:
    markup = as_markup(chart())
    assert "http" not in markup
    assert "xmlns" not in markup
    assert markup.count("<svg") == 2
    assert "var(--ours)" in markup
    assert "var(--background)" in markup
    # No colour is fixed: in the dark, each is another one.
    assert re.findall(r"#[0-9a-f]{6}\b", markup) == []
    assert "font-family" not in markup


def test_texts_stay_texts() -> None:
    markup = as_markup(chart('a "title" & <b>'))
    assert "<script" not in markup
    assert "&lt;script&gt;" in markup
    assert 'aria-label="a &quot;title&quot; &amp; &lt;b&gt;"' in markup


def test_the_same_chart_gives_the_same_text_and_others_have_other_identifiers() -> None:
    assert as_markup(chart()) == as_markup(chart())
    first, second = (set(re.findall(r'id="([^"]+)"', as_markup(chart(title)))) for title in ("one", "two"))
    assert first
    assert not first & second


def test_every_reference_is_in_the_same_drawing() -> None:
    for drawing in re.findall(r"<svg.*?</svg>", as_markup(chart()), re.DOTALL):
        known = set(re.findall(r'id="([^"]+)"', drawing))
        asked = set(re.findall(r'href="#([^"]+)"', drawing)) | set(re.findall(r"url\(#([^)]+)\)", drawing))
        assert asked
        assert asked <= known


def test_bars_are_drawn_for_both_widths() -> None:
    found = bars("x", "hours", ["a", "b"], {"hours": [1.0, 2.0]})
    assert found is not None
    wide, narrow = re.findall(r'viewBox="0 0 ([0-9.]+) [0-9.]+"', as_markup(found))
    assert float(wide) > 2 * float(narrow)
