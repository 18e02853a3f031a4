"""Makes the pages: first what can be read, at once, and then the document with the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from bokeh.application.handlers.handler import Handler
from bokeh.document import Document
from bokeh.embed.elements import script_for_render_items
from bokeh.embed.util import RenderItem
from bokeh.embed.wrappers import wrap_in_script_tag
from bokeh.server.views.session_handler import SessionHandler
from bokeh.util.token import generate_jwt_token, generate_session_id
from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError, authenticated

from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages.page import Page, place_of
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.zones import ZONE_COOKIE, zone_named
from malletrain.dashboard.server.context import ServerContext
from malletrain.dashboard.server.prepared_documents import PreparedDocument, begun
from malletrain.dashboard.templates.files import SCRIPTS_COOKIE, scripts_version

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
        """The page."""
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
        """By what the browser finds its document; it says for whom that is made, if it has to be made again."""
        asked = {"headers": {}, "cookies": cookies, "arguments": self.request.arguments}
        return generate_jwt_token(
            session_id,
            secret_key=self.application.secret_key,
            signed=self.application.sign_sessions,
            expiration=self.application.session_token_expiration,
            extra_payload=asked | self.application_context.application.process_request(self.request),
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
