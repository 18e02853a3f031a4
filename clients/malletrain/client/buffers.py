"""Memory of earlier snapshots, used again: fresh memory makes a snapshot three times as slow. Needs torch."""

from __future__ import annotations

from collections import deque

import torch

_Key = tuple[tuple[int, ...], torch.dtype, bool]


class Buffers:
    """Keeps the memory of one snapshot for the next."""

    def __init__(self) -> None:
        # Its operations are atomic: memory comes back from another thread, and a lock could be held at a fork.
        self._spare: deque[dict[_Key, list[torch.Tensor]]] = deque(maxlen=1)

    def lend(self) -> Loan:
        """Memory for a snapshot."""
        return Loan(self._spare.pop() if self._spare else {}, self._spare)


class Loan:
    """The memory of one snapshot."""

    def __init__(
        self, spare: dict[_Key, list[torch.Tensor]], pool: deque[dict[_Key, list[torch.Tensor]]] | None = None
    ) -> None:
        self._spare = spare
        self._pool = pool
        self._used: dict[_Key, list[torch.Tensor]] = {}
        self._pending = False

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a dense tensor on the CPU, whole only after `finish`."""
        # Page-locked: a GPU copies into such memory several times as fast.
        key = (tuple(tensor.shape), tensor.dtype, tensor.is_cuda)
        spare = self._spare.get(key)
        target = spare.pop() if spare else torch.empty(key[0], dtype=key[1], pin_memory=key[2])
        self._used.setdefault(key, []).append(target)
        target.copy_(tensor, non_blocking=key[2])
        self._pending = self._pending or key[2]
        return target

    def finish(self) -> None:
        """Wait for the copies from a GPU."""
        if self._pending:
            torch.cuda.synchronize()
            self._pending = False

    def give_back(self) -> None:
        """The snapshot is not needed any more."""
        used, self._used, self._spare = self._used, {}, {}
        if used and self._pool is not None:
            self._pool.append(used)
