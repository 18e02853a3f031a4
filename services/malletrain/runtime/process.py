"""The process of a service: it starts, serves, and drains at SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Protocol

import structlog

from malletrain.common.tasks import lasting, start_task
from malletrain.runtime.limits import raise_file_limit
from malletrain.runtime.server import ServiceHost
from malletrain.runtime.watchdog import LoopWatchdog, NoWatchdog, keep_telling

GRACE_SECONDS = 2.0
"""How long calls may go on after the process was told to end."""

_SWITCH_SECONDS = 0.0005
"""How long the loop waits at most for the interpreter when a thread has it, as one that stores. Beside a thread that
makes JSON, the loop goes on 0.7 ms after what it has waited for, with Python's default 5 ms; a release waits often."""


class Service(Protocol):
    """A gRPC service with background tasks."""

    def register(self, host: ServiceHost) -> None:
        """Add the servicers to a server that has not started."""

    async def run(self) -> None:
        """Run the background tasks, until cancelled."""

    async def close(self) -> None:
        """End streams and close files, when the process ends in good order."""


async def run_service(service: Service, host: ServiceHost, watchdog: LoopWatchdog | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Args:
        service: What is served.
        host: Its server, which has not started.
        watchdog: Is told that the event loop goes on, from when the service serves; None: nobody is.

    Raises:
        UnavailableError: the address can't be bound.
        Exception: the error that ended the service's background tasks.
    """
    log = structlog.get_logger(__name__)
    raise_file_limit()
    service.register(host)
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    sys.setswitchinterval(_SWITCH_SECONDS)
    port = await host.start()
    host.metrics.open()
    log.info("serving", address=f"{host.address.rpartition(':')[0]}:{port}")
    background = asyncio.create_task(service.run(), name="background")
    waiting = asyncio.create_task(ending.wait(), name="signal")
    watchdog = watchdog or NoWatchdog()
    watchdog.serving()
    telling = start_task(lasting(keep_telling(watchdog), "watchdog"), "watchdog")
    try:
        await asyncio.wait({background, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if background.done():
            background.result()
            raise RuntimeError("the background tasks ended by themselves")
    finally:
        waiting.cancel()
        watchdog.stopping()
        host.metrics.close()
        await host.drain()
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        await service.close()
        await host.stop(GRACE_SECONDS)
        telling.cancel()
        host.tracer.close()
        log.info("calls drained")
