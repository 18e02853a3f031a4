"""Which feed of a fleet prepares a sample. Pure.

The feeds of a fleet's nodes divide the order of samples into blocks, and take these in turn. Each works that out from
the feeds that it reaches, so nobody has to decide it for all. Where two see different feeds, a sample is prepared
twice, and none is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

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


def team_of(own: str, others: Iterable[str], most: int = MAX_FEEDS) -> list[str]:
    """The feeds that one shares with, without itself: those of its team, in order. Nobody is in two teams.

    Args:
        own: Name of the feed.
        others: Names of all others that there are.
        most: Most feeds of a team, at least 1.
    """
    ordered = sorted({own, *others})
    first = ordered.index(own) // most * most
    return [name for name in ordered[first : first + most] if name != own]
