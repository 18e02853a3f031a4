"""Pages of others in the same browser, and what jobs can put on the pages: a real Chromium, on live services."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from typing_extensions import override

from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.dashboard.browsing import CHROMIUM, NEEDS_CHROMIUM, PATIENCE, SECONDS, drawn, token
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600), NEEDS_CHROMIUM]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")

SITE = "evil.test"
"""Leads to this machine, as a name does whose owner has changed its address (DNS rebinding)."""
MARKUP = "<img src=x onerror=document.title='broken'>"
FAILING = f"""echo "{MARKUP}"; echo "</script><script>document.title='broken'</script>"; exit 3"""
COMPLETING = (
    """echo '{"samples": 5, "metrics": {"MARKUP": 1.5, "constructor": 2, "__proto__": 3}}'"""
    """ > "$MALLETRAIN_JOB_DIR/completed.json"; exit 0"""
).replace("MARKUP", MARKUP)
ATTACK = """async (base) => {
  const found = {}, attempt = async (name, what) => {
    try { found[name] = await what(); } catch (error) { found[name] = error.name; }
  };
  const text = async (path, options) => {
    const answer = await fetch(base + path, {credentials: "include", ...options});
    return (await answer.text()).length;
  };
  await attempt("page", () => text("/now"));
  await attempt("csv", () => text("/csv/now/nodes"));
  await attempt("replay", () => text("/week/replay", {method: "POST", body: new URLSearchParams({})}));
  await attempt("autoload", () => new Promise((done, fail) => {
    const script = document.createElement("script");
    script.onload = () => done("loaded");
    script.onerror = () => fail({name: "refused"});
    script.src = base + "/now/autoload.js?bokeh-autoload-element=x";
    document.head.append(script);
  }));
  await attempt("websocket", () => new Promise((done, fail) => {
    const socket = new WebSocket(base.replace("http", "ws") + "/now/ws", ["bokeh", "token"]);
    socket.onopen = () => done("open");
    socket.onerror = () => fail({name: "refused"});
  }));
  return found;
}"""
FORM = """([action, fields]) => {
  const form = document.createElement("form");
  form.method = "POST";
  form.action = action;
  for (const [name, value] of Object.entries(fields)) {
    const field = document.createElement("input");
    field.name = name;
    field.value = value;
    form.append(field);
  }
  document.body.append(form);
  form.submit();
}"""


class _Page(BaseHTTPRequestHandler):
    shown: ClassVar[list[tuple[str, str]]] = []
    """Host and cookies of each request."""

    @override
    def do_GET(self) -> None:
        self.shown.append((self.headers["Host"], self.headers["Cookie"] or ""))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page of somebody else</title><body></body>")

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def hostile_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    arguments = [f"--host-resolver-rules=MAP {SITE} 127.0.0.1", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        yield opened
        opened.close()


@pytest.mark.parametrize("host", [SITE, "127.0.0.1"], ids=["another site", "another port of this machine"])
def test_a_page_of_others_reads_and_does_nothing(page: Any, base: str, hostile_port: int, host: str) -> None:
    page.goto(f"{base}/now")
    drawn(page)
    cookies = page.context.cookies()
    evil = page.context.new_page()
    evil.goto(f"http://{host}:{hostile_port}/")
    found = evil.evaluate(ATTACK, base)
    assert found == {
        "page": "TypeError",
        "csv": "TypeError",
        "replay": "TypeError",
        "autoload": "refused",
        "websocket": "refused",
    }
    for action, fields in (("/login", {"token": "of.somebody.else"}), ("/week/replay", {}), ("/week/cancel", {})):
        evil.goto(f"http://{host}:{hostile_port}/")
        with evil.expect_navigation() as going:
            evil.evaluate(FORM, [base + action, fields])
        assert going.value.status == 403, action
    assert page.context.cookies() == cookies, "nobody else has logged in"
    # Browsers tell cookies apart by name of the host, and not by port: see docs/operators/dashboard.md.
    assert not any(shown for name, shown in _Page.shown if name.startswith(SITE))
    print([shown for name, shown in _Page.shown if name.startswith("127.0.0.1")][:1])
    evil.close()


@pytest.mark.parametrize("host", [SITE, "127.0.0.1"], ids=["another site", "another port of this machine"])
def test_a_page_of_others_frames_nothing(page: Any, base: str, hostile_port: int, host: str) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"http://{host}:{hostile_port}/")
    page.evaluate("base => document.body.innerHTML = `<iframe src='${base}/now'></iframe>`", base)
    wait_until(lambda: page.wait_for_timeout(100) or any("frame-ancestors" in text for text in said), 60, "the refusal")
    (frame,) = page.frames[1:]
    assert "chrome-error" in frame.url or not frame.content().count("nodes")


def test_a_name_that_leads_here_by_trickery_finds_nothing(page: Any, base: str) -> None:
    port = base.rpartition(":")[2]
    for path in ("/now", "/login", "/alive", "/files/pages.js"):
        with page.expect_response(f"**{path}") as answered, contextlib.suppress(playwright.Error):
            page.goto(f"http://{SITE}:{port}{path}")  # an answer without a page
        assert answered.value.status == 404
    assert page.context.request.get(f"{base}/now", headers={"Host": f"{SITE}:{port}"}).status == 404


def test_a_link_logs_nobody_in(browser: Any, base: str, system: Deployment, hostile_port: int) -> None:
    """A link only fills in the form; neither it nor a picture changes who looks at the pages."""
    shown = token(system, "viewer")
    with contextlib.closing(browser.new_context()) as context:
        evil = context.new_page()
        evil.goto(f"http://{SITE}:{hostile_port}/")
        evil.evaluate(
            "link => new Promise(done => { const one = new Image(); one.onerror = done; one.src = link; })",
            f"{base}/login?token={shown}",
        )
        evil.goto(f"{base}/login?token={shown}")
        assert context.cookies() == []


def test_what_jobs_say_is_text(page: Any, base: str, system: Deployment) -> None:
    """Names, the end of a log in a reason, metrics and environments of a job: all that its owner chooses."""
    jobs = {}
    with contextlib.closing(system.stubs) as stubs:
        for what, script in (("fails", FAILING), ("completes", COMPLETING)):
            spec = resources_pb2.JobSpec(
                name=MARKUP,
                command=["/bin/sh", "-c", script, MARKUP],
                working_directory="/",
                min_nodes=1,
                max_nodes=1,
                curve=[resources_pb2.ScalingPoint(nodes=1, rate=10.0)],
                environment={"A": MARKUP},
                family=MARKUP,
                profile=resources_pb2.PROFILE_MODE_NEVER,
                backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
            )
            jobs[what] = stubs.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec])).jobs[0].id
    ended = {"fails": "FAILED", "completes": "COMPLETED"}
    for what, job_id in jobs.items():
        wait_until(lambda job_id=job_id, what=what: system.state(job_id) == ended[what], SECONDS, f"{job_id} {what}")
    assert MARKUP in system.job(jobs["fails"]).reason
    for job_id in jobs.values():
        for name in ("jobs", "job", "plan", "now"):
            page.goto(f"{base}/{name}?job={job_id}")
            drawn(page)
            if name == "job":
                playwright.expect(page.locator("main")).to_contain_text("onerror", timeout=PATIENCE)
            assert page.title() != "broken"
            assert page.locator("img[src=x]").count() == 0
