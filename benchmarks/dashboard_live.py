"""How soon a leave is on the screen, from the Scavenger on, with live services: for benchmarks/dashboard.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from malletrain.cli.demo.setup import free_ports
from malletrain.v1 import scavenger_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

_NODES = 8
_SETTINGS = """
[access]
munge = "off"
[scavenger]
source = "static"
nodes = [{nodes}]
debounce_seconds = 0
reclaim_hold_seconds = 1
"""
_LASTING = """() => Array.from(Bokeh.documents[0].get_model_by_name('nodes').renderers[0].data_source.data.right)
  .filter((end) => end > Date.now() + 3600000).length"""
_SEEN = """(count) => new Promise((done) => {
  const lasting = () => Array.from(Bokeh.documents[0].get_model_by_name('nodes').renderers[0].data_source.data.right)
    .filter((end) => end > Date.now() + 3600000).length;
  const look = () => (lasting() < count ? done(Date.now() / 1000) : requestAnimationFrame(look));
  look();
})"""


def events_on_screen(events: int) -> list[float]:
    """Seconds from the request by which a node leaves the Scavenger to the frame of a browser that shows it.

    Args:
        events: How many leaves.
    """
    names = [f"n{number}" for number in range(1, _NODES + 1)]
    with TemporaryDirectory(prefix="malletrain-dashboard-") as folder:
        settings = _SETTINGS.format(nodes=", ".join(f'"{name}"' for name in names))
        with deployed(Path(folder) / "state", settings, seconds=300.0) as system:
            return _watched(system, names, events)


def _watched(system: Deployment, names: list[str], events: int) -> list[float]:
    from playwright.sync_api import sync_playwright

    base = f"http://127.0.0.1:{free_ports()[0]}"
    done = system.command("token", "--user", "ada", "--role", "viewer", "--lifespan", "1h", timeout=120)
    command = [sys.executable, "-m", "malletrain.cli.main", "dashboard", "--address", base.removeprefix("http://")]
    process = subprocess.Popen(command, cwd=system.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = []
    try:
        wait_until(lambda: is_up(base), 120, "the dashboard")
        with sync_playwright() as driver:
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(f"{base}/login?token={done.stdout.strip()}")
            page.wait_for_url("**/now*", timeout=60_000)
            page.wait_for_function("() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
            stubs = system.stubs
            for number in range(events):
                page.wait_for_function(f"() => ({_LASTING})() === {len(names)}", timeout=60_000)
                page.evaluate(f"() => {{ window.seen = ({_SEEN})({len(names)}); }}")
                begun = time.time()
                request = scavenger_pb2.ReclaimNodesRequest(nodes=[names[number % len(names)]])
                stubs.scavenger.ReclaimNodes(request, timeout=30)
                found.append(page.evaluate("() => window.seen") - begun)
            stubs.close()
            browser.close()
    finally:
        process.terminate()
        process.wait(30)
    return found


def is_up(base: str) -> bool:
    """Whether a dashboard serves there."""
    try:
        with urllib.request.urlopen(f"{base}/alive", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
