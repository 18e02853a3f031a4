"""The pages in a real Chromium, on five real services with virtual nodes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from malletrain.dashboard.troubles import NAMES
from malletrain.v1 import job_manager_pb2, resources_pb2, scavenger_pb2
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

CHROMIUM = shutil.which("chromium") or ""
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium (apt-get install chromium)"),
]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
PICTURES = Path("build/dashboard")
SHOWN_BY = {
    "scavenger": ("now", "jobs", "nodes"),
    "monitor": ("now", "jobs", "job"),
    "profiler": ("now", "jobs", "job"),
    "allocator": ("plan",),
    "job_manager": ("now", "jobs", "job", "nodes"),
}
"""The pages that show what a service tells, by the service."""
SECONDS = 120.0
PATIENCE = 240_000
"""How long a busy machine may take, in milliseconds; benchmarks/dashboard.py measures how soon things are shown."""
SETTINGS = """
[access]
munge = "off"
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4", "n5", "n6"]
debounce_seconds = 0
reclaim_hold_seconds = 5
"""
BARS = "Array.from(Bokeh.documents[0].get_model_by_name('nodes').renderers[0].data_source.data.left)"
CONTRAST = """() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map(Number).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(colour) && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    const box = element.getBoundingClientRect();
    if (!walk.currentNode.data.trim() || !box.width || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    const [front, back] = [light(getComputedStyle(element).color), light(behind(element))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    found.push([ratio, element.tagName + " " + walk.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("dashboard"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 6, SECONDS, "all nodes")
        yield deployment


@pytest.fixture(scope="module")
def base(system: Deployment) -> Iterator[str]:
    port = free_port()
    with (system.folder / "dashboard.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "malletrain.cli.main", "dashboard", "--address", f"127.0.0.1:{port}"],
            cwd=system.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: status(f"{address}/alive") == 204, SECONDS, "the dashboard")
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
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
    opened.problems = []
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    assert context.request.get(f"{base}/login?token={operator}").ok
    yield opened
    assert opened.problems == []
    context.close()


def status(address: str, headers: dict[str, str] | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers or {}), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def token(system: Deployment, role: str) -> str:
    done = system.command("token", "--user", "ada", "--role", role, "--lifespan", "1h")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def submit(system: Deployment, name: str, most: int) -> str:
    spec = resources_pb2.JobSpec(
        name=name,
        command=["sleep", "100000"],
        working_directory="/",
        min_nodes=1,
        max_nodes=most,
        curve=[resources_pb2.ScalingPoint(nodes=1, rate=10.0), resources_pb2.ScalingPoint(nodes=8, rate=72.0)],
        scale_up_seconds=0.5,
        scale_down_seconds=0.5,
        target_samples=1_000_000,
        profile=resources_pb2.PROFILE_MODE_NEVER,
        backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
    )
    stubs = system.stubs
    try:
        found = stubs.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec]), timeout=60).jobs[0].id
    finally:
        stubs.close()
    wait_until(lambda: system.json("job", found)["state"] == "JOB_STATE_RUNNING", SECONDS, "a running job")
    return str(found)


def drawn(page: Any) -> None:
    """Wait until Bokeh has drawn and the connection is there."""
    idle = "() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle"
    page.wait_for_function(idle, timeout=PATIENCE)


def picture(page: Any, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def worst_contrast(page: Any) -> tuple[float, str]:
    found = page.evaluate(CONTRAST)
    assert len(found) > 10
    return min((ratio, text) for ratio, text in found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["now", "jobs", "job", "plan", "nodes", "week"])
def test_each_page_is_drawn_and_readable(page: Any, base: str, job_id: str, name: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{base}/{name}?job={job_id}&node=n1&span=900")
    page.wait_for_function(f"() => document.documentElement.dataset.theme === '{scheme}'", timeout=PATIENCE)
    drawn(page)
    shown = {"nodes": "n1", "week": "Choose settings and replay."}.get(name, job_id)
    playwright.expect(page.locator("main")).to_contain_text(shown, timeout=PATIENCE)
    if name == "plan":
        playwright.expect(page.locator(f"#need-{job_id}")).to_contain_text("largest scale", timeout=PATIENCE)
    if name == "job":
        playwright.expect(page.locator("#journal")).to_contain_text("running", timeout=PATIENCE)
    ratio, text = worst_contrast(page)
    assert ratio >= 4.5, text
    assert page.title() != "broken"
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
    assert context.request.get(f"{base}/login?token={done.stdout.strip()}").ok
    other = context.new_page()

    def made_ahead() -> bool:
        page.goto(address)
        drawn(page)
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


def replayed(page: Any) -> None:
    """Wait until the replay has ended well."""
    playwright.expect(page.locator("#replay-status")).to_contain_text(" UTC to ", timeout=PATIENCE)
    playwright.expect(page.locator("#outcomes")).to_contain_text("what really happened", timeout=PATIENCE)


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
    assert context.request.get(f"{base}/login?token={done.stdout.strip()}").ok
    other = context.new_page()
    other.goto(address)
    playwright.expect(other.locator(f"#job-{job_id}")).to_contain_text("–", timeout=PATIENCE)
    assert "onerror" not in other.locator("#compared").inner_text()
    refused = context.request.post(f"{base}/week/replay", headers={"Origin": "http://evil.example"})
    assert refused.status == 403
    context.close()
