"""Live services, the dashboard and a browser, for the tests that drive it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dashboard.browsing import CHROMIUM, PATIENCE, SECONDS, SETTINGS, running_dashboard, submit, token
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("dashboard"), SETTINGS, seconds=SECONDS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 6, SECONDS, "all nodes")
        yield deployment


@pytest.fixture(scope="module")
def base(system: Deployment) -> Iterator[str]:
    with running_dashboard(system) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def job_id(system: Deployment) -> str:
    return submit(system, "<img src=x onerror=document.title='broken'>", 4)


@pytest.fixture(scope="module")
def operator(system: Deployment) -> str:
    return token(system, "operator")


@pytest.fixture
def page(browser: Any, base: str, operator: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    opened.problems, opened.complaints = [], []
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on("console", lambda said: opened.complaints.append(said.text) if said.type == "error" else None)
    assert context.request.post(f"{base}/login", form={"token": operator}, headers={"Origin": base}).ok
    yield opened
    assert opened.problems == []
    context.close()
