"""Each page in a real Chromium on five real services: the minute of the browser's tests that CI runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from malletrain.v1 import job_manager_pb2, scavenger_pb2
from tests.dashboard.browsing import (
    BARS,
    NEEDS_CHROMIUM,
    PATIENCE,
    drawn,
    picture,
    replayed,
    worst_contrast,
)
from tests.system.deployment import Deployment

pytestmark = [pytest.mark.browser, pytest.mark.browser_smoke, pytest.mark.timeout(600), NEEDS_CHROMIUM]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["now", "jobs", "job", "compare", "plan", "nodes", "week", "usage"])
def test_each_page_is_drawn_and_readable(page: Any, base: str, job_id: str, name: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{base}/{name}?job={job_id}&node=n1&span=900")
    page.wait_for_function(f"() => document.documentElement.dataset.theme === '{scheme}'", timeout=PATIENCE)
    drawn(page)
    words = {"nodes": "n1", "week": "Choose settings and replay.", "usage": "Usage of all, until"}
    words["compare"] = "Choose an array, a search or a name."
    shown = words.get(name, job_id)
    playwright.expect(page.locator("main")).to_contain_text(shown, timeout=PATIENCE)
    if name == "plan":
        playwright.expect(page.locator(f"#need-{job_id}")).to_contain_text("largest scale", timeout=PATIENCE)
    if name == "job":
        playwright.expect(page.locator("#journal")).to_contain_text("running", timeout=PATIENCE)
    ratio, text = worst_contrast(page)
    assert ratio >= 4.5, text
    assert page.title() != "broken"
    assert page.complaints == []
    picture(page, f"{name}-{scheme}")


def test_a_rescale_appears_by_itself_and_a_job_is_opened(page: Any, base: str, system: Deployment, job_id: str) -> None:
    page.goto(f"{base}/jobs")
    drawn(page)
    # Its scale may be 4 again within a second, before anybody sees that it was not.
    preemptions = page.locator(f"#job-{job_id} td").nth(11)
    playwright.expect(preemptions).to_have_text("0", timeout=PATIENCE)
    now = page.context.new_page()
    now.goto(f"{base}/now")
    drawn(now)
    bars = now.evaluate(BARS)
    stubs = system.stubs
    held = list(stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=60).job.confirmed_nodes)
    stubs.scavenger.ReclaimNodes(scavenger_pb2.ReclaimNodesRequest(nodes=held[:1]), timeout=30)
    stubs.close()
    playwright.expect(preemptions).to_have_text("1", timeout=PATIENCE)
    now.wait_for_function(f"() => {{ const found = {BARS}; return found.length > {len(bars)}; }}", timeout=PATIENCE)
    page.locator(f"#job-{job_id} a").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/job\\?job={job_id}"), timeout=PATIENCE)
    playwright.expect(page.locator("#journal")).to_contain_text("preempted", timeout=PATIENCE, ignore_case=True)
    drawn(page)
    picture(page, "job-preempted")


def test_usage_is_shown_and_exported(page: Any, base: str, job_id: str) -> None:
    assert job_id
    page.goto(f"{base}/usage")
    drawn(page)
    playwright.expect(page.locator("#owners tr")).to_have_count(1, timeout=PATIENCE)
    playwright.expect(page.locator("#projects")).to_contain_text("no project", timeout=PATIENCE)
    page.get_by_role("link", name="Usage").focus()
    with page.expect_download() as download:
        page.get_by_role("link", name="All months as CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("month,owner,project,job,node_hours,")
    assert len(lines) >= 2
    page.locator("#months a").first.click()
    page.wait_for_url(re.compile(r"/usage\?month=20"), timeout=PATIENCE)
    drawn(page)
    picture(page, "usage-month")


def test_the_form_lets_in_who_has_a_token(browser: Any, base: str, operator: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"{base}/login")
    page.get_by_label("Token").fill(operator)
    page.get_by_role("button", name="Show the pages").click()
    page.wait_for_url(re.compile("/now"), timeout=PATIENCE)
    drawn(page)
    context.close()


def test_the_past_is_replayed_with_other_settings(page: Any, base: str, job_id: str) -> None:
    page.goto(f"{base}/week")
    drawn(page)
    page.get_by_label("T_fwd in seconds").fill("240")
    page.get_by_label("Length of the past").select_option("1 day")
    page.get_by_label("Jobs at once").fill("3")
    page.get_by_label("Jobs at once").press("Enter")
    page.wait_for_url(re.compile(r"/week\?.*forward=240"), timeout=PATIENCE)
    replayed(page)
    drawn(page)
    assert page.get_by_label("Jobs at once").input_value() == "3"
    playwright.expect(page.locator("#outcomes tr.chosen")).to_contain_text("T_fwd 240 s, 3 jobs at once")
    playwright.expect(page.locator(f"#job-{job_id}")).to_contain_text("onerror")
    page.wait_for_function(
        "() => Bokeh.documents[0].get_model_by_name('course').renderers[1].data_source.get_length() > 100",
        timeout=PATIENCE,
    )
    ratio, text = worst_contrast(page)
    assert ratio >= 4.5, text
    picture(page, "week-replayed")
    with page.expect_download() as csv:
        page.locator("#figure-course a[download]").click()
    lines = Path(csv.value.path()).read_text().splitlines()
    assert lines[0] == "unix_s,really,replay,free"
    assert float(lines[-1].split(",")[2]) > 0
    with page.expect_download() as png:
        page.locator("#figure-course button").click()
    assert Path(png.value.path()).read_bytes().startswith(b"\x89PNG")
