"""Documents that are made before somebody asks for them: of the pages that were looked at lately."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bokeh.server.tornado import BokehTornado
from bokeh.util.token import generate_session_id

from malletrain.dashboard.documents import begun
from malletrain.dashboard.pages import Page
from malletrain.dashboard.selection import Selection

if TYPE_CHECKING:
    from malletrain.dashboard.serving import Dashboard

UNUSED_S = 60.0
"""How long a document waits for its browser, which may be busy."""
_MOST = 6
_KEPT_S = 600.0
"""How long a spare waits for somebody."""
_PAUSE_S = 0.3
"""From a page that was drawn to the making of its spare: its viewer has what is urgent by then."""

_Key = tuple[type[Page], Selection, str]


@dataclass(frozen=True)
class Spare:
    """A document that nobody looks at yet.

    Attributes:
        page: Its page.
        session: Its session of Bokeh.
    """

    page: Page
    session: Any


class Spares:
    """Keeps one document ready for each of some pages. What is in it is no viewer's alone."""

    def __init__(self, server: Dashboard, tornado: BokehTornado) -> None:
        """Make nothing yet."""
        self._server, self._tornado = server, tornado
        self._kept: OrderedDict[_Key, Spare] = OrderedDict()
        self._making: set[asyncio.Task[None]] = set()

    def pages(self) -> list[Page]:
        """The pages of all spares."""
        return [spare.page for spare in self._kept.values()]

    def take(self, page: type[Page], selection: Selection, theme: str) -> Spare | None:
        """The spare of a page, which then is somebody's; None: there is none."""
        found = self._kept.pop((page, selection, theme), None)
        if found is not None:
            # Its browser has not connected yet.
            asyncio.get_running_loop().call_later(UNUSED_S, found.session.unblock_expiration)
        return found

    def drawn(self, page: Page) -> None:
        """A page was drawn: make a spare for the next one who wants the same."""
        task = asyncio.get_running_loop().create_task(self._make(page))
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _make(self, like: Page) -> None:
        await asyncio.sleep(_PAUSE_S)
        key = (type(like), like.selection, like.theme)
        if key in self._kept:
            return
        page = type(like)(self._server.board, like.viewer, like.selection, like.theme)
        begun.set(page)
        secret, signed = self._tornado.secret_key, self._tornado.sign_sessions
        session_id = generate_session_id(secret_key=secret, signed=signed)
        session = await self._tornado.applications[f"/{page.name}"].create_session_if_needed(session_id)
        session.block_expiration()
        spare = self._kept[key] = Spare(page, session)
        while len(self._kept) > _MOST:
            self._drop(next(iter(self._kept.items())))
        asyncio.get_running_loop().call_later(_KEPT_S, self._drop, (key, spare))

    def _drop(self, entry: tuple[_Key, Spare]) -> None:
        key, spare = entry
        if self._kept.get(key) is spare:
            del self._kept[key]
            spare.session.unblock_expiration()
            spare.session.request_expiration()
