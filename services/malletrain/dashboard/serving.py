"""Serves the pages to browsers, and brings open documents up to date."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
from typing import Any

import structlog
from bokeh.application import Application
from bokeh.document import Document
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.routing import Rule, RuleRouter

from malletrain.dashboard.board import Board
from malletrain.dashboard.documents import PageHandler, PageView
from malletrain.dashboard.gate import Gate, OurHost, Sessions
from malletrain.dashboard.handlers import Alive, Csv, Files, Login, Root, WhatIfs
from malletrain.dashboard.identities import UnverifiableError, Viewer, Viewers
from malletrain.dashboard.job_page import JobPage
from malletrain.dashboard.jobs_page import JobsPage
from malletrain.dashboard.nodes_page import NodesPage
from malletrain.dashboard.now_page import NowPage
from malletrain.dashboard.pages import Page
from malletrain.dashboard.plan_page import PlanPage
from malletrain.dashboard.replays import Replays
from malletrain.dashboard.spares import UNUSED_S, Spares
from malletrain.dashboard.watching import Watcher
from malletrain.dashboard.week_page import WeekPage

_PAGES: dict[str, type[Page]] = {
    page.name: page for page in (NowPage, JobsPage, JobPage, PlanPage, NodesPage, WeekPage)
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LEAST_PAUSE_S = 0.25
_PAUSE_PER_VIEWER_S = 0.02
_LONGEST_PAUSE_S = 0.7
_SLOW_S = 5.0
"""How often what moves by itself is shown: samples, rates, ages."""
_VERIFY_S = 30.0


class Dashboard:
    """The server of the pages.

    Attributes:
        board: What all viewers share.
        pages: The documents that are open.
        viewers: Verifies tokens.
        sessions: Cookies.
        spares: Documents that nobody looks at yet.
        scripts_asked: Set for a moment when a browser is sent the scripts that draw figures.
    """

    def __init__(
        self,
        watcher: Watcher,
        replays: Replays,
        host: str,
        port: int,
        names: tuple[str, ...],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Listen, and serve nothing yet.

        Args:
            watcher: Follows the services.
            replays: Replays of the past.
            host: Address of this machine.
            port: Port; 0: any.
            names: Names by which browsers reach it, besides those of loopback.
            tls: Certificate; None: plain HTTP.

        Raises:
            OSError: one can't listen there.
        """
        self.board = Board(watcher, replays)
        self.pages: set[Page] = set()
        self.scripts_asked = asyncio.Event()
        self._bringing: set[asyncio.Task[None]] = set()
        self.viewers = Viewers(lambda: watcher.channel("job_manager"), watcher.now)
        known = (*_LOOPBACK, *(name.lower() for name in names))
        self._watcher = watcher
        # Bokeh and Tornado log requests, and so the tokens of links.
        for name in ("tornado.access", "bokeh"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self.sessions = Sessions(port, tls is not None)
        options = {"server": self}
        patterns: list[Any] = [
            ("/", Root, options),
            ("/login", Login, options),
            ("/alive", Alive, options),
            (r"/files/([a-z.]+)", Files, options),
            (r"/csv/([a-z]+)/([a-z]+)", Csv, options),
            (r"/week/(replay|cancel)", WhatIfs, options),
        ]
        self._tornado = BokehTornado(
            {f"/{name}": Application(PageHandler(self, page)) for name, page in _PAGES.items()},
            auth_provider=Gate(self.viewers, self.sessions),
            extra_patterns=patterns,
            extra_websocket_origins=[f"{name}:*" for name in known] + list(known),
            use_index=False,
            include_headers=[],
            include_cookies=["theme"],
            sign_sessions=True,
            secret_key=secrets.token_bytes(32),
            check_unused_sessions_milliseconds=2000,
            unused_session_lifetime_milliseconds=round(1000 * UNUSED_S),
            websocket_max_message_size_bytes=2**20,
            compress_response=True,
        )
        # In place of Bokeh's own, which sends nothing before the whole document is made.
        self._tornado.add_handlers(
            ".*",
            [
                (
                    f"/{name}/?",
                    PageView,
                    {
                        "server": self,
                        "page": page,
                        "application_context": self._tornado.applications[f"/{name}"],
                        "bokeh_websocket_path": f"/{name}/ws",
                    },
                )
                for name, page in _PAGES.items()
            ],
        )
        self.spares = Spares(self, self._tornado)
        router = RuleRouter([Rule(OurHost(known), self._tornado)])
        self._http = HTTPServer(router, ssl_options=tls, max_body_size=2**16, max_buffer_size=2**20)
        self._http.listen(port, host)
        self._server = BaseServer(IOLoop.current(), self._tornado, self._http)

    def known(self, request: HTTPServerRequest) -> Viewer | None:
        """Who makes a request that was let in."""
        return self.viewers.by_token(self.sessions.token(request))

    def opened(self, page: Page) -> None:
        """A page has a viewer from now on."""

        def ready() -> None:
            self.bring(page)
            self.spares.drawn(page)

        page.when_ready = ready
        self.pages.add(page)

    async def run(self) -> None:
        """Serve until cancelled."""
        self._server.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._refresh())
                group.create_task(self._verify())
        finally:
            self._server.stop()
            await self.board.replays.close()

    async def _refresh(self) -> None:
        """Bring documents up to date: soon after something notable, and every few seconds."""
        changed = self._watcher.changed
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _SLOW_S)
            changed.clear()
            connected = self._connected()
            seen = [page for page in self.pages if page.visible and page.document in connected]
            if seen:
                self.board.refresh()
                used = (*self.pages, *self.spares.pages())
                self.board.keep({id(series) for page in used for series in page.bound()})
                for page in seen:
                    self.bring(page)
            await asyncio.sleep(min(_LONGEST_PAUSE_S, _LEAST_PAUSE_S + _PAUSE_PER_VIEWER_S * len(seen)))

    def _connected(self) -> set[Document]:
        """The documents that a browser shows: those of viewers who have left cost nothing more."""
        sessions = (session for name in _PAGES for session in self._tornado.get_sessions(f"/{name}"))
        return {session.document for session in sessions if session.connection_count}

    def bring(self, page: Page) -> None:
        """Ask for what only its viewer may see, and bring a document up to date."""
        task = asyncio.get_running_loop().create_task(self._bring(page))
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    async def _bring(self, page: Page) -> None:
        await page.ask()
        if page in self.pages and page.document is not None:
            page.document.add_next_tick_callback(page.refresh)

    async def _verify(self) -> None:
        """Turn away viewers whose token has expired or was revoked."""
        while True:
            await asyncio.sleep(_VERIFY_S)
            for page in list(self.pages):
                if not await self._still_known(page) and page in self.pages and page.document is not None:
                    page.visible = False
                    page.document.add_next_tick_callback(page.turn_away)
                    self.pages.discard(page)

    async def _still_known(self, page: Page) -> bool:
        try:
            return await self.viewers.verify(page.viewer.token) is not None
        except UnverifiableError:
            structlog.get_logger(__name__).info("a viewer can't be verified now", user=page.viewer.user)
            return True
