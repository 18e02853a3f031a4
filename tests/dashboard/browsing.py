"""Driving the dashboard in a real Chromium, on live services."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment

CHROMIUM = shutil.which("chromium") or ""
NEEDS_CHROMIUM = pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium (apt-get install chromium)")
PICTURES = Path("build/dashboard")
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
    const style = getComputedStyle(element);
    const [front, back] = [light(element instanceof SVGElement ? style.fill : style.color), light(behind(element))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    found.push([ratio, element.tagName + " " + walk.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""


@contextmanager
def running_dashboard(system: Deployment) -> Iterator[str]:
    """The dashboard of an installation, at its address."""
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
    wait_until(lambda: system.json("job", found)["state"] == "RUNNING", SECONDS, "a running job")
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


def replayed(page: Any) -> None:
    """Wait until the replay has ended well."""
    from playwright.sync_api import expect

    expect(page.locator("#replay-status")).to_contain_text(" UTC to ", timeout=PATIENCE)
    expect(page.locator("#outcomes")).to_contain_text("what really happened", timeout=PATIENCE)
