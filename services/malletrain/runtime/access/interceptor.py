"""Checks every call before its handler sees it: tokens, and certificates where a server asks for them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from malletrain.runtime.access.audit import audit
from malletrain.runtime.access.credentials import HEADER, SCHEME
from malletrain.runtime.access.identity import (
    CERTIFICATE_ROLES,
    HUMAN_ROLES,
    Identity,
    PermissionDeniedError,
    Role,
    UnauthenticatedError,
    set_caller,
)
from malletrain.runtime.access.policy import REQUIRED_ROLES, admits, allows, is_audited
from malletrain.runtime.access.revocation import RevocationFile
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.errors import MalleTrainError
from malletrain.runtime.method_handlers import Continuation, Handler, surround_calls
from malletrain.tls.credentials import has_tls, peer_roles


class PeerInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of peers whose certificate has another role than the method requires.

    It sees the connection, not the port: without TLS nobody has a certificate, and methods that require one are
    refused. Where a service has TLS, nothing but reports of trainers of version 0.1 is taken without.
    """

    def __init__(self, *, with_tls: bool) -> None:
        self._with_tls = with_tls

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The handler of a method, behind the check."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith("/malletrain."):
            return handler
        required = REQUIRED_ROLES.get(method)
        needs_tls = self._with_tls and required is not Role.JOB

        @asynccontextmanager
        async def checked(request: Any, context: Any) -> AsyncIterator[Any]:
            await _check(context, method, required, needs_tls=needs_tls)
            yield request

        return surround_calls(handler, checked)


async def _check(context: Any, method: str, required: Role | None, *, needs_tls: bool) -> None:
    if needs_tls and not has_tls(context.auth_context()):
        details = f"{method.rpartition('/')[2]} needs a connection with TLS"
        audit(method, None, None, context.peer(), details)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, details)
    roles = peer_roles(context.auth_context())
    if admits(roles, required):
        if required in CERTIFICATE_ROLES:
            audit(method, Identity(required.value, required, "", 0.0, math.inf), None, context.peer())
        return
    wanted = f"a certificate of the role {required}" if required in CERTIFICATE_ROLES else "another certificate"
    certificates = f"the caller has that of {', '.join(sorted(roles))}" if roles else "the caller has none"
    details = f"{method.rpartition('/')[2]} needs {wanted}, and {certificates}"
    audit(method, None, None, context.peer(), details)
    code = grpc.StatusCode.PERMISSION_DENIED if roles else grpc.StatusCode.UNAUTHENTICATED
    await context.abort(code, details)


_MAX_KNOWN = 1024
_REMEDY = (
    "show a token: set MALLETRAIN_TOKEN or MALLETRAIN_TOKEN_FILE, or send the header "
    "`authorization: Bearer TOKEN`; `malletrain token` prints one"
)


class TokenChecker:
    """Remembers the tokens that it has verified; whether they have expired or were revoked is checked at every call."""

    def __init__(self, tokens: Tokens, revoked: RevocationFile, *services: str) -> None:
        """
        Args:
            tokens: Verifies them.
            revoked: Those that are no longer valid.
            services: Names of the service that is called: tokens that services show to others are no good here.
        """
        self._tokens = tokens
        self._revoked = revoked
        self._services = services
        self._known: dict[str, Identity] = {}

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        """The caller of a method.

        Args:
            metadata: Metadata of the call.

        Raises:
            UnauthenticatedError: it shows no token, or one that is not valid; the message says what to do.
        """
        values = [value for name, value in metadata if name == HEADER]
        if not values:
            raise UnauthenticatedError(f"nobody knows who calls: {_REMEDY}")
        value = values[0]
        if len(values) > 1 or not isinstance(value, str) or not value.startswith(SCHEME):
            raise UnauthenticatedError(f"expected one header `authorization: Bearer TOKEN`: {_REMEDY}")
        try:
            return self._verify(value.removeprefix(SCHEME))
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error}: {_REMEDY}") from None

    def _verify(self, token: str) -> Identity:
        identity = self._known.get(token)
        if identity is None:
            identity = self._tokens.verify(token)
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[token] = identity
        else:
            self._tokens.check_times(identity)
        if identity.role is Role.SERVICE and identity.audience not in self._services:
            raise UnauthenticatedError(f"the token is for {identity.audience}, and this is {', '.join(self._services)}")
        if self._revoked.contains(identity):
            raise UnauthenticatedError("the token has been revoked")
        return identity


_HEALTH = "/grpc.health.v1.Health/"
_REFLECTION = "/grpc.reflection."
_DENIED = grpc.StatusCode.PERMISSION_DENIED


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of callers that are not known or may not make them. `current_caller` tells handlers who calls."""

    def __init__(self, checker: TokenChecker, *, open_reflection: bool) -> None:
        """
        Args:
            checker: Verifies tokens.
            open_reflection: Whether gRPC reflection needs no identity; otherwise it needs the role viewer.
        """
        self._checker = checker
        self._open_reflection = open_reflection

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The handler of a method, or one that refuses the call."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_HEALTH):
            return handler
        required = self._required_role(method)
        identity: Identity | None = None
        try:
            if required is not Role.ANYBODY:
                identity = self._checker.identify(handler_call_details.invocation_metadata)
                _check_role(identity, required, method)
        except UnauthenticatedError as error:
            return _refusing(handler, method, identity, grpc.StatusCode.UNAUTHENTICATED, error)
        except PermissionDeniedError as error:
            return _refusing(handler, method, identity, grpc.StatusCode.PERMISSION_DENIED, error)
        # The handler runs in the task that runs this.
        if identity is not None:
            set_caller(identity)
        return _audit_calls(handler, method, identity) if is_audited(method) else handler

    def _required_role(self, method: str) -> Role | None:
        if method.startswith(_REFLECTION):
            return Role.ANYBODY if self._open_reflection else Role.VIEWER
        return REQUIRED_ROLES.get(method)


def _check_role(identity: Identity, required: Role | None, method: str) -> None:
    if required is None:
        raise PermissionDeniedError(f"{method} does not say which role it requires, so nobody may call it")
    if not allows(identity.role, method, required):
        remedy = f"an operator can give you a token (`malletrain token --user {identity.user} --role {required}`)"
        raise PermissionDeniedError(
            f"{method.rpartition('/')[2]} needs the role {required}, and {identity.user} has the role {identity.role}; "
            + (remedy if required in HUMAN_ROLES else "people and programs of theirs can't have it")
        )


def _refusing(
    handler: Handler,
    method: str,
    identity: Identity | None,
    code: grpc.StatusCode,
    error: MalleTrainError,
) -> Handler:
    @asynccontextmanager
    async def refusing(request: Any, context: Any) -> AsyncIterator[Any]:
        if is_audited(method):
            audit(method, identity, _message(handler, request), context.peer(), str(error))
        await context.abort(code, str(error))
        yield  # never reached

    return surround_calls(handler, refusing)


def _audit_calls(handler: Handler, method: str, identity: Identity | None) -> Handler:
    @asynccontextmanager
    async def audited(request: Any, context: Any) -> AsyncIterator[Any]:
        audit(method, identity, _message(handler, request), context.peer())
        try:
            yield request
        except grpc.aio.AbortError:
            # The caller has the role, and the handler refuses it all the same: the job belongs to somebody else.
            if context.code() in (_DENIED, _DENIED.value[0]):
                audit(method, identity, _message(handler, request), context.peer(), str(context.details()))
            raise

    return surround_calls(handler, audited)


def _message(handler: Handler, request: Any) -> Any:
    """The request; None for a stream of them."""
    return None if handler.request_streaming else request
