"""The docs site in a real Chromium: what its pages show, and what its copy buttons copy."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browsing import CHROMIUM, NEEDS_CHROMIUM, PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.browser_smoke, pytest.mark.timeout(600), NEEDS_CHROMIUM]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
ROOT = Path(__file__).parents[2]


class SilentHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "tools.docs"], cwd=ROOT, check=True)
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    handler = functools.partial(SilentHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE)
        yield context.new_page()
        browser.close()


def test_a_copied_block_has_its_commands_only(site: str, page: Any) -> None:
    page.goto(f"{site}/readme.html")
    block = page.locator("div.highlight", has_text="malletrain submit --name digits").first
    assert "j000001" in block.inner_text()
    block.hover()
    block.locator("button[data-md-type=copy], button.md-clipboard").first.click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).includes('submit')", timeout=PATIENCE)
    lines = [line for line in page.evaluate("navigator.clipboard.readText()").splitlines() if line]
    assert all(line.startswith("malletrain ") for line in lines), lines


def test_the_home_page_has_its_pictures_and_leads_each_reader_on(site: str, page: Any) -> None:
    page.goto(f"{site}/index.html")
    page.wait_for_function("() => Array.from(document.images).every((image) => image.complete)", timeout=PATIENCE)
    widths = page.evaluate("Array.from(document.querySelectorAll('article img')).map((image) => image.naturalWidth)")
    assert len(widths) == 5
    assert all(width > 600 for width in widths), widths
    for name in ("Tutorial: from a script to a sweep", "Quick start", "Architecture"):
        assert page.get_by_role("link", name=name).count() >= 1


def test_the_search_shows_the_guide_before_the_references(site: str, page: Any) -> None:
    page.goto(f"{site}/index.html")
    page.get_by_role("textbox", name="Search").fill("submit array")
    first = page.locator(".md-search-result__link").first
    first.wait_for(timeout=PATIENCE)
    assert "many-runs" in first.get_attribute("href")


def test_the_tutorial_can_be_had_as_a_notebook(site: str, page: Any) -> None:
    page.goto(f"{site}/tutorial.html")
    link = page.get_by_role("link", name="This page as a notebook").get_attribute("href")
    answer = page.context.request.get(f"{site}/{link}")
    assert answer.ok
    assert answer.json()["nbformat"] == 4
