"""Links that let one browser in: codes, and the socket by which a running dashboard tells its account another one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from malletrain.cli.operate.dashboard_links import ask_for_link, listening, tell_links
from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.one_time_links import LIFESPAN_S, MAX_LINKS, OneTimeLinks
from malletrain.dashboard.server.handlers import Login
from malletrain.dashboard.server.page_access import Sessions


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_link_is_used_once() -> None:
    links = OneTimeLinks(Clock())
    code = links.new("token")
    assert [links.token(code), links.token(code)] == ["token", "token"]  # a look, e.g. of a preview, does not use it up
    assert [links.use(code), links.use(code), links.token(code)] == ["token", "", ""]
    assert links.token("") == links.token("\udcff") == links.use("nonsense") == ""


def test_a_link_is_good_for_a_short_time() -> None:
    clock = Clock()
    links = OneTimeLinks(clock)
    code = links.new("token")
    clock.now = LIFESPAN_S - 1
    assert links.token(code) == "token"
    clock.now = LIFESPAN_S
    assert [links.token(code), links.use(code)] == ["", ""]


def test_of_too_many_links_the_oldest_is_void() -> None:
    links = OneTimeLinks(Clock())
    codes = [links.new(f"token {number}") for number in range(MAX_LINKS + 1)]
    assert len(set(codes)) == MAX_LINKS + 1
    assert [links.token(code) for code in codes] == ["", *(f"token {number}" for number in range(1, MAX_LINKS + 1))]


def test_nothing_shows_a_token() -> None:
    links = OneTimeLinks(Clock())
    code = links.new("very secret")
    assert "very secret" not in repr(vars(links))
    assert code not in repr(vars(links))


async def test_a_running_dashboard_tells_its_account_a_new_link(tmp_path: Path) -> None:
    told: list[str] = []

    async def new_link() -> str:
        told.append(f"http://127.0.0.1:7706/login?once={len(told)}")
        return told[-1]

    folder = tmp_path / "links"
    with listening(folder, 7706) as listener:
        task = asyncio.create_task(tell_links(listener, new_link))
        found = [await asyncio.to_thread(ask_for_link, folder, 7706) for _ in range(2)]
        other = await asyncio.to_thread(ask_for_link, folder, 7707)
        task.cancel()
    assert found == told
    assert other is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert await asyncio.to_thread(ask_for_link, folder, 7706) is None


def test_a_folder_that_others_could_have_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "links").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match=r"links"), listening(tmp_path / "links", 7706):
        pass
    with pytest.raises(OSError, match=r"links"):
        ask_for_link(tmp_path / "links", 7706)


class KnownViewers:
    async def verify(self, token: str) -> Viewer | None:
        return Viewer("ada", "viewer", "id", 1e12, token) if token == "good" else None


@dataclass
class LoginContext:
    viewers: KnownViewers = field(default_factory=KnownViewers)
    sessions: Sessions = field(default_factory=lambda: Sessions(7706, secure=False))
    links: OneTimeLinks = field(default_factory=lambda: OneTimeLinks(Clock()))


async def test_a_link_is_looked_at_and_then_used_by_one_browser() -> None:
    context = LoginContext()
    server = HTTPServer(Application([("/login", Login, {"context": context})]))
    (listener,) = bind_sockets(0, "127.0.0.1")
    server.add_socket(listener)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    client = AsyncHTTPClient()

    async def login(query: str = "", form: str | None = None, origin: str = base) -> HTTPResponse:
        headers = {"Origin": origin}
        method = "GET" if form is None else "POST"
        return await client.fetch(
            f"{base}/login{query}", method=method, body=form, headers=headers, raise_error=False, request_timeout=60
        )

    try:
        code, revoked = context.links.new("good"), context.links.new("revoked")
        for _ in range(2):
            look = await login(f"?once={code}")
            assert (look.code, look.headers.get("Set-Cookie")) == (200, None)
            assert b"Go on as ada, viewer" in look.body
            assert b"good" not in look.body
        assert (await login(form=f"once={code}", origin="http://elsewhere.example")).code == 403
        used = await login(form=f"once={code}")
        assert used.code == 200
        assert used.headers["Set-Cookie"].startswith("malletrain_7706=")
        again = await login(form=f"once={code}")
        assert (again.code, again.headers.get("Set-Cookie")) == (401, None)
        assert b"malletrain dashboard --link" in again.body
        assert (await login(f"?once={code}")).code == 401
        assert (await login(form=f"once={revoked}")).code == 401
    finally:
        server.stop()
        await server.close_all_connections()
