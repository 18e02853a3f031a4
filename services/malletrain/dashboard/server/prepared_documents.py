"""Documents that are made before somebody asks for them: of the pages that were looked at lately."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from bokeh.server.tornado import BokehTornado
from bokeh.util.token import generate_session_id

from malletrain.common.tasks import start_task
from malletrain.dashboard.pages.page import Page
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.shared_data import SharedData
from malletrain.runtime.failures import log_failure

UNUSED_S = 60.0
"""How long a document waits for its browser, which may be busy."""
_MAX_KEPT = 6
_KEPT_S = 600.0
"""How long a prepared document waits for somebody."""
_PAUSE_S = 0.3
"""Between the moment when a page was drawn and the making of another: its viewer has what is urgent by then."""

begun: ContextVar[Page | None] = ContextVar("begun", default=None)
"""The page whose document is made now."""

_Key = tuple[type[Page], Selection, str]


@dataclass(frozen=True)
class PreparedDocument:
    """A document that nobody looks at yet.

    Attributes:
        page: Its page.
        session: Its session of Bokeh.
    """

    page: Page
    session: Any


class PreparedDocuments:
    """Keeps one document ready for each of some pages. What is in it is no viewer's alone."""

    def __init__(self, shared: SharedData, tornado: BokehTornado) -> None:
        self._shared, self._tornado = shared, tornado
        self._kept: OrderedDict[_Key, PreparedDocument] = OrderedDict()
        self._making: set[asyncio.Task[object]] = set()

    def pages(self) -> list[Page]:
        """The pages of all prepared documents."""
        return [document.page for document in self._kept.values()]

    def take(self, page: type[Page], selection: Selection, theme: str) -> PreparedDocument | None:
        """The prepared document of a page, which then is somebody's; None: there is none."""
        found = self._kept.pop((page, selection, theme), None)
        if found is not None:
            # Its browser has not connected yet.
            asyncio.get_running_loop().call_later(UNUSED_S, found.session.unblock_expiration)
        return found

    def prepare_like(self, page: Page) -> None:
        """Prepare a document like one that was drawn, for the next viewer who wants the same."""
        task = start_task(self._make(page), "prepared page", log_failure)
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _make(self, like: Page) -> None:
        await asyncio.sleep(_PAUSE_S)
        key = (type(like), like.selection, like.theme)
        if key in self._kept:
            return
        page = type(like)(self._shared, like.viewer, like.selection, like.theme)
        begun.set(page)
        secret, signed = self._tornado.secret_key, self._tornado.sign_sessions
        session_id = generate_session_id(secret_key=secret, signed=signed)
        session = await self._tornado.applications[f"/{page.name}"].create_session_if_needed(session_id)
        session.block_expiration()
        document = self._kept[key] = PreparedDocument(page, session)
        while len(self._kept) > _MAX_KEPT:
            self._drop(next(iter(self._kept.items())))
        asyncio.get_running_loop().call_later(_KEPT_S, self._drop, (key, document))

    def _drop(self, entry: tuple[_Key, PreparedDocument]) -> None:
        key, document = entry
        if self._kept.get(key) is document:
            del self._kept[key]
            document.session.unblock_expiration()
            document.session.request_expiration()
