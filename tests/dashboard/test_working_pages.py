"""Working with the pages in a real Chromium on real services: search, sort, actions as the viewer, local time."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest

from tests.dashboard.browsing import NEEDS_CHROMIUM, PATIENCE, SECONDS, drawn, picture, token, worst_contrast
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment

pytestmark = [pytest.mark.browser, pytest.mark.browser_smoke, pytest.mark.timeout(600), NEEDS_CHROMIUM]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")

SHOWN = (
    "() => [...document.querySelectorAll('#jobs tr[id]')].filter((row) => !row.hidden).map((row) => row.id.slice(4))"
)


@pytest.fixture(scope="module")
def jobs(system: Deployment) -> list[str]:
    """Three jobs, whose names do not follow their order; the second one is cancelled."""
    found = []
    for name, most in (("bravo", 1), ("charlie", 2), ("alpha", 3)):
        done = system.command(
            "submit", "--backend", "command", "--max", str(most), "--name", name, "--", "sleep", "9999"
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
    assert system.command("cancel", found[1]).returncode == 0
    wait_until(lambda: system.json("job", found[1])["state"] == "CANCELLED", SECONDS, "its end")
    wait_until(lambda: system.json("job", found[2])["state"] == "RUNNING", SECONDS, "a running job")
    return found


def shown(page: Any, expected: list[str]) -> None:
    page.wait_for_function(
        f"(expected) => JSON.stringify(({SHOWN})()) === expected", arg=_json(expected), timeout=PATIENCE
    )


def _json(names: list[str]) -> str:
    return "[" + ",".join(f'"{name}"' for name in names) + "]"


def test_jobs_are_searched_sorted_and_chosen_by_state(page: Any, base: str, jobs: list[str]) -> None:
    bravo, charlie, alpha = jobs
    page.goto(f"{base}/jobs")
    drawn(page)
    shown(page, [bravo, alpha, charlie])
    page.get_by_role("button", name="name", exact=True).click()
    shown(page, [alpha, bravo, charlie])
    assert page.locator("th[aria-sort=ascending]").text_content() == "name"
    page.get_by_role("button", name="name", exact=True).click()
    shown(page, [charlie, bravo, alpha])
    page.get_by_label("State").select_option("unended")
    shown(page, [bravo, alpha])
    page.get_by_label("Search").fill("alp")
    shown(page, [alpha])
    playwright.expect(page.locator(".arrange output")).to_have_text("1 of 3")
    picture(page, "jobs-searched")
    page.reload()
    drawn(page)
    shown(page, [alpha])
    page.get_by_label("Search").fill("nothing like it")
    shown(page, [])
    page.get_by_label("Search").fill("")
    page.get_by_label("State").select_option("cancelled")
    shown(page, [charlie])
    assert page.locator(f"#job-{charlie} .state.cancelled").text_content() == "cancelled"
    ratio, text = worst_contrast(page)
    assert ratio >= 4.5, text


def test_a_job_is_cancelled_in_the_name_of_the_viewer(
    page: Any, base: str, system: Deployment, operator: str, jobs: list[str]
) -> None:
    page.goto(f"{base}/job?job={jobs[0]}")
    drawn(page)
    page.locator("#actions summary").click()
    secret = page.get_by_label("Your token")
    assert (secret.get_attribute("type"), secret.get_attribute("autocomplete")) == ("password", "off")
    picture(page, "job-cancel")
    page.get_by_role("button", name=f"Cancel {jobs[0]}").click()
    assert secret.evaluate("field => field.validity.valueMissing"), "nothing is sent without a token"
    secret.fill("not.a.token")
    page.get_by_role("button", name=f"Cancel {jobs[0]}").click()
    playwright.expect(page.locator("h1")).to_have_text("Not done", timeout=PATIENCE)
    assert system.json("job", jobs[0])["state"] in ("RUNNING", "QUEUED", "STARTING", "RESCALING")
    page.get_by_role("link", name="Back").click()
    drawn(page)
    page.locator("#actions summary").click()
    secret.fill(operator)
    page.get_by_role("button", name=f"Cancel {jobs[0]}").click()
    page.wait_for_url(re.compile(f"/job\\?job={jobs[0]}"), timeout=PATIENCE)
    wait_until(lambda: system.json("job", jobs[0])["state"] == "CANCELLED", SECONDS, "its end")
    playwright.expect(page.locator("#actions summary")).to_have_count(0, timeout=PATIENCE)
    audit = (system.folder / "state" / "logs" / "job_manager.log") if (system.folder / "state").exists() else None
    if audit is not None and audit.exists():
        line = next(line for line in audit.read_text().splitlines() if "CancelJob" in line and jobs[0] in line)
        assert "ada" in line


def test_a_node_is_drained_and_resumed(page: Any, base: str, system: Deployment, operator: str) -> None:
    page.goto(f"{base}/nodes?node=n6")
    drawn(page)
    page.locator("#actions summary").click()
    page.get_by_label("Why").fill("a fan is loud")
    page.get_by_label("Your token").fill(operator)
    page.get_by_role("button", name="Drain n6").click()
    playwright.expect(page.locator("#troubles")).to_contain_text("a fan is loud", timeout=PATIENCE)
    assert "n6" not in [node["name"] for node in system.json("nodes") if node.get("available", False)]
    page.locator("#actions summary", has_text="Resume n6").click()
    assert page.get_by_label("Your token").input_value() == "", "it is not kept"
    picture(page, "nodes-resume")
    page.get_by_label("Your token").fill(operator)
    page.get_by_role("button", name="Resume n6").click()
    playwright.expect(page.locator("#troubles")).to_contain_text("no node is left out", timeout=PATIENCE)
    playwright.expect(page.locator("#actions")).to_contain_text("Drain n6", timeout=PATIENCE)


def test_viewers_do_nothing_whatever_they_send(browser: Any, base: str, system: Deployment, jobs: list[str]) -> None:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    try:
        own, shown = {"Origin": base}, token(system, "viewer")
        assert context.request.post(f"{base}/login", form={"token": shown}, headers=own).ok
        page = context.new_page()
        page.goto(f"{base}/job?job={jobs[2]}")
        drawn(page)
        assert page.locator("#actions summary").count() == 0
        cancel = {"job": jobs[2], "token": shown}
        refused = context.request.post(f"{base}/act/cancel", form=cancel, headers=own)
        assert refused.status == 403
        assert "Not done" in refused.text()
        drain = {"node": "n1", "token": shown}
        assert context.request.post(f"{base}/act/drain", form=drain, headers=own).status == 403
        assert context.request.post(f"{base}/act/drain", form={"token": shown}, headers=own).status == 400
        other = {"Origin": "http://evil.example"}
        assert context.request.post(f"{base}/act/cancel", form=cancel, headers=other).status == 403
        assert browser.new_context().request.post(f"{base}/act/cancel", form=cancel, headers=own).status == 401
        assert system.json("job", jobs[2])["state"] == "RUNNING"
    finally:
        context.close()


def test_a_stolen_cookie_does_nothing(
    page: Any, browser: Any, base: str, system: Deployment, operator: str, jobs: list[str]
) -> None:
    """Another account has the operator's cookie, forges the origin, and has a token of its own."""
    done = system.command("token", "--user", "eve", "--role", "user", "--lifespan", "1h")
    assert done.returncode == 0, done.stderr
    own = {"Origin": base}
    with contextlib.closing(browser.new_context()) as thief:
        thief.add_cookies(page.context.cookies())
        assert thief.request.get(f"{base}/now").ok, "it can look at the pages"
        for action, what in (("cancel", {"job": jobs[2]}), ("drain", {"node": "n1"}), ("resume", {"node": "n1"})):
            for shown, status in ({}, 401), ({"token": "a.b.c"}, 401), ({"token": done.stdout.strip()}, 403):
                refused = thief.request.post(f"{base}/act/{action}", form=what | shown, headers=own)
                assert refused.status == status, (action, shown)
                assert "Not done" in refused.text()
                by_address = thief.request.post(f"{base}/act/{action}?token={operator}", form=what, headers=own)
                assert by_address.status == 401, "a token in an address, which logs keep, counts for nothing"
        assert system.json("job", jobs[2])["state"] == "RUNNING"
        assert operator not in thief.request.get(f"{base}/job?job={jobs[2]}").text()


def test_times_are_those_of_the_browser(browser: Any, base: str, operator: str, jobs: list[str]) -> None:
    context = browser.new_context(timezone_id="Asia/Tokyo")
    context.set_default_timeout(PATIENCE)
    try:
        assert context.request.post(f"{base}/login", form={"token": operator}, headers={"Origin": base}).ok
        page = context.new_page()
        page.goto(f"{base}/job?job={jobs[2]}")
        page.wait_for_function("() => document.documentElement.dataset.zone === 'Asia/Tokyo'", timeout=PATIENCE)
        drawn(page)
        playwright.expect(page.locator(".zone")).to_have_text("Times in JST")
        here = page.evaluate(
            "() => new Date().toLocaleDateString('sv') + ' ' + String(new Date().getHours()).padStart(2, '0')"
        )
        told = re.search(r"(\d{4}-\d\d-\d\d) (\d\d)", page.locator("#facts").text_content())
        assert told is not None
        assert told[1] == here[:10]
        assert abs(int(told[2]) - int(here[11:])) <= 1
        picture(page, "job-tokyo")
    finally:
        context.close()
