"""How long a collective of the default process group may take. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from malletrain.common.job_limits import PHASE_SECONDS


class CollectiveLimit:
    """The time limit of the collectives of a group that `init` has made; a script's own group keeps its own."""

    def __init__(self) -> None:
        """There is no such group."""
        self._seconds: float | None = None

    def begin(self, seconds: float) -> timedelta:
        """The group is about to be made."""
        self._seconds = seconds
        return timedelta(seconds=seconds)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """While workers wait for one that reads or writes a checkpoint, which may take as long as any phase may."""
        if self._seconds is None or self._seconds >= PHASE_SECONDS or not dist.is_initialized():
            yield
            return
        _set_limit(PHASE_SECONDS)
        try:
            yield
        finally:
            _set_limit(self._seconds)


def _set_limit(seconds: float) -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


collective_limit = CollectiveLimit()
"""Of this process, which has one default process group."""
