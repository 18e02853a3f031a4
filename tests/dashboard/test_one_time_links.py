"""Links that let one browser in: codes, and the socket by which a running dashboard tells its account another one."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from typer.testing import CliRunner

from malletrain.cli.main import application
from malletrain.cli.operate.dashboard import ask_for_link, listening, may_print_link, tell_links
from malletrain.common.connection_owner import Endpoint
from malletrain.dashboard.identities import UnverifiableError, Viewer
from malletrain.dashboard.one_time_links import LIFESPAN_S, MAX_LINKS, MAX_LOGGED_REFUSALS, OneTimeLinks
from malletrain.dashboard.server.handlers import Login
from malletrain.dashboard.server.link_peers import OwnerOf, objection, owner_by_kernel
from malletrain.dashboard.server.page_access import Sessions
from tests.support.stranger import as_nobody, needs_another_account


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_link_is_used_once() -> None:
    links = OneTimeLinks(Clock())
    code = links.new("token")
    assert [links.token(code), links.token(code)] == ["token", "token"]  # a look, e.g. of a preview, does not use it up
    mark = links.open(code, "")
    assert [links.use(code, mark), links.use(code, mark), links.token(code)] == ["token", "", ""]
    assert links.token("") == links.token("\udcff") == links.use("nonsense", "") == links.open("nonsense", "") == ""


def test_a_link_is_for_the_browser_that_opens_it_first() -> None:
    links = OneTimeLinks(Clock())
    code, other = links.new("token"), links.new("another token")
    assert links.use(code, "") == ""  # nobody has opened it
    mark = links.open(code, "")
    assert mark
    assert links.open(code, mark) == mark
    assert links.open(code, "") == links.open(code, "guess") == links.open(code, "\udcff") == ""
    assert links.use(code, "") == links.use(code, links.open(other, mark)) == ""
    assert links.is_for(code, mark)
    assert links.use(code, mark) == "token"


def test_refusals_are_logged_a_few_times() -> None:
    links = OneTimeLinks(Clock())
    code = links.new("token")
    assert [links.refuse(code) for _ in range(MAX_LOGGED_REFUSALS + 2)] == [*[True] * MAX_LOGGED_REFUSALS, False, False]
    assert not links.refuse("nonsense")


def test_a_link_is_good_for_a_short_time() -> None:
    clock = Clock()
    links = OneTimeLinks(clock)
    code = links.new("token")
    mark = links.open(code, "")
    clock.now = LIFESPAN_S - 1
    assert links.token(code) == "token"
    clock.now = LIFESPAN_S
    assert [links.token(code), links.open(code, ""), links.use(code, mark)] == ["", "", ""]


def test_of_too_many_links_the_oldest_is_void() -> None:
    links = OneTimeLinks(Clock())
    codes = [links.new(f"token {number}") for number in range(MAX_LINKS + 1)]
    assert len(set(codes)) == MAX_LINKS + 1
    assert [links.token(code) for code in codes] == ["", *(f"token {number}" for number in range(1, MAX_LINKS + 1))]


def test_nothing_shows_a_token() -> None:
    links = OneTimeLinks(Clock())
    code = links.new("very secret")
    assert links.open(code, "") not in repr(vars(links))
    assert "very secret" not in repr(vars(links))
    assert code not in repr(vars(links))


async def test_a_running_dashboard_tells_its_account_a_new_link(tmp_path: Path) -> None:
    told: list[str] = []

    async def new_link() -> str:
        told.append(f"http://127.0.0.1:7706/login?once={len(told)}")
        return told[-1]

    folder = tmp_path / "links"
    with listening(folder, "127.0.0.1", 7706) as listener:
        task = asyncio.create_task(tell_links(listener, new_link))
        found = [await asyncio.to_thread(ask_for_link, folder, "127.0.0.1", 7706) for _ in range(2)]
        other = await asyncio.to_thread(ask_for_link, folder, "127.0.0.1", 7707)
        task.cancel()
    assert found == told
    assert other is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert await asyncio.to_thread(ask_for_link, folder, "127.0.0.1", 7706) is None


def test_a_folder_that_others_could_have_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "links").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match=r"links"), listening(tmp_path / "links", "127.0.0.1", 7706):
        pass
    with pytest.raises(OSError, match=r"links"):
        ask_for_link(tmp_path / "links", "127.0.0.1", 7706)


async def test_dashboards_on_one_port_of_several_addresses_have_a_socket_each(tmp_path: Path) -> None:
    async def link_of(host: str) -> str:
        return f"http://{host}/login?once=code"

    with listening(tmp_path, "127.0.0.1", 7706) as one, listening(tmp_path, "::1", 7706) as other:
        tasks = [asyncio.create_task(tell_links(one, partial(link_of, "one")))]
        tasks.append(asyncio.create_task(tell_links(other, partial(link_of, "other"))))
        found = [await asyncio.to_thread(ask_for_link, tmp_path, host, 7706) for host in ("127.0.0.1", "::1")]
        for task in tasks:
            task.cancel()
    assert found == ["http://one/login?once=code", "http://other/login?once=code"]
    assert list(tmp_path.iterdir()) == []


def test_a_dashboard_of_another_machine_has_a_socket_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(tmp_path, "127.0.0.1", 7706):
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        assert ask_for_link(tmp_path, "127.0.0.1", 7706) is None
        with listening(tmp_path, "127.0.0.1", 7706):
            assert len(list(tmp_path.iterdir())) == 2


def test_the_socket_of_a_later_dashboard_stays(tmp_path: Path) -> None:
    with ExitStack() as later:
        with listening(tmp_path, "127.0.0.1", 7706):
            later.enter_context(listening(tmp_path, "127.0.0.1", 7706))  # in its place
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), listening(tmp_path, "127.0.0.1", 7706):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_printed_on_a_terminal_only_whatever_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with Path(os.devnull).open("w", encoding="ascii") as log, monkeypatch.context() as piped:
        piped.setattr(sys, "stdout", log)
        assert not may_print_link()
    found = CliRunner().invoke(application("dashboard"), ["dashboard", "--link"])
    assert found.exit_code != 0
    assert "a terminal to print on" in found.output + str(found.exception)


OUR_UID = os.geteuid()
PEER, LOCAL = ("127.0.0.1", 4711), ("127.0.0.1", 7706)
ELSEWHERE = ("10.0.0.9", 4711)


@pytest.mark.parametrize(
    ("peer", "owners", "expected"),
    [
        (PEER, {(PEER, LOCAL): 7, (LOCAL, PEER): 7}, ""),
        (PEER, {(PEER, LOCAL): 8, (LOCAL, PEER): 7}, "opened by user id 8 of this machine, expected 7"),
        (PEER, {(PEER, LOCAL): 0}, "opened by user id 0 of this machine, expected 7"),
        (ELSEWHERE, {(ELSEWHERE, LOCAL): 8}, "opened by user id 8 of this machine, expected 7"),  # by another address
        (ELSEWHERE, {(LOCAL, ELSEWHERE): 7}, ""),  # of another machine
        (PEER, {(LOCAL, PEER): 7}, "whoever opened it has gone, so that the kernel no longer says who it was"),
        (PEER, {}, ""),  # the kernel tells nothing
    ],
)
def test_a_link_is_for_the_account_of_the_dashboard(
    peer: Endpoint, owners: dict[tuple[Endpoint, Endpoint], int], expected: str
) -> None:
    assert objection((peer, LOCAL), 7, lambda one, other: owners.get((one, other))) == expected


class KnownViewers:
    """Knows one token, or nobody while JobManager is said not to answer."""

    def __init__(self) -> None:
        self.answers = True
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def verify(self, token: str) -> Viewer | None:
        self.asked.set()
        await self.go_on.wait()
        if not self.answers:
            raise UnverifiableError
        return Viewer("ada", "viewer", "id", 1e12, token) if token == "good" else None


@dataclass
class LoginContext:
    viewers: KnownViewers = field(default_factory=KnownViewers)
    sessions: Sessions = field(default_factory=lambda: Sessions(7706, secure=False))
    links: OneTimeLinks = field(default_factory=lambda: OneTimeLinks(Clock()))
    owner_of: OwnerOf = owner_by_kernel


@dataclass
class Browser:
    """Keeps cookies."""

    base: str
    cookies: dict[str, str] = field(default_factory=dict)

    async def login(self, query: str = "", form: str | None = None, origin: str = "") -> HTTPResponse:
        headers = {"Origin": origin or self.base}
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        method = "GET" if form is None else "POST"
        found = await AsyncHTTPClient().fetch(
            f"{self.base}/login{query}",
            method=method,
            body=form,
            headers=headers,
            raise_error=False,
            request_timeout=60,
        )
        for text in found.headers.get_list("Set-Cookie"):
            assert "HttpOnly" in text
            assert "SameSite=Strict" in text
            name, _, value = text.partition(";")[0].partition("=")
            self.cookies[name] = value
        return found


@asynccontextmanager
async def serving(context: LoginContext) -> AsyncIterator[str]:
    """The way in, on a port of loopback; gives its address."""
    server = HTTPServer(Application([("/login", Login, {"context": context})]))
    (listener,) = bind_sockets(0, "127.0.0.1")
    server.add_socket(listener)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop()
        await server.close_all_connections()


async def test_a_link_is_looked_at_and_then_used_by_one_browser() -> None:
    context = LoginContext()
    code, revoked = context.links.new("good"), context.links.new("revoked")
    async with serving(context) as base:
        browser = Browser(base)
        for _ in range(2):
            look = await browser.login(f"?once={code}")
            assert look.code == 200
            assert b"Go on as ada, viewer" in look.body
            assert b"good" not in look.body
            assert list(browser.cookies) == ["malletrain_7706_link"]
        assert (await browser.login(form=f"once={code}", origin="http://elsewhere.example")).code == 403
        assert (await browser.login(form=f"once={code}")).code == 200
        assert browser.cookies["malletrain_7706"]
        again = await Browser(base, {"malletrain_7706_link": browser.cookies["malletrain_7706_link"]}).login(
            form=f"once={code}"
        )
        assert (again.code, again.headers.get("Set-Cookie")) == (401, None)
        assert b"malletrain dashboard --link" in again.body
        assert (await browser.login(f"?once={code}")).code == 401
        assert (await browser.login(f"?once={revoked}")).code == 401


async def test_another_browser_that_has_seen_the_link_does_not_get_in() -> None:
    context = LoginContext()
    code = context.links.new("good")
    async with serving(context) as base:
        ours, other = Browser(base), Browser(base, {"malletrain_7706_link": "guess"})
        with capture_logs() as logs:
            refused = [await other.login(form=f"once={code}")]  # before anybody has opened it
            assert (await ours.login(f"?once={code}")).code == 200
            refused += [await other.login(f"?once={code}"), await other.login(form=f"once={code}")]
        assert [answer.code for answer in refused] == [403] * 3
        assert all(b"for the browser that opened it first" in answer.body for answer in refused)
        assert other.cookies == {"malletrain_7706_link": "guess"}
        assert [entry["event"] for entry in logs] == ["a link that lets in one browser was refused"] * 3
        assert code not in str(logs)
        assert (await ours.login(form=f"once={code}")).code == 200


AS_ANOTHER_ACCOUNT = """
import http.client
def ask(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    headers = {"Origin": f"http://127.0.0.1:{sys.argv[1]}", "Content-Type": "application/x-www-form-urlencoded"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    print(answer.status, answer.getheader("Set-Cookie"), b"of the account that started the dashboard" in answer.read())
ask("GET", f"/login?once={sys.argv[2]}")
ask("POST", "/login", f"once={sys.argv[2]}")
"""


@needs_another_account
async def test_another_account_of_the_machine_does_not_get_in_by_a_link() -> None:
    context = LoginContext()
    code = context.links.new("good")
    async with serving(context) as base:
        port = base.rpartition(":")[2]
        with capture_logs() as logs:
            said = await asyncio.to_thread(as_nobody, AS_ANOTHER_ACCOUNT, port, code, imports="import http.client")
        assert said.splitlines() == ["403 None True"] * 2
        uid = pwd.getpwnam("nobody").pw_uid
        assert [entry["why"] for entry in logs] == [f"opened by user id {uid} of this machine, expected {OUR_UID}"] * 2
        assert code not in str(logs)
        browser = Browser(base)  # it has not used the link up
        assert (await browser.login(f"?once={code}")).code == 200
        assert (await browser.login(form=f"once={code}")).code == 200


async def test_where_the_kernel_tells_nothing_the_first_browser_gets_in() -> None:
    context = LoginContext(owner_of=lambda *_: None)
    code = context.links.new("good")
    async with serving(context) as base:
        browser = Browser(base)
        assert (await browser.login(f"?once={code}")).code == 200
        assert (await Browser(base).login(form=f"once={code}")).code == 403
        assert (await browser.login(form=f"once={code}")).code == 200


async def test_a_link_is_not_used_up_while_job_manager_does_not_answer() -> None:
    context = LoginContext()
    code = context.links.new("good")
    async with serving(context) as base:
        browser = Browser(base)
        context.viewers.answers = False
        assert (await browser.login(f"?once={code}")).code == 503
        context.viewers.answers = True
        assert (await browser.login(f"?once={code}")).code == 200
        context.viewers.answers = False
        assert (await browser.login(form=f"once={code}")).code == 503
        context.viewers.answers = True
        assert (await browser.login(form=f"once={code}")).code == 200


async def test_of_two_forms_at_once_one_lets_in() -> None:
    context = LoginContext()
    code = context.links.new("good")
    async with serving(context) as base:
        browser = Browser(base)
        await browser.login(f"?once={code}")
        context.viewers.go_on.clear()
        asked = []
        for _ in range(2):
            context.viewers.asked.clear()
            asked.append(asyncio.create_task(browser.login(form=f"once={code}")))
            await asyncio.wait_for(context.viewers.asked.wait(), 60)
        context.viewers.go_on.set()
        assert sorted([(await answer).code for answer in asked]) == [200, 401]
