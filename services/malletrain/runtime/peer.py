"""A service as those who call it see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """Where a service is, and how it proves which one it is.

    Attributes:
        service: Its name: what a service shows to it is good for it alone.
        address: HOST:PORT.
        authority_file: Certificates of the CAs by which it is known.
        role: The role that its certificate must name; None: the host of the address.
    """

    service: str
    address: str
    authority_file: Path
    role: str | None
