"""Checks the certificates of callers, where a server asks for them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from malletrain.runtime.access.audit import audit
from malletrain.runtime.access.identity import CERTIFICATE_ROLES, Identity, Role
from malletrain.runtime.access.policy import REQUIRED_ROLES, admits
from malletrain.runtime.method_handlers import Continuation, Handler, surrounded
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

        return surrounded(handler, checked)


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
