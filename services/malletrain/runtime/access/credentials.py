"""What a caller shows: a token in the metadata of each call. Blocking channels and those of an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import grpc
import grpc.aio

from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.clock import Clock
from malletrain.tls.channels import WrappedChannel

HEADER = "authorization"
SCHEME = "Bearer "
_SERVICE_LIFESPAN_SECONDS = 600.0

Metadata = tuple[tuple[str, str | bytes], ...]


class Credential(Protocol):
    """Tells the token to show. May be asked for every call, in any thread."""

    def token(self) -> str:
        """The token; empty: the call is made without one."""


class FixedToken:
    """A token that never changes. Its `repr` does not show it."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        """The token."""
        return self._token


class SelfSignedToken:
    """Tokens that a service, or JobManager for a job, signs for itself; a new one once half of the lifespan is over."""

    def __init__(self, sign: Callable[[], tuple[str, Identity]], clock: Clock) -> None:
        self._sign = sign
        self._clock = clock
        self._token = ""
        self._from = self._until = 0.0

    def token(self) -> str:
        """A token that is valid for half of its lifespan yet."""
        # A clock that was set back must not leave a token in use that is not valid yet.
        if not self._from <= self._clock.time() < self._until:
            self._token, identity = self._sign()
            self._from, self._until = identity.issued, (identity.issued + identity.expires) / 2
        return self._token


class TokenSigner(Protocol):
    """Signs tokens with the installation's key."""

    def sign(
        self, user: str, role: Role, lifespan_seconds: float, job_id: str = "", audience: str = ""
    ) -> tuple[str, Identity]:
        """A token, and what it says."""


class ServiceCredential:
    """Makes what a service shows to others: for each a token of its own, which is good for no other service.

    It signs these tokens itself, and they live for ten minutes.
    """

    def __init__(self, tokens: TokenSigner, service: str, clock: Clock) -> None:
        self._tokens = tokens
        self._service = service
        self._clock = clock

    def towards(self, service: str) -> Credential:
        """What is shown to a service."""

        def sign() -> tuple[str, Identity]:
            return self._tokens.sign(self._service, Role.SERVICE, _SERVICE_LIFESPAN_SECONDS, audience=service)

        return SelfSignedToken(sign, self._clock)


def header_of(credential: Credential) -> Metadata:
    """Metadata that shows a credential; empty if it has no token."""
    token = credential.token()
    return ((HEADER, SCHEME + token),) if token else ()


class _Call:
    """A method of a channel that shows a credential with each call."""

    def __init__(self, inner: Callable[..., Any], credential: Credential) -> None:
        self._inner = inner
        self._credential = credential

    def __call__(self, *arguments: Any, metadata: Any = None, **options: Any) -> Any:
        return self._inner(*arguments, metadata=self._with_token(metadata), **options)

    def __getattr__(self, name: str) -> Any:
        """`with_call` and `future` of blocking methods."""
        inner = getattr(self._inner, name)

        def call(*arguments: Any, metadata: Any = None, **options: Any) -> Any:
            return inner(*arguments, metadata=self._with_token(metadata), **options)

        return call

    def _with_token(self, metadata: Any) -> Metadata:
        return (*(metadata or ()), *header_of(self._credential))


def _showing(channel: Any, credential: Credential) -> WrappedChannel:
    """A channel whose methods show a credential: gRPC's call credentials are refused on channels without TLS."""
    return WrappedChannel(channel, lambda method, _kind: _Call(method, credential))


def showing(channel: grpc.aio.Channel, credential: Credential) -> grpc.aio.Channel:
    """A channel of an event loop that shows a credential with each call."""
    return cast("grpc.aio.Channel", _showing(channel, credential))


def showing_blocking(channel: grpc.Channel, credential: Credential) -> grpc.Channel:
    """A blocking channel that shows a credential with each call."""
    return cast("grpc.Channel", _showing(channel, credential))
