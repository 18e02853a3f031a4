"""AccessService: gives and revokes tokens."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import structlog

from malletrain.runtime.access.identity import (
    HUMAN_ROLES,
    Identity,
    PermissionDeniedError,
    Role,
    current_caller,
)
from malletrain.runtime.access.installation import Installation, own_user
from malletrain.runtime.access.munge import Munge, MungeError, find_munge, role_for
from malletrain.runtime.access.policy import number_of, role_of
from malletrain.runtime.errors import InvalidInputError, UnavailableError
from malletrain.runtime.messages import timestamp
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import access_pb2 as pb
from malletrain.v1 import access_pb2_grpc

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["AccessService"].full_name
_USER = re.compile(r"[A-Za-z0-9._@-]{1,64}\Z")
_TOKEN_ID = re.compile(r"[0-9a-f]{16}\Z")
_MUNGE_LIFESPAN_SECONDS = 600.0
_MUNGE_AT_ONCE = 4


class AccessService(access_pb2_grpc.AccessServiceServicer):
    """The service. What it signs, every service of the installation accepts."""

    def __init__(self, installation: Installation, munge: Munge | None = None) -> None:
        """Find MUNGE, if the settings do not say off.

        Args:
            installation: Key and revocations.
            munge: Commands of MUNGE, in place of those that are installed.
        """
        self._installation = installation
        self._settings = installation.settings.access
        self._munge = munge or find_munge(self._settings)
        # Anybody may ask for this, and each one costs a process.
        self._decoding = asyncio.Semaphore(_MUNGE_AT_ONCE)

    def register(self, host: ServiceHost) -> None:
        """Add the servicer to a server that has not started."""
        host.add(SERVICE_NAME, access_pb2_grpc.add_AccessServiceServicer_to_server, self)

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Any) -> pb.CreateTokenResponse:
        """A token for a user."""
        del context
        _check("user", _USER, "1 to 64 letters, digits and ._@-", request.user)
        role = role_of(request.role) if request.role else Role.USER
        if role not in HUMAN_ROLES:
            raise InvalidInputError("role", "ROLE_VIEWER, ROLE_USER or ROLE_OPERATOR", request.role)
        most = self._settings.max_lifespan_seconds
        seconds = request.lifespan_seconds or min(self._settings.default_lifespan_seconds, most)
        if not 0 < seconds <= most:
            raise InvalidInputError(
                "lifespan_seconds",
                f"above 0, at most {most:.0f} s (access.max_lifespan_seconds)",
                request.lifespan_seconds,
            )
        token, identity = self._installation.tokens.sign(request.user, role, seconds)
        structlog.get_logger(__name__).info(
            "token created", user=identity.user, role=role.value, token_id=identity.token_id, by=current_caller().user
        )
        return pb.CreateTokenResponse(token=token, identity=identity_message(identity))

    async def ExchangeMungeCredential(
        self, request: pb.ExchangeMungeCredentialRequest, context: Any
    ) -> pb.ExchangeMungeCredentialResponse:
        """A short-lived token for the user who made a credential of MUNGE."""
        del context
        if self._munge is None:
            raise PermissionDeniedError(
                "MUNGE vouches for nobody here (access.munge): ask an operator for a token, and set MALLETRAIN_TOKEN"
            )
        async with self._decoding:
            try:
                user = await asyncio.to_thread(self._munge.user_of, request.credential)
            except MungeError as error:
                raise UnavailableError(str(error)) from error
        role = role_for(user, self._settings, own_user())
        lifespan = min(_MUNGE_LIFESPAN_SECONDS, self._settings.max_lifespan_seconds)
        token, identity = self._installation.tokens.sign(user, role, lifespan)
        structlog.get_logger(__name__).info(
            "token given for MUNGE credential", user=user, role=role.value, token_id=identity.token_id
        )
        return pb.ExchangeMungeCredentialResponse(token=token, identity=identity_message(identity))

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Any) -> pb.RevokeTokenResponse:
        """Make tokens invalid."""
        del context
        match request.WhichOneof("revoked"):
            case "token_id":
                _check("token_id", _TOKEN_ID, "the identifier of a token, 16 hexadecimal digits", request.token_id)
                self._installation.revoked.revoke_token(request.token_id)
            case "user":
                _check("user", _USER, "1 to 64 letters, digits and ._@-", request.user)
                self._installation.revoked.revoke_user(request.user)
            case None:
                raise InvalidInputError("revoked", "token_id or user")
        structlog.get_logger(__name__).info(
            "revoked", token_id=request.token_id, user=request.user, by=current_caller().user
        )
        return pb.RevokeTokenResponse()

    async def GetIdentity(self, request: pb.GetIdentityRequest, context: Any) -> pb.GetIdentityResponse:
        """Tell the caller who it is taken for."""
        del request, context
        return pb.GetIdentityResponse(identity=identity_message(current_caller()))


def identity_message(identity: Identity) -> pb.Identity:
    """An identity as the protos have it."""
    return pb.Identity(
        user=identity.user,
        role=number_of(identity.role),
        token_id=identity.token_id,
        issue_time=timestamp(identity.issued),
        expire_time=timestamp(identity.expires),
        job_id=identity.job_id,
    )


def _check(field: str, pattern: re.Pattern[str], expected: str, value: str) -> None:
    if not pattern.match(value):
        raise InvalidInputError(field, expected, value)
