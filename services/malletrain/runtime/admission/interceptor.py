"""Admits calls by their headers: what is refused is refused before gRPC has read a byte of its message.

gRPC asks interceptors before it reads a message, and it reads as much of a message as its length says only once
somebody waits for it; until then a call holds at most the window of its stream (64 KiB). So handlers of one request are
served here as handlers of a stream of requests, of which the first one is taken when the call has been admitted.

The messages of calls that were admitted are read few of one caller at a time, and not for long.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import grpc
import grpc.aio

from malletrain.runtime.access.identity import Identity, Role, UnauthenticatedError, current_caller
from malletrain.runtime.access.policy import REQUIRED_ROLES
from malletrain.runtime.admission.peers import PeerNames
from malletrain.runtime.errors import LimitExceededError
from malletrain.runtime.limits import ServerLimits
from malletrain.runtime.method_handlers import Continuation, Handler, surround_calls

_ALWAYS_ADMITTED = 16
"""Calls under way that every known caller may have, however many others have: a drain must be confirmed."""


class CallKind(StrEnum):
    """The kinds of calls that are limited separately."""

    KNOWN = "known"
    """A call with a valid token."""
    UNKNOWN = "unknown"
    """A call without one, of a method that needs none: health checks, and the exchange of a credential for a token."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity or the address by which calls are counted.

    Attributes:
        kind: Whether it has shown a token.
        name: For people, e.g. "ada", "job j000012", "uid 1003" or "192.0.2.7".
        bounded: Whether its calls are bounded at all: services among each other are not.
    """

    kind: CallKind
    name: str
    bounded: bool = True


def known_caller(identity: Identity) -> Caller:
    """A caller with a verified token. All tokens of a person count as one caller."""
    if identity.role is Role.SERVICE:
        return Caller(CallKind.KNOWN, f"service {identity.user}", bounded=False)
    if identity.role is Role.JOB:
        return Caller(CallKind.KNOWN, f"job {identity.job_id}")
    return Caller(CallKind.KNOWN, identity.user)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How many calls may be under way.

    Attributes:
        in_all: Of all known callers together.
        per_caller: Of each known caller.
        per_stranger: Of each peer that has shown no token; these are outside of `in_all`.
    """

    in_all: int
    per_caller: int
    per_stranger: int


class CallCounts:
    """Counts the calls that are under way."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._of: Counter[Caller] = Counter()
        self._known = 0

    def begin(self, caller: Caller) -> None:
        """Count a call.

        Raises:
            LimitExceededError: it is one too many; it is not counted.
        """
        present = self._of.get(caller, 0)
        if caller.bounded:
            self._check(caller, present)
        self._of[caller] = present + 1
        self._known += caller.kind is CallKind.KNOWN

    def end(self, caller: Caller) -> None:
        """A call that was counted has ended."""
        self._of[caller] -= 1
        if not self._of[caller]:
            del self._of[caller]
        self._known -= caller.kind is CallKind.KNOWN

    def _check(self, caller: Caller, present: int) -> None:
        if caller.kind is CallKind.UNKNOWN:
            if present >= self._limits.per_stranger:
                raise LimitExceededError(
                    f"{caller.name} has {present} calls without a token under way: at most "
                    f"{self._limits.per_stranger} (limits.max_calls_without_token); end some, or show a token"
                )
            return
        if present >= self._limits.per_caller:
            raise LimitExceededError(
                f"{caller.name} has {present} calls under way: at most {self._limits.per_caller} "
                "(limits.max_calls_per_caller); end some, and try again"
            )
        if self._known >= self._limits.in_all and present >= min(_ALWAYS_ADMITTED, self._limits.in_all):
            raise LimitExceededError(
                f"{self._known} calls are under way: at most {self._limits.in_all} (limits.max_calls); try again"
            )


_AT_ONCE = {CallKind.KNOWN: 8, CallKind.UNKNOWN: 4}
"""Messages of one caller that are read at a time; each may hold as much as the largest message. Others wait unread."""
_STRANGERS_STREAM_SECONDS = 60.0
"""How long a stream of messages of somebody without a token may take: gRPC reflection takes less than a second."""


class _Slots:
    """How many messages of one caller may still be read, and how many calls are waiting or reading."""

    def __init__(self, at_once: int) -> None:
        self.free = asyncio.Semaphore(at_once)
        self.users = 0


class MessageReader:
    """Reads the messages of calls, each within a limit of time, and a few of each caller at once."""

    def __init__(self, seconds: float) -> None:
        """
        Args:
            seconds: How long the message of a call may take to arrive.
        """
        self._seconds = seconds
        self._slots: dict[Caller, _Slots] = {}

    async def take_message(self, caller: Caller, context: Any) -> Any:
        """The message of a call that has one. Ends the call if it does not come in time.

        Args:
            caller: Who makes the call.
            context: The call.
        """
        try:
            async with asyncio.timeout(self._seconds):
                if caller.bounded:
                    async with self._slot(caller):
                        message = await context.read()
                else:
                    message = await context.read()
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the message of this call did not arrive within {self._seconds:g} s (limits.first_message_seconds)",
            )
        if message is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call of this method has a message")
        return message

    @asynccontextmanager
    async def stream(self, caller: Caller) -> AsyncIterator[None]:
        """While a stream of messages is read. One of a stranger counts as a message that is read all the time.

        Raises:
            TimeoutError: it is one of a stranger, and has taken too long.
        """
        if caller.kind is CallKind.KNOWN:
            yield
            return
        async with asyncio.timeout(_STRANGERS_STREAM_SECONDS), self._slot(caller):
            yield

    @asynccontextmanager
    async def _slot(self, caller: Caller) -> AsyncIterator[None]:
        slots = self._slots.get(caller)
        if slots is None:
            slots = self._slots[caller] = _Slots(_AT_ONCE[caller.kind])
        slots.users += 1
        try:
            async with slots.free:
                yield
        finally:
            slots.users -= 1
            if not slots.users:
                del self._slots[caller]


_OURS = "/malletrain."
_REFUSAL_SECONDS = 5.0
"""How long the answer of a refusal may wait for a caller that does not read."""


class AdmissionInterceptor(grpc.aio.ServerInterceptor):
    """The outermost interceptor of a server: those within have judged the headers when it decides about the message."""

    def __init__(self, limits: ServerLimits, peers: PeerNames) -> None:
        """
        Args:
            limits: What callers are granted.
            peers: Names those who have shown no token.
        """
        in_all, per_caller = limits.max_calls, limits.max_calls_per_caller
        self._counts = CallCounts(CallLimits(in_all, per_caller, limits.max_calls_without_token))
        self._messages = MessageReader(limits.first_message_seconds)
        self._peers = peers

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The handler of a method, which takes the message itself."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        identity = _identity()
        if identity is None and _needs_token(handler_call_details.method):
            return surround_calls(handler, _without_message, takes_stream=True)
        takes_stream = handler.request_streaming

        @asynccontextmanager
        async def admitting(requests: Any, context: Any) -> AsyncIterator[Any]:
            async with self._admitted(identity, context) as caller:
                if takes_stream:
                    async with self._messages.stream(caller):
                        yield requests
                else:
                    yield await self._messages.take_message(caller, context)

        return surround_calls(handler, admitting, takes_stream=True)

    @asynccontextmanager
    async def _admitted(self, identity: Identity | None, context: Any) -> AsyncIterator[Caller]:
        if identity is None:
            caller = Caller(CallKind.UNKNOWN, self._peers.name(context.peer()))
        else:
            caller = known_caller(identity)
        try:
            self._counts.begin(caller)
        except LimitExceededError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        try:
            yield caller
        finally:
            self._counts.end(caller)


@asynccontextmanager
async def _without_message(requests: Any, context: Any) -> AsyncIterator[None]:
    """Around a handler of which is known that it refuses: it gets no message, since none is read."""
    del requests, context
    async with asyncio.timeout(_REFUSAL_SECONDS):
        yield


def _identity() -> Identity | None:
    """The caller, if a valid token permits the call: interceptors of a call run in the call's own task."""
    try:
        return current_caller()
    except UnauthenticatedError:
        return None


def _needs_token(method: str) -> bool:
    return method.startswith(_OURS) and REQUIRED_ROLES.get(method) is not Role.ANYBODY
