"""A place for one worker. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Slot(NamedTuple):
    """A place for one worker: a host and the index on it."""

    host: str
    local_rank: int
