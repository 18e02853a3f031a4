"""What a service is to the process that runs it."""

from __future__ import annotations

from typing import Protocol

from malletrain.runtime.server import ServiceHost


class Service(Protocol):
    """A gRPC service with its background loops."""

    def register(self, host: ServiceHost) -> None:
        """Add the servicers to a server that has not started."""

    async def run(self) -> None:
        """Background loops, until cancelled."""

    async def close(self) -> None:
        """End streams and let go of files, at a graceful end."""
