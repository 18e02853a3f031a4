"""U of a running system is the same number wherever it is shown: page, what-if, top, metrics, journal."""

from __future__ import annotations

import http.cookiejar
import re
import signal
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from malletrain.allocator.utilization.definition import IN_WORDS, MinuteUse, Utilization, last_hour, utilization_of
from malletrain.allocator.utilization.store import UtilizationStore
from malletrain.cli.journal.reading import read_journal
from malletrain.cli.shared.settings import load
from malletrain.observer.intake import minute_use
from malletrain.runtime.database.migrating import open_database
from malletrain.simulator.journal.conversion import what_if
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.v1 import allocator_pb2
from tests.dashboard.browsing import running_dashboard
from tests.support.metrics import fetch, values_of
from tests.support.ports import free_port
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, start, write_settings

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(600)]
SECONDS = 120.0
SETTINGS = """
[access]
munge = "off"
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
[job_manager]
standby_memory_mib = 0
[metrics]
allocator = "127.0.0.1:{port}"
"""
KNOWN = 40
"""Minutes that are known when the services start."""


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Deployment]:
    """Services whose Allocator has recorded minutes before, and a job that is there for the journal."""
    folder = tmp_path_factory.mktemp("utilization")
    write_settings(folder, SETTINGS.format(port=port))
    engine = open_database(load(folder / "malletrain.toml").database("allocator"))
    begin = time.time() // 60 * 60 - 60.0 * (KNOWN + 2)
    UtilizationStore(engine).add(
        [MinuteUse(begin + 60.0 * place, 3.0, 50.0 + place, 95.0, 100.0) for place in range(KNOWN)]
    )
    engine.dispose()
    deployment = start(folder)
    try:
        wait_until(deployment.serves, SECONDS, "all services serving")
        wait_until(lambda: len(deployment.json("nodes")) == 3, SECONDS, "all nodes")
        shape = ("--backend", "command", "--profile", "never", "--min", "1", "--max", "2", "--curve", "1:10,2:20")
        done = deployment.command("submit", *shape, "--", "sleep", "100000", timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: deployment.json("jobs")[0]["state"] == "RUNNING", SECONDS, "a running job")
        yield deployment
    finally:
        deployment.process.send_signal(signal.SIGTERM)
        deployment.process.wait(30)


def recorded(system: Deployment) -> list[MinuteUse]:
    with closing(system.stubs) as stubs:
        answer = stubs.allocator.ListUtilization(allocator_pb2.ListUtilizationRequest(), timeout=SECONDS)
    return [minute_use(minute) for minute in answer.minutes]


def alike(system: Deployment, told: Callable[[Utilization], bool]) -> None:
    """Wait until what is told is what is recorded: another minute may be recorded while one looks."""

    def same() -> bool:
        before = recorded(system)
        expected = utilization_of(last_hour(before, time.time()))
        assert expected is not None
        assert expected.seconds >= 60.0 * KNOWN
        return told(expected) and recorded(system) == before

    wait_until(same, SECONDS, "the same U")


def test_the_metrics_have_u_beside_its_bound(system: Deployment, port: int) -> None:
    def told(expected: Utilization) -> bool:
        found = values_of(fetch(port))
        names = ("utilization_efficiency", "utilization_efficiency_bound", "utilization_seconds")
        return tuple(found[f"malletrain_allocator_{name}",] for name in names) == (
            expected.efficiency,
            expected.bound,
            expected.seconds,
        )

    alike(system, told)


def test_top_shows_it(system: Deployment) -> None:
    terminal = Terminal([sys.executable, "-m", "malletrain.cli.main", "top"], system.folder, columns=160)
    try:
        alike(
            system,
            lambda expected: (
                f"U {expected.efficiency:.1%} of what the jobs could have trained in the last "
                f"{expected.seconds / 60:.0f} min on as many nodes that are always there; {expected.bound:.1%} if"
                in terminal.text()
            ),
        )
    finally:
        terminal.press("q")
        wait_until(lambda: terminal.ended() is not None, SECONDS, "the end of top")


@pytest.mark.parametrize("place", ["live", "stored"])
def test_the_journal_and_what_ifs_of_it_have_it(system: Deployment, place: str) -> None:
    def told(expected: Utilization) -> bool:
        journal = read_journal("live" if place == "live" else str(system.folder), load(system.config))
        begin, end = time.time() - 3600.0 - 600.0, journal.end_unix
        found = what_if(journal, begin, end, ReplayOptions(duration_s=end - begin)).really
        return (found.efficiency, found.bound) == (expected.efficiency, expected.bound)

    alike(system, told)


def test_the_page_shows_it_and_says_what_it_is(system: Deployment) -> None:
    with running_dashboard(system) as base:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

        def page(path: str, form: dict[str, str] | None = None) -> str:
            data = urllib.parse.urlencode(form).encode() if form else None
            request = urllib.request.Request(f"{base}{path}", data, {"Origin": base})
            try:
                with browser.open(request, timeout=SECONDS) as answer:
                    return str(answer.read().decode())
            except OSError:
                return ""

        shown = system.command("token", "--user", "ada", "--role", "viewer", "--lifespan", "1h").stdout.strip()
        wait_until(lambda: bool(page("/login", {"token": shown})), SECONDS, "the dashboard")

        def told(expected: Utilization) -> bool:
            tiles = dict(re.findall(r"<dt>([^<]*)</dt><dd><b>([^<]*)</b>", page("/now")))
            return (tiles.get("U"), tiles.get("U if rescaling were free")) == (
                f"{100 * (expected.efficiency or 0.0):.1f} %",
                f"{100 * (expected.bound or 0.0):.1f} %",
            )

        alike(system, told)
        assert IN_WORDS in page("/now")


def test_a_minute_that_services_have_lived_through_is_recorded_and_told_with_a_replay(system: Deployment) -> None:
    """The job reports nothing, so that nothing was trained of what it could have."""
    begin = read_journal("live", load(system.config)).begin_unix

    def lived() -> list[MinuteUse]:
        return [minute for minute in recorded(system) if minute.start >= begin]

    wait_until(lambda: bool(lived()), 300, "a minute since the start")
    (minute, *_) = lived()
    assert (minute.nodes, minute.trained, minute.free) == (3.0, 0.0, minute.static)
    assert minute.static == pytest.approx(60 * 20.0, rel=0.02)

    def told() -> bool:
        found = utilization_of(lived())
        said = system.command("replay", "--journal", "live", timeout=SECONDS).stdout
        words = f"U of what happened: {found.efficiency:.1%}, {found.bound:.1%} if rescaling were free" if found else ""
        return bool(words) and words in said

    wait_until(told, SECONDS, "the same U")
