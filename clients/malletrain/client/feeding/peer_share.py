"""What a feed has asked that of another node for, and when it has to prepare that itself. Pure: no I/O and no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from malletrain.client.feeding.schedule import Task

# Which feed of a fleet prepares a sample. Pure.
#
# The feeds of a fleet's nodes divide the order of samples into blocks, and take these in turn. Each works that out from
# the feeds that it reaches, so nobody has to decide it for all. Where two see different feeds, a sample is prepared
# twice, and none is missing.

BLOCK = 64
"""Samples that follow each other and have one owner."""
MAX_FEEDS = 32
"""Feeds that share: in larger fleets they do so in teams, since each has a connection to each other one."""


def owner_of(number: int, feeds: Collection[str]) -> str:
    """Whose a sample is.

    Args:
        number: The sample's number in the training, from 0.
        feeds: Names of all feeds that share, at least one. Their order makes no difference.
    """
    ordered = sorted(feeds)
    return ordered[number // BLOCK % len(ordered)]


def team_of(own: str, others: Iterable[str], max_feeds: int = MAX_FEEDS) -> list[str]:
    """The feeds that one shares with, without itself: those of its team, in order. Nobody is in two teams.

    Args:
        own: Name of the feed.
        others: Names of all others that there are.
        max_feeds: Most feeds of a team, at least 1.
    """
    ordered = sorted({own, *others})
    first = ordered.index(own) // max_feeds * max_feeds
    return [name for name in ordered[first : first + max_feeds] if name != own]


_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 60.0
_MAX_REFUSAL_SECONDS = 4.0
MAX_ASKED = 4096
"""Samples that one feed is asked for at a time."""


class PeerShare:
    """Samples that another feed owns, and has been asked for.

    Attributes:
        asked: What it has not answered, by number.
        told: It has been told that nothing below this number is asked for.
    """

    def __init__(self, seconds: float, position: int) -> None:
        """Ask for nothing yet.

        Args:
            seconds: How long trainings may wait for it.
            position: What it has been told first.
        """
        self._seconds = seconds
        self.asked: dict[int, Task] = {}
        self.told = position
        self._heard: float | None = None
        self._looked: float | None = None
        self._debt = 0.0

    def may_ask(self, number: int) -> bool:
        """Whether it can be asked for a sample now."""
        return number >= self.told and len(self.asked) < MAX_ASKED

    def ask(self, task: Task) -> None:
        """It is asked for a sample."""
        self.asked[task.number] = task

    def answer(self, number: int) -> Task | None:
        """It has answered; None if that has been taken back before, or was never asked for."""
        self._heard = None
        return self.asked.pop(number, None)

    def take_back(self) -> list[Task]:
        """Ask for nothing any more; what is to be prepared here, in order."""
        tasks = sorted(self.asked.values())
        self.asked.clear()
        return tasks

    def position(self, position: int) -> int:
        """What to tell it: nothing below is asked for, and it never falls.

        Args:
            position: What no training here is behind.
        """
        self.told = max(self.told, min([position, *self.asked]))
        return self.told

    def is_too_slow(self, now: float, *, waiting: bool, idle: bool) -> bool:
        """Whether what it was asked for has to be prepared here, because it holds up trainings.

        It is too slow if it sends nothing for `seconds` while a training waits for it; and if it goes into a debt of as
        much. That grows while trainings wait for it and nothing else is to be done, and shrinks as fast otherwise: so a
        feed with less than half the pace is left behind, as a slow training is.

        Args:
            now: Monotonic time in seconds.
            waiting: Whether a training waits for what it was asked for.
            idle: Whether nothing else is to be prepared here.
        """
        passed = 0.0 if self._looked is None else max(0.0, now - self._looked)
        self._looked = now
        held_up = waiting and bool(self.asked)
        self._debt = self._debt + passed if held_up and idle else max(0.0, self._debt - passed)
        if not held_up:
            self._heard = None
        elif self._heard is None:
            self._heard = now
        silent = self._heard is not None and now - self._heard >= self._seconds
        return silent or self._debt >= self._seconds


@dataclass
class PeerPause:
    """When another feed is tried again.

    Attributes:
        try_at: Monotonic time in seconds.
    """

    try_at: float = 0.0
    _seconds: float = field(default=_FIRST_PAUSE_SECONDS)

    def lost(self, now: float, *, refused: bool = False) -> None:
        """It can't be used. The pauses grow.

        Args:
            now: Monotonic time in seconds.
            refused: Whether it has said so itself, such as one whose trainings are elsewhere: they may soon be near.
        """
        longest = _MAX_REFUSAL_SECONDS if refused else _MAX_PAUSE_SECONDS
        self.try_at = now + min(self._seconds, longest)
        self._seconds = min(2 * self._seconds, longest)

    def used(self) -> None:
        """It has sent a sample."""
        self._seconds = _FIRST_PAUSE_SECONDS
