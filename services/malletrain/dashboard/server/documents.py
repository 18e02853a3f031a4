"""Makes the pages: first what can be read, at once, and then the document with the figures."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from bokeh.application.handlers.handler import Handler
from bokeh.document import Document
from bokeh.embed.elements import script_for_render_items
from bokeh.embed.util import RenderItem
from bokeh.embed.wrappers import wrap_in_script_tag
from bokeh.server.tornado import BokehTornado
from bokeh.server.views.session_handler import SessionHandler
from bokeh.util.token import generate_jwt_token, generate_session_id
from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError, authenticated

from malletrain.common.tasks import start_task
from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages.page import Page, SharedData, place_of
from malletrain.dashboard.pages.selection import ZONE_COOKIE, Selection, zone_named
from malletrain.dashboard.server.context import ServerContext
from malletrain.dashboard.templates.files import SCRIPTS_COOKIE, scripts_version
from malletrain.runtime.logs import log_failure

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
    """A document that nobody looks at yet."""

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

    def take_document(self, page: type[Page], selection: Selection, theme: str) -> PreparedDocument | None:
        """The prepared document of a page, which then is somebody's; None: there is none."""
        prepared = self._kept.pop((page, selection, theme), None)
        if prepared is not None:
            # Its browser has not connected yet.
            asyncio.get_running_loop().call_later(UNUSED_S, prepared.session.unblock_expiration)
        return prepared

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


_THEMES = ("light", "dark")
_HEAD_START_S = 0.3
"""How long a browser gets at most to ask for its scripts before figures are made, which nothing interrupts."""
_SENDING_S = 0.02


TakePrepared = Callable[[type[Page], Selection, str], PreparedDocument | None]


class PageView(SessionHandler):  # type: ignore[misc]  # Bokeh is not checked
    """Sends a page in two parts.

    A browser reads the first one and loads its scripts while the figures are made. Of a page that was looked at lately
    they are made already.
    """

    def __init__(
        self,
        *arguments: Any,
        context: ServerContext,
        take_prepared: TakePrepared,
        page: type[Page],
        **options: Any,
    ) -> None:
        self._context, self._take_prepared, self._page = context, take_prepared, page
        super().__init__(*arguments, **options)

    @authenticated
    async def get(self) -> None:
        """Answer with the page, prepared before where there is one."""
        viewer, context = self.current_user, self._context
        selection, theme = Selection.of(self.request.arguments), _theme(self.get_cookie("theme", ""))
        context.shared.refresh_if_old()
        selection = selection.fitted(context.shared.begin, context.shared.history.now)
        prepared = self._take_prepared(self._page, selection, theme)
        page = self._page(context.shared, viewer, selection, theme) if prepared is None else prepared.page
        page.viewer, page.zone = viewer, zone_named(self.get_cookie(ZONE_COOKIE, ""))
        self.set_header("Content-Type", "text/html; charset=utf-8")
        if prepared is not None:
            self.set_header("Server-Timing", 'document;desc="made ahead"')
        self.write(page.html())
        await self.flush()
        session_id = self._new_id() if prepared is None else prepared.session.id
        token = self._token(session_id, {"theme": theme, ZONE_COOKIE: str(page.zone)})
        if prepared is None:
            await self._head_start()
            begun.set(page)
            session = await self.application_context.create_session_if_needed(session_id, self.request, token)
        else:
            session = prepared.session
            await session.with_document_locked(page.refresh)
        context.open_page(page)
        places = {root: place_of(root.name) for root in session.document.roots}
        script = script_for_render_items({}, [RenderItem(token=token, roots=places)])
        self.finish(f"{wrap_in_script_tag(script)}\n</body>\n</html>\n")
        if prepared is not None:
            await self._head_start()
        _serialize_ahead(session)

    async def _head_start(self) -> None:
        """Let a browser that has no scripts yet ask for them, and send them."""
        if self.get_cookie(SCRIPTS_COOKIE, "") != scripts_version():
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEAD_START_S):
                    await self._context.scripts_asked.wait()
            await asyncio.sleep(_SENDING_S)

    def _new_id(self) -> Any:
        return generate_session_id(secret_key=self.application.secret_key, signed=self.application.sign_sessions)

    def _token(self, session_id: Any, cookies: dict[str, str]) -> Any:
        """The token by which a browser finds its document, and for whom it is made anew where it is gone."""
        request = {"headers": {}, "cookies": cookies, "arguments": self.request.arguments}
        return generate_jwt_token(
            session_id,
            secret_key=self.application.secret_key,
            signed=self.application.sign_sessions,
            expiration=self.application.session_token_expiration,
            extra_payload=request | self.application_context.application.process_request(self.request),
        )


class PageHandler(Handler):  # type: ignore[misc]  # Bokeh is not checked
    """Makes the documents of one page."""

    def __init__(self, context: ServerContext, page: type[Page]) -> None:
        super().__init__()
        self._context, self._page = context, page

    def process_request(self, request: HTTPServerRequest) -> dict[str, Any]:
        """What of a request a document is told of: who made it, by an identifier that is no secret."""
        viewer = self._context.viewer_of(request)
        return {"viewer": viewer.token_id if viewer is not None else ""}

    def modify_document(self, doc: Document) -> None:
        """Fill a document: that of the page that was begun, or of one whose document was given up meanwhile."""
        page = begun.get()
        if page is None:
            page = self._again(doc.session_context)
            self._context.open_page(page)
        page.open(doc)
        doc.on_session_destroyed(lambda _: self._context.pages.discard(page))

    def _again(self, context: Any) -> Page:
        viewer: Viewer | None = self._context.viewers.by_id(str(context.token_payload.get("viewer", "")))
        if viewer is None:
            raise HTTPError(403)
        request = context.request
        selection, theme = Selection.of(request.arguments), _theme(request.cookies.get("theme", ""))
        shared = self._context.shared
        page = self._page(shared, viewer, selection.fitted(shared.begin, shared.history.now), theme)
        page.zone = zone_named(request.cookies.get(ZONE_COOKIE, ""))
        return page


def _serialize_ahead(session: Any) -> None:
    """Have a document's JSON ready for the browser that is about to ask for it, unless the document changes before."""
    if session.connection_count or session.destroyed:
        return
    document = session.document
    made = document.to_json()

    def forget(event: Any) -> None:
        del event
        document.remove_on_change(forget)
        vars(document).pop("to_json", None)

    def answer() -> Any:
        forget(None)
        return made

    document.on_change(forget)
    document.to_json = answer


def _theme(text: Any) -> str:
    return text if text in _THEMES else _THEMES[0]
