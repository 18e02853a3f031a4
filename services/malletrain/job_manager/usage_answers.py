"""Answers callers who ask who used what."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence

from malletrain.common.user_threads import UserBusyError, UserThreads
from malletrain.job_manager import wire
from malletrain.job_manager.charging import ChargeRate
from malletrain.job_manager.storage.usage_query import UsageQuery
from malletrain.job_manager.storage.usage_store import UsageStore
from malletrain.job_manager.usage_report import entries_of, query_of
from malletrain.job_manager.visibility import usage_owner
from malletrain.runtime.access.identity import Identity
from malletrain.runtime.errors import InvalidInputError, LimitExceededError
from malletrain.runtime.messages import timestamp
from malletrain.runtime.pieces import pieces
from malletrain.v1 import job_manager_pb2 as pb

_MAX_OWNER_LENGTH = 256
_MAX_WAITING = 8
"""Questions of one user that wait for the one that is being answered."""
_AT_ONCE = 2
"""Of all users: others need connections to the database, too. The threads of the others wait, each for its own user."""


class UsageAnswers:
    """Reads usage and adds it up, both in a thread, one at a time for each user. Use from one event loop."""

    def __init__(self, store: UsageStore, rates: Sequence[ChargeRate], currency: str) -> None:
        self._store, self._rates, self._currency = store, rates, currency
        self._threads = UserThreads(at_once=1, max_waiting=_MAX_WAITING)
        self._places = threading.Semaphore(_AT_ONCE)

    def query(self, request: pb.GetUsageRequest, caller: Identity) -> UsageQuery:
        """What a caller asks for, and may.

        Raises:
            InvalidInputError: a field can't be used.
            PermissionDeniedError: it is the usage of others.
        """
        keys = wire.usage_keys(request.group_by)
        if len(request.owner) > _MAX_OWNER_LENGTH or "\0" in request.owner:
            expected = f"at most {_MAX_OWNER_LENGTH} characters other than NUL"
            raise InvalidInputError("owner", expected, request.owner[:_MAX_OWNER_LENGTH])
        return query_of(keys, request.since, request.until, usage_owner(caller, request.owner))

    async def answer(
        self, query: UsageQuery, caller: Identity, now: float, samples: Mapping[int, int]
    ) -> AsyncIterator[pb.GetUsageResponse]:
        """Answer a query.

        Args:
            caller: Who asks.
            now: Until when usage is counted, in seconds since the epoch.
            samples: Samples of the jobs that have not ended, by number.

        Raises:
            LimitExceededError: it comes to too many rows, takes too long, or the caller asks too often.
            DatabaseUnavailableError: the database does not answer.
        """

        def read() -> tuple[list[tuple[list[pb.UsageRow], bool]], tuple[str, ...]]:
            with self._places:
                stored = self._store.read(query)
                entries = entries_of(stored, query, now, samples, self._rates)
            return list(pieces(map(wire.usage_message, entries))), stored.cut

        try:
            parts, cut = await self._threads.run(caller.user, read)
        except UserBusyError as error:
            raise LimitExceededError(f"usage can't be told now: {error}") from error
        currency = self._currency if self._rates else ""
        for rows, _ in parts:
            yield pb.GetUsageResponse(rows=rows, as_of_time=timestamp(now), currency=currency, cut_months=cut)
