"""torch's store behind a supervisor's guard, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from malletrain.supervisor.rendezvous.connection_filters import PeerFilter
from malletrain.supervisor.rendezvous.guarded_store import GuardedStore


@contextmanager
def store(**options: bool) -> Iterator[GuardedStore]:
    """A store to which nobody but this account comes; with options of `GuardedStore`."""
    torch = pytest.importorskip("torch.distributed")
    guarded = GuardedStore(torch.TCPStore, "127.0.0.1", PeerFilter(frozenset).admits, **options)
    try:
        yield guarded
    finally:
        guarded.close()


def client(port: int) -> Any:
    """torch's own client."""
    import torch.distributed

    return torch.distributed.TCPStore("127.0.0.1", port, is_master=False)


def listening_ports() -> set[int]:
    """Ports on which this process listens."""
    files = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    inodes = {name.removeprefix("socket:[").removesuffix("]") for name in files}
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}
