"""What the parts of the server share: who is looking at which page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tornado.httputil import HTTPServerRequest

from malletrain.common.tasks import start_task
from malletrain.dashboard.identities import Viewer, Viewers
from malletrain.dashboard.one_time_links import OneTimeLinks
from malletrain.dashboard.pages.page import Page, SharedData
from malletrain.dashboard.server.link_peers import OwnerOf, owner_by_kernel
from malletrain.dashboard.server.page_access import Sessions
from malletrain.runtime.logs import log_failure


@dataclass
class ServerContext:
    """Made by `Dashboard`, and given to all that answers browsers. Use from one event loop.

    Attributes:
        shared: What all viewers share.
        viewers: Verifies tokens.
        sessions: Cookies.
        links: Links that let one browser in.
        owner_of: Says which account of this machine is at the other end of a connection. May block.
        on_drawn: Called with each page that a browser has drawn.
        pages: The documents that are open.
        scripts_asked: Set for a moment when a browser is sent the scripts that draw figures.
    """

    shared: SharedData
    viewers: Viewers
    sessions: Sessions
    links: OneTimeLinks = field(default_factory=lambda: OneTimeLinks(time.monotonic))
    owner_of: OwnerOf = owner_by_kernel
    on_drawn: Callable[[Page], object] = lambda _: None
    pages: set[Page] = field(default_factory=set)
    scripts_asked: asyncio.Event = field(default_factory=asyncio.Event)
    _updates: set[asyncio.Task[object]] = field(default_factory=set)

    def viewer_of(self, request: HTTPServerRequest) -> Viewer | None:
        """The viewer who makes a request that was let in."""
        return self.viewers.by_token(self.sessions.token(request))

    def open_page(self, page: Page) -> None:
        """A page has a viewer from now on."""

        def update_drawn() -> None:
            self.update_page(page)
            self.on_drawn(page)

        page.when_ready = update_drawn
        self.pages.add(page)

    def update_page(self, page: Page) -> None:
        """Ask for what only its viewer may see, and bring a document up to date."""
        task = start_task(self._update(page), "page", log_failure)
        self._updates.add(task)
        task.add_done_callback(self._updates.discard)

    async def _update(self, page: Page) -> None:
        await page.ask()
        if page in self.pages and page.document is not None:
            page.document.add_next_tick_callback(page.refresh)
