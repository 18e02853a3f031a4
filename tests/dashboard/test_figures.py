"""Figures in a real Chromium, by themselves: without data at first, then with some."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or ""
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium (apt-get install chromium)"),
]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
embed = pytest.importorskip("bokeh.embed", reason="needs Bokeh (pip install 'malletrain[dashboard]')")

IDLE = "() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle"
RANGES = """() => Bokeh.documents[0].roots().map((plot) => [
  plot.name, plot.x_range.start, plot.x_range.end, plot.y_range.start, plot.y_range.end])"""
PATIENCE = 120_000
TIME = 1_000_000_000_000.0
MARKS: dict[str, list[Any]] = {
    "time": [TIME],
    "nodes": [3],
    "kind": ["preemption"],
    "marker": ["x"],
    "colour": ["#000000"],
}
CURVE: dict[str, list[Any]] = {
    "nodes": [1.0, 4.0],
    "rate": [10.0, 30.0],
    "low": [9.0, 10.0],
    "high": [11.0, 90.0],
    "source": ["declared", "measured"],
    "steps": [0, 12],
    "marker": ["square", "circle"],
}
STALLS: dict[str, list[Any]] = {
    "time": [TIME],
    "seconds": [0.4],
    "change": ["1 → 2"],
    "kind": ["growth"],
    "marker": ["triangle"],
    "colour": ["#000000"],
}
DATA: dict[str, dict[str, list[Any]]] = {
    "use": {"time": [], **{use: [] for use in ("training", "booting", "stalled", "stopping", "unassigned")}},
    "samples": {"time": [], "trained": [], "free": [], "static": []},
    "releases": {"time": [], "seconds": [], "job": []},
    "line": {"time": [], "nodes": []},
    "rate": {"time": [], "rate": [], "nodes": []},
    "marks": MARKS,
    "curve": CURVE,
    "fit": {"nodes": [], "rate": []},
    "stalls": STALLS,
    "worth": {name: [] for name in ("job", "one_more", "one_fewer", "more_row", "fewer_row")},
    "survival": {"seconds": [], "share": [], "stay": []},
}


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """All figures, with empty sources whose names are those of `DATA`."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        opened = browser.new_page()
        opened.set_content(_html(), timeout=PATIENCE)
        opened.wait_for_function(IDLE, timeout=PATIENCE)
        yield opened
        browser.close()


def _html() -> str:
    from bokeh.models import ColumnDataSource
    from bokeh.resources import INLINE

    from malletrain.dashboard.figures import plots
    from malletrain.dashboard.figures.colours import LIGHT, THEMES

    colours, times = THEMES[LIGHT], plots.time_range(TIME / 1000 - 60, TIME / 1000 + 60)
    sources = {
        name: ColumnDataSource(name=name, data={column: [0.0] if name == "use" else [] for column in columns})
        for name, columns in DATA.items()
    }
    figures = [
        plots.use_figure(times, sources["use"], colours),
        plots.samples_figure(times, sources["samples"], colours),
        plots.releases_figure(times, sources["releases"], colours),
        plots.scale_figure(times, sources["line"], sources["marks"], colours),
        plots.rate_figure(times, sources["rate"], colours),
        plots.curve_figure(sources["curve"], sources["fit"], colours),
        plots.stalls_figure(times, sources["stalls"]),
        plots.worth_figure(sources["worth"], [], colours),
        plots.survival_figure(sources["survival"], colours),
        plots.stay_figure(sources["survival"], colours),
    ]
    return str(embed.file_html(figures, INLINE, "figures"))


def test_figures_without_data_have_axes(page: Any) -> None:
    found = page.evaluate(RANGES)
    assert len(found) == 10
    for name, *ends in found:
        assert all(isinstance(end, (int, float)) and math.isfinite(end) for end in ends), (name, ends)
        assert ends[0] < ends[1], name
        assert ends[2] < ends[3], name


def test_legends_and_ranges_follow_data_that_come_later(page: Any) -> None:
    for name in ("marks", "curve", "stalls"):
        page.evaluate(
            """([name, data]) => {
              for (const plot of Bokeh.documents[0].roots())
                for (const renderer of plot.renderers)
                  if (renderer.data_source.name === name) renderer.data_source.data = data;
            }""",
            [name, DATA[name]],
        )
    page.wait_for_function(IDLE, timeout=PATIENCE)
    for label in ("preemption", "commanded nodes", "declared", "measured", "growth"):
        playwright.expect(page.get_by_text(label, exact=True)).to_be_visible(timeout=PATIENCE)
    curve = next(row for row in page.evaluate(RANGES) if row[0] == "curve")
    assert curve[4] >= 90.0
