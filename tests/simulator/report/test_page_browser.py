"""The page in a real Chromium: at three widths, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.dashboard.browsing import CHROMIUM, CONTRAST, NEEDS_CHROMIUM
from tests.simulator.report.replayed import uneven, written

pytestmark = [
    pytest.mark.browser,
    NEEDS_CHROMIUM,
]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")

PATIENCE = 120_000
WIDTHS = (390, 1366, 1920)
SIZES = """() => [...document.querySelectorAll("svg text")].filter((text) => text.getBoundingClientRect().width)
  .map((text) => [text.getBoundingClientRect().height, text.textContent])"""
OUTSIDE = """() => [...document.querySelectorAll("svg text, .tile b, p, h1, h2")]
  .filter((element) => element.getBoundingClientRect().width)
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 ||
                       element.getBoundingClientRect().left < -1)
  .map((element) => element.textContent)"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    written(uneven(12), folder, metadata={"nodes": ["n0"], "conversion": {"notes": ["a note " * 30]}})
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        yield opened
        opened.close()


@pytest.fixture(params=[(width, scheme) for width in WIDTHS for scheme in ("light", "dark")], ids=str)
def page(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Any]:
    width, scheme = request.param
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.set_default_timeout(PATIENCE)
    opened.goto(address)
    opened.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    yield opened
    opened.close()


def test_everything_is_read_and_nothing_sticks_out(page: Any) -> None:
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(OUTSIDE) == []
    faint = [found for found in page.evaluate(CONTRAST) if found[0] < 4.5]
    assert faint == []
    small = [found for found in page.evaluate(SIZES) if found[0] < 9]
    assert small == []


def test_each_chart_is_shown_once_in_the_size_of_the_screen(page: Any) -> None:
    narrow = page.viewport_size["width"] < 700
    shown = page.locator("svg:visible")
    assert shown.count() == page.locator("figure").count() >= 5
    assert page.locator(".narrow:visible svg").count() == (shown.count() if narrow else 0)


def test_dark_is_dark(page: Any) -> None:
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(21, 24, 29)" if dark else "rgb(255, 255, 255)")


def test_figures_for_engineers_are_folded_at_first(browser: Any, address: str) -> None:
    opened = browser.new_page()
    opened.goto(address)
    playwright.expect(opened.get_by_text("Samples processed, net", exact=True)).to_be_hidden()
    opened.get_by_text("For engineers").click()
    playwright.expect(opened.get_by_text("Samples processed, net", exact=True)).to_be_visible()
    opened.close()
