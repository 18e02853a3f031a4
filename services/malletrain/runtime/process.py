"""A service process: start, serve, drain at SIGTERM."""

from __future__ import annotations

import asyncio
import signal

import structlog

from malletrain.runtime.server import ServiceHost
from malletrain.runtime.service import Service

GRACE_SECONDS = 2.0
"""What calls under way get to end by themselves when the process is asked to end."""


async def run_service(service: Service, address: str) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        UnavailableError: the address can't be bound.
        Exception: whatever ended the service's background loops.
    """
    log = structlog.get_logger(__name__)
    host = ServiceHost(address)
    service.register(host)
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    port = await host.start()
    log.info("serving", address=f"{address.rpartition(':')[0]}:{port}")
    background = asyncio.create_task(service.run(), name="background")
    waiting = asyncio.create_task(ending.wait(), name="signal")
    try:
        await asyncio.wait({background, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if background.done():
            background.result()
            raise RuntimeError("the background loops ended by themselves")
    finally:
        waiting.cancel()
        await host.drain()
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        await service.close()
        await host.stop(GRACE_SECONDS)
        log.info("drained")
