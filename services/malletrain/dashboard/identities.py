"""Who looks at the page: tokens of viewers, which JobManager verifies."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio

from malletrain.runtime.access.credentials import FixedToken, Metadata, header_of
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.runtime.messages import unix_seconds
from malletrain.v1 import access_pb2, access_pb2_grpc

_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,4096}\Z")
_FRESH_S = 10.0
_STALE_S = 300.0
"""How long a token counts as verified while JobManager does not answer."""
_MAX_TOKENS = 256
_ROLES = (access_pb2.ROLE_VIEWER, access_pb2.ROLE_USER, access_pb2.ROLE_OPERATOR, access_pb2.ROLE_SERVICE)


@dataclass(frozen=True)
class Viewer:
    """The user who looks at a page. Its `repr` does not show the token.

    Attributes:
        user: Name of the user.
        role: Role, as `viewer`.
        token_id: Identifier of the token; no secret.
        expires: When the token expires, in seconds since the epoch.
        token: The token itself.
    """

    user: str
    role: str
    token_id: str
    expires: float
    token: str = field(repr=False)

    @property
    def metadata(self) -> Metadata:
        """What is shown to the services in the viewer's name."""
        return header_of(FixedToken(self.token))


class UnverifiableError(Exception):
    """JobManager does not answer, so that nobody knows whose token it is."""


class Viewers:
    """Verifies tokens. Remembers those that were verified a moment ago, so that not every request costs a call."""

    def __init__(self, job_manager: Callable[[], grpc.aio.Channel], now: Callable[[], float]) -> None:
        """
        Args:
            job_manager: Channel to JobManager, without a token.
            now: Seconds since the epoch.
        """
        self._job_manager = job_manager
        self._now = now
        self._known: OrderedDict[str, tuple[float, Viewer]] = OrderedDict()

    def by_id(self, token_id: str) -> Viewer | None:
        """A viewer who was verified lately."""
        viewers = (viewer for _, viewer in self._known.values() if viewer.token_id == token_id)
        return next(viewers, None)

    def by_token(self, token: str) -> Viewer | None:
        """The viewer of a token that was verified lately."""
        known = self._known.get(token)
        return known[1] if known is not None else None

    async def verify(self, token: str) -> Viewer | None:
        """Whose token it is; None if the services do not accept it.

        Raises:
            UnverifiableError: JobManager does not answer, and it was not verified lately.
        """
        if not _TOKEN.match(token):
            return None
        now, (checked, known) = self._now(), self._known.get(token, (0.0, None))
        if known is not None and now >= known.expires:
            self._known.pop(token)
            return None
        if known is not None and now - checked < _FRESH_S:
            return known
        try:
            viewer = await self._ask_services(token)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                self._known.pop(token, None)
                return None
            if known is not None and now - checked < _STALE_S:
                return known
            raise UnverifiableError from error
        if viewer is None:
            return None
        self._known[token] = (now, viewer)
        self._known.move_to_end(token)
        while len(self._known) > _MAX_TOKENS:
            self._forget_one()
        return viewer

    def _forget_one(self) -> None:
        """Forget the oldest token of whoever has the most: nobody makes us forget those of others."""
        users = Counter(viewer.user for _, viewer in self._known.values())
        most = max(users, key=lambda user: users[user])
        self._known.pop(next(token for token, (_, viewer) in self._known.items() if viewer.user == most))

    async def _ask_services(self, token: str) -> Viewer | None:
        metadata = header_of(FixedToken(token))
        stub = access_pb2_grpc.AccessServiceStub(self._job_manager())
        answer = await stub.GetIdentity(access_pb2.GetIdentityRequest(), metadata=metadata, timeout=DEADLINE_SECONDS)
        identity = answer.identity
        if identity.role not in _ROLES:
            return None
        role = access_pb2.Role.Name(identity.role).removeprefix("ROLE_").lower()
        return Viewer(identity.user, role, identity.token_id, unix_seconds(identity.expire_time), token)
