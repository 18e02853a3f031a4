"""Who may see the pages: cookies of browsers, the tokens that they stand for, and what browsers may do with a page."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

from bokeh.server.auth_provider import NullAuth
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher
from tornado.web import HTTPError, RequestHandler

from malletrain.dashboard.identities import UnverifiableError, Viewer, Viewers

_MAX_SESSIONS = 1000
_MAX_SESSIONS_OF_USER = 20
"""Browsers of one user; the oldest of more has to log in again. So nobody throws others out."""
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'"
)


class Sessions:
    """Cookies of browsers, and the tokens that they stand for. A cookie is of no use to the services."""

    def __init__(self, port: int, secure: bool) -> None:
        self.cookie = f"malletrain_{port}"
        self.secure = secure
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self._users: dict[str, OrderedDict[str, None]] = {}

    def begin(self, token: str, user: str) -> str:
        """A new cookie for a token."""
        name = secrets.token_urlsafe(32)
        self._tokens[name] = token
        cookies = self._users.setdefault(user, OrderedDict())
        cookies[name] = None
        while len(cookies) > _MAX_SESSIONS_OF_USER:
            self._tokens.pop(cookies.popitem(last=False)[0])
        while len(self._tokens) > _MAX_SESSIONS:
            self._drop_one_of_most()
        return name

    def _drop_one_of_most(self) -> None:
        """Drop the oldest browser of the user who has the most."""
        user = max(self._users, key=lambda name: len(self._users[name]))
        self._tokens.pop(self._users[user].popitem(last=False)[0])
        if not self._users[user]:
            del self._users[user]

    def is_open(self, cookie: str) -> bool:
        """Whether a cookie still stands for a token."""
        return cookie in self._tokens

    def token(self, request: HTTPServerRequest) -> str:
        """The token of a browser; empty where it has no cookie of ours."""
        cookie = request.cookies.get(self.cookie)
        return self._tokens.get(cookie.value, "") if cookie is not None else ""


def harden(handler: RequestHandler) -> None:
    """Say to a browser what a page may do, and that it is not kept."""
    handler.set_header("Content-Security-Policy", _POLICY)
    # Not `no-referrer`: browsers then say `Origin: null` of our own forms, too, which are refused.
    handler.set_header("Referrer-Policy", "same-origin")
    handler.set_header("X-Content-Type-Options", "nosniff")
    handler.set_header("Cache-Control", "no-store")
    handler.clear_header("Server")


class PageAccess(NullAuth):  # type: ignore[misc]  # Bokeh is not checked
    """Lets in whoever shows a cookie of a viewer whom JobManager knows. The form is not Bokeh's; nobody logs out."""

    def __init__(self, viewers: Viewers, sessions: Sessions) -> None:
        self._viewers, self._sessions = viewers, sessions
        super().__init__()

    @property
    def get_user_async(self) -> Any:
        """The viewer who makes a request."""
        return self.viewer_of

    @property
    def login_url(self) -> str:
        """The page to which requests without a credential are sent."""
        return "/login"

    async def viewer_of(self, handler: RequestHandler) -> Viewer | None:
        """The viewer who makes a request; None if it is nobody known."""
        request = handler.request
        if request.path.endswith(("/autoload.js", "/metadata")):
            raise HTTPError(404)
        is_websocket = request.path.endswith("/ws")
        if is_websocket:
            if urlsplit(request.headers.get("Origin", "")).netloc.lower() != request.host.lower():
                raise HTTPError(403)
        else:
            harden(handler)
        try:
            viewer = await self._viewers.verify(self._sessions.token(request))
        except UnverifiableError:
            raise HTTPError(503, reason="JobManager does not answer") from None
        if viewer is None and is_websocket:
            raise HTTPError(403)
        return viewer


class OurHost(Matcher):
    """Requests for a name of ours: others come by way of a name that leads here by trickery."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Empty arguments if a request is for one of our names; None: not found."""
        host = request.host.lower()
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        return {} if name in self._names else None
