"""Where a job's rendezvous is served, and to whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from malletrain.common.connection_owner import Endpoint


@dataclass(frozen=True)
class RendezvousConfig:
    """Where a job's rendezvous is served, and to whom.

    Attributes:
        address: Address of this machine as the workers see it.
        interfaces: Network interfaces by which workers reach each other.
        admits: Whether a peer may connect, given its side and ours.
        accepts_open_store: Whether torch's store may be served where the kernel keeps no other account out.
    """

    address: str
    interfaces: tuple[str, ...]
    admits: Callable[[Endpoint, Endpoint], bool]
    accepts_open_store: bool = False
