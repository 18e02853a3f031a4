"""Logins at a real dashboard: one viewer throws nobody out, and a link of another site logs nobody in."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from malletrain.dashboard.server.page_access import Sessions
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
pytest.importorskip("bokeh")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    toml = '[scavenger]\nsource = "static"\nnodes = ["n1"]\n'
    with deployed(tmp_path_factory.mktemp("up"), toml) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def port(system: Deployment) -> Iterator[int]:
    found = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "malletrain.cli.main", "dashboard", "--address", f"127.0.0.1:{found}"],
        cwd=system.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: ask(found, "GET", "/alive")[0] == 204, 60, "the dashboard")
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def ask(port: int, method: str, path: str, body: str = "", headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Status, and the cookie that was set; 0 where nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    form = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
    try:
        connection.request(method, path, body or None, form | (headers or {}))
        answer = connection.getresponse()
        return answer.status, (answer.getheader("Set-Cookie") or "").partition(";")[0]
    except OSError:
        return 0, ""
    finally:
        connection.close()


def token_of(system: Deployment, user: str) -> str:
    return system.command("token", "--user", user, "--role", "viewer").stdout.strip()


def enter(port: int, token: str, origin: str = "") -> tuple[int, str]:
    own = origin or f"http://127.0.0.1:{port}"
    return ask(port, "POST", "/login", urlencode({"token": token}), {"Origin": own})


def test_a_thousand_logins_of_one_viewer_throw_nobody_out(system: Deployment, port: int) -> None:
    ada, mallory = token_of(system, "ada"), token_of(system, "mallory")
    status, cookie = enter(port, ada)
    assert status == 200
    for _ in range(1001):
        assert enter(port, mallory)[0] == 200
    assert ask(port, "GET", "/csv/now/nodes", headers={"Cookie": cookie})[0] == 200


def test_a_link_logs_nobody_in(system: Deployment, port: int) -> None:
    token = token_of(system, "mallory")
    status, cookie = ask(
        port, "GET", f"/login?{urlencode({'token': token})}", headers={"Origin": "http://evil.example"}
    )
    assert (status, cookie) == (200, "")
    assert enter(port, token, "http://evil.example") == (403, "")
    assert ask(port, "POST", "/login", urlencode({"token": token})) == (403, "")


def test_whoever_has_the_most_browsers_loses_one() -> None:
    sessions = Sessions(7706, secure=False)
    kept = {user: sessions.begin(f"token of {user}", user) for user in ("ada", "grace")}
    for number in range(3000):
        sessions.begin("another", f"user {number % 60}")
    assert all(sessions.is_open(cookie) for cookie in kept.values())
