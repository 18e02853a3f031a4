"""What the dashboard costs with a day of a large machine: `python benchmarks/dashboard.py [--viewers 20] [--json]`.

One process serves a made-up day: 1,024 nodes, 7,000 fragments, 100 jobs with curves, stalls and plans; a job and a node
change every two seconds, all jobs report their progress every five. Measured are

- the first paint of the page Now in Chromium with 24 h shown (all figures, and with an empty cache), and its parts:
  until the first byte, the whole page, the scripts, the first text, the figures' data, all figures; and the CPU time of
  the page's main thread in that;
- with live services and eight nodes, the time from the request by which a node leaves the Scavenger to the frame of the
  browser that shows it (`event_to_screen_s`); on the large day, from the dashboard's memory to the text on the screen;
- CPU time of the serving process with many viewers of the page, who only receive; and what is left of that when they
  have left, over what it was before they came.

Exits with 1 where a goal is missed. Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

from malletrain.cli.demo.setup import free_ports
from malletrain.dashboard.identities import Viewer, Viewers
from malletrain.dashboard.pages.what_if import WhatIf
from malletrain.dashboard.replays import Replays
from malletrain.dashboard.server.server import Dashboard
from malletrain.observer.facts import NodeFact
from malletrain.observer.updates import jobs_changed, nodes_changed, progress_changed
from malletrain.observer.watching import Watcher
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.dashboard_day import DAY_S, FRAGMENTS, JOBS, NODES, day
from benchmarks.dashboard_live import events_on_screen, is_up

PAINT_S, LATENCY_S, CPU_SHARE, LEFT_SHARE = 1.5, 1.0, 0.10, 0.01
_EVENT_S, _PROGRESS_S = 2.0, 5.0
_BETWEEN_S = 3.0
_GUEST = "n0000"
"""A node that leaves and comes back."""
_ARRIVED = """(count) => new Promise((done) => {
  const found = [], row = document.getElementById("legend").parentElement;
  let last = "";
  new MutationObserver(() => {
    const said = document.querySelector("#legend-j000000 td:nth-child(2)").textContent;
    if (said === last || !Number(said)) return;
    if (last) found.push(Date.now() / 1000 - Number(said));
    last = said;
    if (found.length >= count) done(found);
  }).observe(row, { childList: true, subtree: true, characterData: true });
})"""
_MARKS = """
const Plain = window.WebSocket;
window.WebSocket = class extends Plain {
  constructor(...given) {
    super(...given);
    performance.mark("connecting");
    this.addEventListener("message", () => performance.mark("data"));
  }
};"""
_PARTS = """() => {
  const page = performance.getEntriesByType("navigation")[0];
  const scripts = performance.getEntriesByType("resource").find((entry) => entry.name.includes("bokeh.min.js"));
  const time = (name) => performance.getEntriesByName(name)[0]?.startTime ?? NaN;
  return {
    first_byte: page.responseStart, whole_page: page.responseEnd, scripts_loaded: scripts.responseEnd,
    first_text: time("first-contentful-paint"), scripts_run: time("connecting"), first_data: time("data"),
  };
}"""
"""When each part of a load was there, in milliseconds."""
_READY = {"type": "event", "name": "document_ready", "values": {"type": "map", "entries": []}}
"""What a browser says once it has drawn a page."""
_DRAWN = "() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle && performance.now()"


async def happen(watcher: Watcher) -> None:
    """Events: a job's name says when it last changed."""
    told = 0.0
    while True:
        await asyncio.sleep(_EVENT_S)
        now, watched = watcher.now(), watcher.watched
        job = replace(watched.history.jobs["j000000"], name=f"{time.time():.3f}")
        watched.history = jobs_changed(watched.history, [job], now)
        # A node leaves, and is there again with the next event.
        idle = watched.history.nodes or {}
        left = [] if _GUEST not in idle else [_GUEST]
        watched.history = nodes_changed(watched.history, [] if left else [NodeFact(_GUEST, now)], left, now)
        if now - told > _PROGRESS_S:
            told = now
            facts = [replace(fact, samples=fact.samples + 500) for fact in watched.history.progress.values()]
            watched.history = progress_changed(watched.history, facts, now)
        watched.revision += 1
        watcher.changed.set()


async def serve(port: int) -> None:
    """Serve the day to whoever comes."""
    watcher = Watcher(Settings(), FixedToken("none"), SystemClock())
    watcher.watched.history = day(watcher.now())

    async def ask(viewers: Viewers, token: str) -> Viewer:
        del viewers
        return Viewer("ada", "viewer", token, time.time() + DAY_S, token)

    # No JobManager runs here that could verify tokens.
    with patch.object(Viewers, "_ask", ask):
        replays = Replays((), lambda: "", None, WhatIf(), watcher.now, watcher.changed.set)
        server = Dashboard(watcher, replays, "127.0.0.1", port, (), None)
        await asyncio.gather(server.run(), happen(watcher))


def in_browser(base: str, loads: int, events: int) -> tuple[list[dict[str, float]], list[float]]:
    """Seconds of the parts of each load by a new browser context, and of each event to the screen."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    paints: list[dict[str, float]] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for _ in range(loads):
            context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
            # Only the cookies: nothing of the pages is in the browser's cache, and no other page is open.
            context.request.get(f"{base}/login?token=one")
            context.add_cookies([{"name": "theme", "value": "light", "url": base}])
            page = context.new_page()
            page.add_init_script(_MARKS)
            thread = context.new_cdp_session(page)
            thread.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.goto(f"{base}/now?span=86400")
            drawn = page.wait_for_function(_DRAWN, timeout=60_000).json_value()
            used = {entry["name"]: entry["value"] for entry in thread.send("Performance.getMetrics")["metrics"]}
            parts = {name: time / 1000.0 for name, time in page.evaluate(_PARTS).items()}
            paints.append(parts | {"all_figures": drawn / 1000.0, "main_thread_cpu": used["TaskDuration"]})
            if len(paints) < loads:
                context.close()
                time.sleep(_BETWEEN_S)
        arrived: list[float] = page.evaluate(_ARRIVED, events)
        browser.close()
    return paints, arrived


async def with_viewers(base: str, pid: int, viewers: int, seconds: float) -> tuple[float, float]:
    """Share of one core that the serving process uses while viewers receive, and how much more when they have left."""
    client = AsyncHTTPClient()
    before = await _share(pid, seconds / 2)
    connections = [await _connected(client, base) for _ in range(viewers)]
    tasks = [asyncio.create_task(_receive(connection)) for connection in connections]
    await asyncio.sleep(5.0)
    share = await _share(pid, seconds)
    if any(task.done() for task in tasks):
        raise RuntimeError("a viewer lost its connection")
    for task, connection in zip(tasks, connections, strict=True):
        task.cancel()
        connection.close()
    await asyncio.sleep(5.0)
    return share, await _share(pid, seconds / 2) - before


async def _share(pid: int, seconds: float) -> float:
    """Share of one core that a process uses."""
    before, since = sum(psutil.Process(pid).cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(seconds)
    return (sum(psutil.Process(pid).cpu_times()[:2]) - before) / (time.monotonic() - since)


async def _connected(client: AsyncHTTPClient, base: str) -> Any:
    entered = await client.fetch(f"{base}/login?token=one")
    cookie = entered.headers["Set-Cookie"].partition(";")[0]
    page = await client.fetch(f"{base}/now?span=86400", headers={"Cookie": cookie}, request_timeout=60)
    (token,) = set(re.findall(r'"token":"([^"]+)"', page.body.decode()))
    address = f"{base.replace('http', 'ws', 1)}/now/ws"
    request = HTTPRequest(address, headers={"Cookie": cookie, "Origin": base})
    connection = await websocket_connect(request, subprotocols=["bokeh", token], max_message_size=2**28)
    for _ in range(3):  # the parts of the first message, before which the server does not listen
        await connection.read_message()
    for part in (
        {"msgid": "1", "msgtype": "PATCH-DOC"},
        {},
        {"events": [{"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": _READY}]},
    ):
        await connection.write_message(json.dumps(part))
    return connection


async def _receive(connection: Any) -> None:
    while await connection.read_message() is not None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--events", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return 0
    load, port = os.getloadavg()[0], free_ports()[0]
    base = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    try:
        while not is_up(base) and process.poll() is None:
            time.sleep(0.2)
        paints, arrived = in_browser(base, options.loads, options.events)
        share, left = asyncio.run(with_viewers(base, process.pid, options.viewers, options.seconds))
    finally:
        process.terminate()
        process.wait()
    found = {
        "first_paint_s": (statistics.median(load["all_figures"] for load in paints), PAINT_S),
        "event_to_screen_s": (max(events_on_screen(options.events)), LATENCY_S),
        "memory_to_screen_s": (max(arrived), LATENCY_S),
        "cpu_share": (share, CPU_SHARE),
        "cpu_share_of_viewers_who_left": (left, LEFT_SHARE),
    }
    parts = {name: statistics.median(load[name] for load in paints) for name in paints[0]}
    missed = [name for name, (value, limit) in found.items() if value > limit]
    if options.json:
        rows = {name: {"value": value, "limit": limit} for name, (value, limit) in found.items()}
        print(json.dumps({"load": load, "viewers": options.viewers, **rows, "parts_s": parts, "missed": missed}))
        return bool(missed)
    print(f"{NODES} nodes, {FRAGMENTS} fragments, {JOBS} jobs, {options.viewers} viewers; load {load:.1f} at the begin")
    for name, (value, limit) in found.items():
        print(f"{name:30} {value:7.3f}  limit {limit:5.2f}  ratio {value / limit:5.2f}")
    print("first paint, seconds until: " + ", ".join(f"{name} {value:.2f}" for name, value in parts.items()))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
