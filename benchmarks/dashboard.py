"""What the dashboard costs with a day of a large machine: `python benchmarks/dashboard.py [--viewers 20] [--json]`.

One process serves a made-up day: 1,024 nodes, 7,000 fragments, 100 jobs; a job changes every two seconds, all report
their progress every five. Measured are the first paint of the page Now in Chromium with 24 h shown (all figures, and
with an empty cache), the time from an event in the dashboard's history to the text on the screen (the way from the
services is not part of it), and the CPU time of the serving process with many viewers of the page, who only receive.
Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import psutil
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

from malletrain.cli.demo.setup import free_ports
from malletrain.dashboard.facts import JobFact, NodeFact, ProgressFact
from malletrain.dashboard.history import History, Minute, NodePeriod
from malletrain.dashboard.identities import Viewer, Viewers
from malletrain.dashboard.replays import Replays
from malletrain.dashboard.serving import Dashboard
from malletrain.dashboard.updates import jobs_changed, progress_changed
from malletrain.dashboard.watching import Watcher
from malletrain.dashboard.what_if import WhatIf
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings

NODES, FRAGMENTS, JOBS, DAY_S = 1024, 7000, 100, 86400.0
PAINT_S, LATENCY_S, CPU_SHARE = 1.5, 1.0, 0.10
_EVENT_S, _PROGRESS_S = 2.0, 5.0
_BETWEEN_S = 3.0
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
_READY = {"type": "event", "name": "document_ready", "values": {"type": "map", "entries": []}}
"""What a browser says once it has drawn a page."""
_DRAWN = "() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle && performance.now()"


def day(now: float) -> History:
    """A made-up day that ends now."""
    chance = random.Random(1)
    names = [f"n{number:04d}" for number in range(NODES)]
    held: dict[str, set[str]] = {f"j{number:06d}": set() for number in range(JOBS)}
    ended, lasting = [], []
    for place, name in enumerate(names):
        job_id = f"j{place % JOBS:06d}"
        held[job_id].add(name)
        share = (FRAGMENTS - NODES) // NODES + (place < (FRAGMENTS - NODES) % NODES)
        times = sorted(now - DAY_S * chance.random() for _ in range(share + 1))
        for start, end in itertools.pairwise(times):
            ended.append(NodePeriod(name, chance.choice(("", f"j{chance.randrange(JOBS):06d}")), start, end))
        lasting.append(NodePeriod(name, job_id, times[-1]))
    fragments = (*ended, *lasting)
    jobs = {
        job_id: JobFact(job_id, job_id, "ada", "RUNNING", commanded=frozenset(nodes), confirmed=frozenset(nodes))
        for job_id, nodes in held.items()
    }
    first = now - DAY_S - (now - DAY_S) % 60.0
    minutes = tuple(
        Minute(first + 60.0 * place, (50_000.0, 5000.0, 2000.0, 0.0, 4440.0), 6e5, 7e5, 60.0) for place in range(1440)
    )
    return History(
        began=now - DAY_S,
        now=now,
        nodes={name: NodeFact(name, now - 3600.0, 600.0) for name in names},
        jobs=jobs,
        heard_jobs=True,
        progress={job_id: ProgressFact(job_id, 1000, 0, 100.0, len(nodes)) for job_id, nodes in held.items()},
        fragments=fragments,
        open={fragment.node: len(ended) + place for place, fragment in enumerate(lasting)},
        minutes=minutes,
        counts=(NODES, 0, 0, 0, 0),
    )


async def happen(watcher: Watcher) -> None:
    """Events: a job's name says when it last changed."""
    told = 0.0
    while True:
        await asyncio.sleep(_EVENT_S)
        now, watched = watcher.now(), watcher.watched
        job = replace(watched.history.jobs["j000000"], name=f"{time.time():.3f}")
        watched.history = jobs_changed(watched.history, [job], now)
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


def in_browser(base: str, loads: int, events: int) -> tuple[list[float], list[float]]:
    """Seconds until the page is drawn, of each load by a new browser context, and of each event to the screen."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    paints: list[float] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for _ in range(loads):
            context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
            # Only the cookies: nothing of the pages is in the browser's cache, and no other page is open.
            context.request.get(f"{base}/login?token=one")
            context.add_cookies([{"name": "theme", "value": "light", "url": base}])
            page = context.new_page()
            page.goto(f"{base}/now?span=86400")
            paints.append(page.wait_for_function(_DRAWN, timeout=60_000).json_value() / 1000.0)
            if len(paints) < loads:
                context.close()
                time.sleep(_BETWEEN_S)
        arrived: list[float] = page.evaluate(_ARRIVED, events)
        browser.close()
    return paints, arrived


async def with_viewers(base: str, pid: int, viewers: int, seconds: float) -> float:
    """Share of one core that the serving process uses while viewers receive."""
    client = AsyncHTTPClient()
    tasks = [asyncio.create_task(_receive(await _connected(client, base))) for _ in range(viewers)]
    await asyncio.sleep(5.0)
    before, since = sum(psutil.Process(pid).cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(seconds)
    share = (sum(psutil.Process(pid).cpu_times()[:2]) - before) / (time.monotonic() - since)
    if any(task.done() for task in tasks):
        raise RuntimeError("a viewer lost its connection")
    for task in tasks:
        task.cancel()
    return share


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


def _up(base: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base}/alive", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
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
        return
    load, port = os.getloadavg()[0], free_ports()[0]
    base = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    try:
        while not _up(base) and process.poll() is None:
            time.sleep(0.2)
        paints, arrived = in_browser(base, options.loads, options.events)
        share = asyncio.run(with_viewers(base, process.pid, options.viewers, options.seconds))
    finally:
        process.terminate()
        process.wait()
    found = {
        "first_paint_s": (statistics.median(paints), PAINT_S),
        "event_to_screen_s": (max(arrived), LATENCY_S),
        "cpu_share": (share, CPU_SHARE),
    }
    if options.json:
        rows = {name: {"value": value, "limit": limit} for name, (value, limit) in found.items()}
        print(json.dumps({"load": load, "viewers": options.viewers, **rows}))
        return
    print(f"{NODES} nodes, {FRAGMENTS} fragments, {JOBS} jobs, {options.viewers} viewers; load {load:.1f} at the begin")
    for name, (value, limit) in found.items():
        print(f"{name:18} {value:7.3f}  limit {limit:5.2f}  ratio {value / limit:5.2f}")


if __name__ == "__main__":
    main()
