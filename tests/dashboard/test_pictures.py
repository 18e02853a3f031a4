"""The pictures of the docs: programs on eight nodes that come and go, and each page of the dashboard that shows them.

`make pictures` keeps them in docs/pictures; else they go to build/dashboard.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from malletrain.v1 import scavenger_pb2
from tests.dashboard.browsing import NEEDS_CHROMIUM, PATIENCE, PICTURES, drawn, replayed, running_dashboard, token
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500), NEEDS_CHROMIUM]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")

FOLDER = Path(os.environ.get("DOCS_PICTURES", PICTURES))
SECONDS = 400.0
NODES = [f"n{number}" for number in range(1, 9)]
SETTINGS = f"""
[access]
munge = "off"
[scavenger]
source = "static"
nodes = {NODES}
reclaim_hold_seconds = 12
"""
TRAINING = (
    f"#!{sys.executable}"
    + """
import math, os, sys, time
from malletrain.client import install_signal_handler, log_metrics, report, should_stop
install_signal_handler()
job = os.environ["MALLETRAIN_JOB_DIR"]
nodes = len(open(os.path.join(job, "hosts")).read().splitlines())
pace, length = map(float, sys.argv[1:])
path = os.path.join(job, "position")
position = int(open(path).read()) if os.path.exists(path) else 0
while not should_stop():
    time.sleep(pace * (1 + 0.03 * nodes))
    position += 32 * nodes
    report(32 * nodes, position, workers=nodes)
    loss = 0.08 + 2.2 * math.exp(-position / length)
    log_metrics({"loss": loss, "accuracy": 1 - loss / 2.4}, position)
    if position % 1024 < 32 * nodes:
        print(f"{position} samples on {nodes} nodes: loss {loss:.4f}", flush=True)
    with open(path, "w") as file:
        file.write(str(position))
"""
)
JOBS = {
    "resnet": ("0.05", "30000", 1, 4),
    "transformer": ("0.05", "20000", 1, 3),
    "segmentation": ("0.05", "25000", 1, 2),
}
TAKEN = (
    ["n2", "n3"],
    ["n7"],
    ["n1", "n5", "n6"],
    ["n8"],
    ["n2", "n4", "n6", "n8"],
    ["n3"],
    ["n1", "n2"],
    ["n5", "n6", "n7"],
)
"""Nodes that the main queue takes back one time after the other, each for some seconds."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Three trainings, and nodes that the main queue has taken back and given again."""
    with deployed(tmp_path_factory.mktemp("pictures"), SETTINGS, seconds=SECONDS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == len(NODES), SECONDS, "all nodes")
        program = deployment.folder / "train.py"
        program.write_text(TRAINING)
        program.chmod(0o700)
        jobs = []
        for name, (pace, length, least, most) in JOBS.items():
            command = [f"./{program.name}", pace, length]  # a page shows it: no path of this machine
            sizes = ["--min", str(least), "--max", str(most)]
            done = deployment.command("submit", "--name", name, "--backend", "command", *sizes, "--", *command)
            assert done.returncode == 0, done.stderr
            jobs.append(done.stdout.split()[0])
            _wait_for_samples(deployment, jobs[-1:], 1)
        for taken in TAKEN:
            wanted = sum(_samples(deployment, job) for job in jobs) + 50_000
            _reclaim(deployment, taken)
            _wait_for_samples(deployment, jobs, wanted)
        yield deployment


def _samples(system: Deployment, job: str) -> int:
    return int((system.json("job", job)["progress"] or {}).get("samples", 0))


def _wait_for_samples(system: Deployment, jobs: list[str], samples: int) -> None:
    wait_until(lambda: sum(_samples(system, job) for job in jobs) >= samples, SECONDS, f"{samples} samples of {jobs}")


def _reclaim(system: Deployment, nodes: list[str]) -> None:
    stubs = system.stubs
    try:
        stubs.scavenger.ReclaimNodes(scavenger_pb2.ReclaimNodesRequest(nodes=nodes), timeout=30)
    finally:
        stubs.close()


def keep(page: Any, name: str) -> None:
    """Keep what the window shows, in a small file: it is in the repository."""
    from PIL import Image

    FOLDER.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(FOLDER / f"{name}.png", optimize=True)


def test_each_page_shows_what_the_docs_say(cluster: Deployment, browser: Any) -> None:
    (first,) = [job["id"] for job in cluster.json("jobs") if job["name"] == "resnet"]
    shown = {
        "now": ("resnet", ""),
        "jobs": ("transformer", ""),
        "plan": ("segmentation", ""),
        "nodes": ("n1", "?node=n1"),
        "usage": ("no project", ""),
    }
    with running_dashboard(cluster) as base:
        context = browser.new_context(viewport={"width": 1280, "height": 820}, color_scheme="light")
        context.set_default_timeout(PATIENCE)
        form = {"token": token(cluster, "operator")}
        assert context.request.post(f"{base}/login", form=form, headers={"Origin": base}).ok
        page = context.new_page()
        for name, (text, query) in shown.items():
            page.goto(f"{base}/{name}{query}")
            drawn(page)
            playwright.expect(page.locator("main")).to_contain_text(text, timeout=PATIENCE)
            keep(page, name)
        page.set_viewport_size({"width": 1280, "height": 900})  # for the figure's times
        page.goto(f"{base}/week?days=1&forward=240")
        drawn(page)
        page.get_by_role("button", name="Replay", exact=True).click()
        replayed(page)
        drawn(page)
        keep(page, "week")
        page.goto(f"{base}/job?job={first}")  # at last: rates are known from the dashboard's start on
        drawn(page)
        playwright.expect(page.locator("main")).to_contain_text("./train.py", timeout=PATIENCE)
        keep(page, "job")
        context.close()
    sizes = {path.name: path.stat().st_size for path in FOLDER.glob("*.png")}
    assert all(10_000 < sizes[f"{name}.png"] < 250_000 for name in (*shown, "week", "job")), sizes
