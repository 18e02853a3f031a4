"""The pages in a real Chromium, on five real services with virtual nodes: what takes longer, or is rarer."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from malletrain.observer.troubles import NAMES
from tests.dashboard.browsing import (
    NEEDS_CHROMIUM,
    PATIENCE,
    SECONDS,
    drawn,
    picture,
    replayed,
    status,
    submit,
    token,
)
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200), NEEDS_CHROMIUM]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
SHOWN_BY = {
    "scavenger": ("now", "jobs", "nodes"),
    "monitor": ("now", "jobs", "job"),
    "profiler": ("now", "jobs", "job"),
    "allocator": ("plan",),
    "job_manager": ("now", "jobs", "job", "nodes"),
}
"""The pages that show what a service tells, by the service."""


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1366, 768), (1920, 1080), (3840, 2160)])
@pytest.mark.parametrize("name", ["now", "jobs", "job", "compare", "plan", "nodes", "week", "usage"])
def test_pages_fit_screens_from_telephones_to_walls(
    page: Any, base: str, job_id: str, name: str, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{base}/{name}?job={job_id}&node=n1&span=900")
    drawn(page)
    beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert beyond <= 0, f"{beyond} px are beyond the screen"
    places = "Array.from(document.querySelectorAll('.plot')).map((place) => place.getBoundingClientRect().width)"
    for plot in page.evaluate(places):
        assert plot >= 300
    picture(page, f"{name}-{width}")


def test_an_earlier_plan_is_shown_by_its_number(page: Any, base: str, job_id: str) -> None:
    page.goto(f"{base}/plan?job={job_id}")
    drawn(page)
    page.get_by_label("Plan number").fill("1")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url(re.compile(r"/plan\?.*plan=1"), timeout=PATIENCE)
    playwright.expect(page.locator("#plan dd").first).to_have_text("1", timeout=PATIENCE)
    page.goto(f"{base}/plan?plan=4000")
    playwright.expect(page.locator("#plan")).to_contain_text("plan 4000 is not kept; the newest is", timeout=PATIENCE)


def test_pages_say_which_service_is_gone_and_recover(page: Any, base: str, system: Deployment, job_id: str) -> None:
    pages = {name: page.context.new_page() for name in dict.fromkeys(sum(SHOWN_BY.values(), ()))}
    for name, opened in pages.items():
        opened.goto(f"{base}/{name}?job={job_id}")
        drawn(opened)
        playwright.expect(opened.locator("#services")).to_be_empty(timeout=PATIENCE)
    for service, names in SHOWN_BY.items():
        os.kill(system.pids()[service], signal.SIGKILL)
        for name in names:
            banner = pages[name].locator("#services")
            playwright.expect(banner).to_contain_text(f"{NAMES[service]} does not answer", timeout=PATIENCE)
        picture(pages[names[0]], f"{names[0]}-without-{service}")
        for name in names:
            playwright.expect(pages[name].locator("#services")).to_be_empty(timeout=PATIENCE)
    added = submit(system, "after all were killed", 2)
    for name in ("now", "jobs", "plan", "nodes"):
        playwright.expect(pages[name].locator("main")).to_contain_text(added, timeout=PATIENCE)


def test_documents_that_are_made_ahead_live_and_are_their_viewers(
    browser: Any, page: Any, base: str, system: Deployment, job_id: str
) -> None:
    address = f"{base}/jobs?job={job_id}&span=600"
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    done = system.command("token", "--user", "eve", "--role", "viewer", "--lifespan", "1h")
    assert context.request.post(f"{base}/login", form={"token": done.stdout.strip()}, headers={"Origin": base}).ok
    other = context.new_page()

    # A document is prepared a moment after its page was drawn, and whoever comes next takes it: only the other comes.
    page.goto(address)
    drawn(page)

    def made_ahead() -> bool:
        answer = other.goto(address)
        drawn(other)
        return "made ahead" in (answer.header_value("server-timing") or "")

    wait_until(made_ahead, SECONDS, "a document that was made ahead")
    playwright.expect(other.locator(".viewer")).to_have_text("eve (viewer)")
    added = submit(system, "after that", 1)
    for opened in (page, other):
        playwright.expect(opened.locator(f"#job-{added}")).to_contain_text("after that", timeout=PATIENCE)
    context.close()


def test_files_are_kept_by_browsers_and_pages_are_not(page: Any, base: str) -> None:
    told: dict[str, dict[str, str]] = {}
    page.on("response", lambda answer: told.update({answer.url.removeprefix(base).partition("?")[0]: answer.headers}))
    page.goto(f"{base}/now")
    drawn(page)
    for name in ("page.css", "page.js", "bokeh.min.js"):
        headers = told[f"/files/{name}"]
        assert "immutable" in headers["cache-control"], name
        assert headers["content-encoding"] == "gzip", name
        assert headers["x-content-type-options"] == "nosniff", name
    assert told["/now"]["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in told["/now"]["content-security-policy"]
    assert status(f"{base}/files/templates.py") == 404


def test_nobody_without_a_valid_token_sees_anything(base: str, browser: Any) -> None:
    assert status(f"{base}/login") == 401
    assert status(f"{base}/login?token=nonsense") == 401
    assert status(f"{base}/csv/now/nodes") == 401
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"{base}/now")
    playwright.expect(page.locator("h1")).to_have_text("No token")
    assert status(f"{base}/alive", {"Host": "evil.example:80"}) == 404
    context.close()


def test_a_viewer_does_not_see_what_others_run(browser: Any, base: str, system: Deployment, job_id: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"{base}/login?token={token(system, 'viewer')}")
    page.get_by_role("button", name="Show the pages").click()
    page.wait_for_url(re.compile("/now"), timeout=PATIENCE)
    (cookie,) = [entry for entry in context.cookies() if entry["name"].startswith("malletrain_")]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.goto(f"{base}/job?job={job_id}")
    playwright.expect(page.locator("#log")).to_contain_text("not permitted", timeout=PATIENCE)
    assert "sleep" not in page.content()
    context.close()


def test_figures_are_exported(page: Any, base: str) -> None:
    page.goto(f"{base}/now?span=900")
    drawn(page)
    with page.expect_download() as csv:
        page.locator("#figure-nodes a[download]").click()
    assert Path(csv.value.path()).read_text().startswith("node,job,from_unix_s,until_unix_s\n")
    with page.expect_download() as csv:
        page.locator("#figure-use a[download]").click()
    assert Path(csv.value.path()).read_text().startswith("unix_s,training,booting,stalled,stopping,unassigned\n")
    with page.expect_download() as png:
        page.locator("#figure-nodes button").click()
    assert Path(png.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("job_id")
def test_what_ifs_of_the_same_past_are_compared(page: Any, base: str) -> None:
    page.goto(f"{base}/week?forward=240&days=1&places=3")
    drawn(page)
    page.get_by_role("button", name="Replay", exact=True).click()
    replayed(page)
    drawn(page)
    first = page.url
    page.get_by_label("Who decides").select_option("the same number for each job")
    page.get_by_role("button", name="Replay", exact=True).click()
    page.wait_for_url(re.compile("policy=equal"), timeout=PATIENCE)
    replayed(page)
    playwright.expect(page.locator("#outcomes tr")).to_have_count(3, timeout=PATIENCE)
    page.goto(first)
    playwright.expect(page.locator("#outcomes tr.chosen")).to_contain_text("T_fwd 240 s", timeout=PATIENCE)


def test_a_replay_is_cancelled_and_others_see_no_names(
    browser: Any, page: Any, base: str, system: Deployment, job_id: str
) -> None:
    page.goto(f"{base}/week?places=7&days=1")
    drawn(page)
    page.get_by_role("button", name="Replay", exact=True).click()
    page.get_by_role("button", name="Cancel the replay").click(timeout=PATIENCE)
    playwright.expect(page.locator("#replay-status")).to_contain_text("it was cancelled", timeout=PATIENCE)
    page.get_by_role("button", name="Replay", exact=True).click()
    replayed(page)
    address = page.url
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    done = system.command("token", "--user", "eve", "--role", "viewer", "--lifespan", "1h")
    assert context.request.post(f"{base}/login", form={"token": done.stdout.strip()}, headers={"Origin": base}).ok
    other = context.new_page()
    other.goto(address)
    playwright.expect(other.locator(f"#job-{job_id}")).to_contain_text("–", timeout=PATIENCE)
    assert "onerror" not in other.locator("#compared").inner_text()
    refused = context.request.post(f"{base}/week/replay", headers={"Origin": "http://evil.example"})
    assert refused.status == 403
    context.close()
