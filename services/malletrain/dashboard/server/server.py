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
from tornado.ioloop import IOLoop
from tornado.routing import Rule, RuleRouter

from malletrain.common.tasks import lasting
from malletrain.dashboard.identities import UnverifiableError, Viewers
from malletrain.dashboard.pages.compare_page import ComparePage
from malletrain.dashboard.pages.job_page import JobPage
from malletrain.dashboard.pages.jobs_page import JobsPage
from malletrain.dashboard.pages.nodes_page import NodesPage
from malletrain.dashboard.pages.now_page import NowPage
from malletrain.dashboard.pages.page import Page, SharedData
from malletrain.dashboard.pages.plan_page import PlanPage
from malletrain.dashboard.pages.selection import ZONE_COOKIE, Selection
from malletrain.dashboard.pages.usage_page import UsagePage
from malletrain.dashboard.pages.week_page import WeekPage
from malletrain.dashboard.replays import Replays
from malletrain.dashboard.server.context import ServerContext
from malletrain.dashboard.server.documents import UNUSED_S, PageHandler, PageView, PreparedDocument, PreparedDocuments
from malletrain.dashboard.server.handlers import Actions, Alive, Csv, Files, Login, Root, WhatIfs
from malletrain.dashboard.server.page_access import OurHost, PageAccess, Sessions
from malletrain.observer.watching import Watcher

_PAGES: dict[str, type[Page]] = {
    page.name: page for page in (NowPage, JobsPage, JobPage, ComparePage, PlanPage, NodesPage, WeekPage, UsagePage)
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MIN_PAUSE_S = 0.25
_PAUSE_PER_VIEWER_S = 0.02
_MAX_PAUSE_S = 0.7
_SLOW_S = 5.0
"""How often what moves by itself is shown: samples, rates, ages."""
_VERIFY_S = 30.0


class Dashboard:
    """The server of the pages.

    Attributes:
        context: What its parts share.
        prepared: Documents that nobody looks at yet.
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
        """Listens; connections are answered once `run` runs.

        Args:
            port: Port; 0: any.
            names: Names by which browsers reach it, besides those of loopback.
            tls: Certificate; None: plain HTTP.

        Raises:
            OSError: one can't listen there.
        """
        viewers = Viewers(lambda: watcher.channel("job_manager"), watcher.now)
        self.context = ServerContext(SharedData(watcher, replays), viewers, Sessions(port, tls is not None))
        known = (*_LOOPBACK, *(name.lower() for name in names))
        self._watcher = watcher
        # Bokeh and Tornado log requests, and so the tokens of links; Tornado those that end with 503 as errors.
        logging.getLogger("bokeh").setLevel(logging.ERROR)
        logging.getLogger("tornado.access").setLevel(logging.CRITICAL)
        options = {"context": self.context}
        patterns: list[Any] = [
            ("/", Root, options),
            ("/login", Login, options),
            ("/alive", Alive, options),
            (r"/files/([a-z.]+)", Files, options),
            (r"/csv/([a-z]+)/([a-z]+)", Csv, options),
            (r"/week/(replay|cancel)", WhatIfs, options),
            (r"/act/(cancel|drain|resume)", Actions, options),
        ]
        self._tornado = BokehTornado(
            {f"/{name}": Application(PageHandler(self.context, page)) for name, page in _PAGES.items()},
            auth_provider=PageAccess(viewers, self.context.sessions),
            extra_patterns=patterns,
            extra_websocket_origins=[f"{name}:*" for name in known] + list(known),
            use_index=False,
            include_headers=[],
            include_cookies=["theme", ZONE_COOKIE],
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
                        "context": self.context,
                        "take_prepared": self._take_prepared,
                        "page": page,
                        "application_context": self._tornado.applications[f"/{name}"],
                        "bokeh_websocket_path": f"/{name}/ws",
                    },
                )
                for name, page in _PAGES.items()
            ],
        )
        self.prepared = PreparedDocuments(self.context.shared, self._tornado)
        self.context.on_drawn = self.prepared.prepare_like
        router = RuleRouter([Rule(OurHost(known), self._tornado)])
        self._http = HTTPServer(router, ssl_options=tls, max_body_size=2**16, max_buffer_size=2**20)
        self._http.listen(port, host)
        self._server = BaseServer(IOLoop.current(), self._tornado, self._http)

    def _take_prepared(self, page: type[Page], selection: Selection, theme: str) -> PreparedDocument | None:
        return self.prepared.take_document(page, selection, theme)

    async def run(self) -> None:
        """Serve until cancelled."""
        self._server.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(lasting(self._refresh(), "refresh"))
                group.create_task(lasting(self._verify(), "verify"))
        finally:
            self._server.stop()
            await self.context.shared.replays.close()

    async def _refresh(self) -> None:
        """Bring documents up to date: soon after something notable, and every few seconds."""
        changed = self._watcher.changed
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _SLOW_S)
            changed.clear()
            connected = self._connected_documents()
            context = self.context
            seen = [page for page in context.pages if page.visible and page.document in connected]
            if seen:
                context.shared.refresh()
                used = (*context.pages, *self.prepared.pages())
                context.shared.keep_series({id(series) for page in used for series in page.bound()})
                for page in seen:
                    context.update_page(page)
            await asyncio.sleep(min(_MAX_PAUSE_S, _MIN_PAUSE_S + _PAUSE_PER_VIEWER_S * len(seen)))

    def _connected_documents(self) -> set[Document]:
        """The documents that a browser shows: those of viewers who have left cost nothing more."""
        sessions = (session for name in _PAGES for session in self._tornado.get_sessions(f"/{name}"))
        return {session.document for session in sessions if session.connection_count}

    async def _verify(self) -> None:
        """Turn away viewers whose token has expired or was revoked."""
        pages = self.context.pages
        while True:
            await asyncio.sleep(_VERIFY_S)
            for page in list(pages):
                if not await self._still_known(page) and page in pages and page.document is not None:
                    page.visible = False
                    page.document.add_next_tick_callback(page.turn_away)
                    pages.discard(page)

    async def _still_known(self, page: Page) -> bool:
        try:
            return await self.context.viewers.verify(page.viewer.token) is not None
        except UnverifiableError:
            structlog.get_logger(__name__).info("a viewer can't be verified now", user=page.viewer.user)
            return True
