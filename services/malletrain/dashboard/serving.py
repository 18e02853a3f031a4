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
from bokeh.application.handlers.handler import Handler
from bokeh.document import Document
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.routing import Rule, RuleRouter
from tornado.web import HTTPError

from malletrain.dashboard.board import Board
from malletrain.dashboard.gate import Gate, OurHost, Sessions
from malletrain.dashboard.handlers import Alive, Csv, Files, Login, Root
from malletrain.dashboard.identities import UnverifiableError, Viewer, Viewers
from malletrain.dashboard.job_page import JobPage
from malletrain.dashboard.jobs_page import JobsPage
from malletrain.dashboard.nodes_page import NodesPage
from malletrain.dashboard.now_page import NowPage
from malletrain.dashboard.pages import Page
from malletrain.dashboard.plan_page import PlanPage
from malletrain.dashboard.selection import Selection
from malletrain.dashboard.watching import Watcher

_PAGES: dict[str, type[Page]] = {page.name: page for page in (NowPage, JobsPage, JobPage, PlanPage, NodesPage)}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LEAST_PAUSE_S = 0.25
_PAUSE_PER_VIEWER_S = 0.02
_LONGEST_PAUSE_S = 0.7
_SLOW_S = 5.0
"""How often what moves by itself is shown: samples, rates, ages."""
_VERIFY_S = 30.0


class PageHandler(Handler):  # type: ignore[misc]  # Bokeh is not checked
    """Makes the documents of one page."""

    def __init__(self, server: Dashboard, page: type[Page]) -> None:
        super().__init__()
        self._server, self._page = server, page

    def process_request(self, request: HTTPServerRequest) -> dict[str, Any]:
        """What of a request a document is told of: who made it, by an identifier that is no secret."""
        viewer = self._server.known(request)
        return {"viewer": viewer.token_id if viewer is not None else ""}

    def modify_document(self, doc: Document) -> None:
        """Fill a document."""
        context: Any = doc.session_context
        viewer = self._server.viewers.by_id(str(context.token_payload.get("viewer", "")))
        if viewer is None:
            raise HTTPError(403)
        theme = context.request.cookies.get("theme", "light")
        selection = Selection.of(context.request.arguments)
        page = self._page(self._server.board, viewer, selection, theme if theme in ("light", "dark") else "light")
        page.open(doc)
        page.when_ready = lambda: self._server.bring(page)
        self._server.pages.add(page)
        doc.on_session_destroyed(lambda _: self._server.pages.discard(page))


class Dashboard:
    """The server of the pages.

    Attributes:
        board: What all viewers share.
        pages: The documents that are open.
        viewers: Verifies tokens.
        sessions: Cookies.
    """

    def __init__(
        self, watcher: Watcher, host: str, port: int, names: tuple[str, ...], tls: ssl.SSLContext | None
    ) -> None:
        """Listen, and serve nothing yet.

        Args:
            watcher: Follows the services.
            host: Address of this machine.
            port: Port; 0: any.
            names: Names by which browsers reach it, besides those of loopback.
            tls: Certificate; None: plain HTTP.

        Raises:
            OSError: one can't listen there.
        """
        self.board = Board(watcher)
        self.pages: set[Page] = set()
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
            # A busy browser may take its time from the page's HTML to its connection.
            unused_session_lifetime_milliseconds=60_000,
            websocket_max_message_size_bytes=2**20,
            compress_response=True,
        )
        router = RuleRouter([Rule(OurHost(known), self._tornado)])
        self._http = HTTPServer(router, ssl_options=tls, max_body_size=2**16, max_buffer_size=2**20)
        self._http.listen(port, host)
        self._server = BaseServer(IOLoop.current(), self._tornado, self._http)

    def known(self, request: HTTPServerRequest) -> Viewer | None:
        """Who makes a request that was let in."""
        return self.viewers.by_token(self.sessions.token(request))

    async def run(self) -> None:
        """Serve until cancelled."""
        self._server.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._refresh())
                group.create_task(self._verify())
        finally:
            self._server.stop()

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
                self.board.keep({id(series) for page in self.pages for series in page.bound()})
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
