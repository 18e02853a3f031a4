"""One kind of query to a scheduler: at most one per interval, with back-off after failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from malletrain.common.backoff import pause_after
from malletrain.runtime.clock import Clock
from malletrain.scavenger.sources.base import QueryStatus, SourceError
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.commands import RunCommand

AnswerT = TypeVar("AnswerT")

_MAX_DOUBLINGS = 16
_LONG_TEXT = 1 << 18
"""Longer answers are parsed in a thread. They have what users choose, such as the variables of all jobs."""


@dataclass(frozen=True)
class QueryTiming:
    """When to ask, in seconds.

    Attributes:
        interval: From the end of a query to the beginning of the next.
        timeout: How long an answer may take.
        max_pause: Longest pause after failures. The pause doubles with each failure in a row.
    """

    interval: float
    timeout: float
    max_pause: float = 60.0

    def pause(self, failures: int, *, answered: bool = True) -> float:
        """Seconds from the end of a query to the next.

        Args:
            failures: Failures in a row so far.
            answered: Whether there has ever been a good answer. Before the first, the pause is at most `max_pause`
                even if the interval is longer.
        """
        if not failures:
            return self.interval
        least = self.interval if answered else min(self.interval, self.max_pause)
        return max(least, pause_after(min(failures, _MAX_DOUBLINGS) + 1, self.interval, self.max_pause))


class Query(Generic[AnswerT]):
    """A query and its last good answer.

    Attributes:
        answer: The last good answer, however old.
        tried: Whether a query has ended, answered or not.
    """

    def __init__(
        self,
        source: str,
        name: str,
        argv: Sequence[str],
        parse: Callable[[str], AnswerT],
        timing: QueryTiming,
        clock: Clock,
        run: RunCommand,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Prepare; `follow` asks.

        Args:
            source: Name of the source, e.g. "slurm".
            name: Kind of query, e.g. "nodes".
            argv: The command.
            parse: Makes the answer from what the command prints; raises UnreadableError.
            timing: When to ask.
            clock: For the ages of answers.
            run: Runs the command.
            sleep: Waits for so many seconds.
            chance: Draws from [0, 1). Lengthens pauses after failures by up to 10 %, so that clients spread.
        """
        self.source = source
        self.name = name
        self.argv = tuple(argv)
        self._parse = parse
        self._timing = timing
        self._clock = clock
        self._run = run
        self._sleep = sleep
        self._chance = chance
        self._text: str | None = None
        self.answer: AnswerT | None = None
        self._good_at = float("-inf")
        self.tried = False
        self._asked = 0
        self._failed = 0
        self._in_a_row = 0
        self._seconds = 0.0
        self._error = ""
        self._log = structlog.get_logger(__name__).bind(source=source, query=name)

    @property
    def age_seconds(self) -> float:
        """Age of the last good answer in seconds, since its query began; infinite before the first."""
        return self._clock.monotonic() - self._good_at

    def fresh(self, limit_seconds: float) -> AnswerT | None:
        """The last good answer unless it is older than `limit_seconds`."""
        return self.answer if self.age_seconds <= limit_seconds else None

    def status(self) -> QueryStatus:
        """Counts and times of this query."""
        return QueryStatus(
            self.source,
            self.name,
            self.age_seconds,
            self._asked,
            self._failed,
            self._in_a_row,
            self._seconds,
            self._error,
        )

    async def ask(self) -> bool:
        """Ask once. Failures of the scheduler are counted and logged, not raised.

        Returns:
            Whether there was a good answer.
        """
        begin = self._clock.monotonic()
        self._asked += 1
        try:
            await self.read()
        except (SourceError, UnreadableError) as error:
            self.tried = True
            self._failed += 1
            self._in_a_row += 1
            self._error = str(error)
            self._seconds = self._clock.monotonic() - begin
            self._log.warning("query of the scheduler failed", error=str(error), failures_in_a_row=self._in_a_row)
            return False
        if self._in_a_row:
            self._log.info("query of the scheduler succeeds again", failures_in_a_row=self._in_a_row)
        self.tried = True
        self._good_at = begin
        self._seconds = self._clock.monotonic() - begin
        self._in_a_row = 0
        self._error = ""
        return True

    async def read(self) -> AnswerT:
        """Ask once.

        Raises:
            SourceError: the command fails.
            UnreadableError: it prints something else than what was asked for.
        """
        text = await self._run(self.argv, self._timing.timeout)
        # The same text is not parsed again: most polls between two events are the same.
        if text != self._text or self.answer is None:
            long = len(text) > _LONG_TEXT
            self.answer = await asyncio.to_thread(self._parse, text) if long else self._parse(text)
            self._text = text
        return self.answer

    async def follow(self, on_asked: Callable[[], None] = lambda: None) -> None:
        """Ask until cancelled; `on_asked` is called after each query, answered or not."""
        while True:
            await self.ask()
            on_asked()
            pause = self._timing.pause(self._in_a_row, answered=self.answer is not None)
            if self._in_a_row:
                pause *= 1.0 + 0.1 * self._chance()
            await self._sleep(pause)
