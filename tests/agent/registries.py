"""Registries of agents beside a test that has no event loop, and as processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from malletrain.scavenger.acquisition.agent_registry import AgentRegistry
from malletrain.scavenger.acquisition.node_certificates import NodeCertificates
from tests.support.certificates import certificate

_PROGRAM = """
import asyncio, sys
from pathlib import Path
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry

async def main():
    registry = AgentRegistry(Path(sys.argv[1]), lambda: print(sorted(registry.present), flush=True))
    print(await registry.open("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def registry_in_thread(
    folder: Path, certificates: NodeCertificates | None = None, expects: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[AgentRegistry, str]]:
    """A registry, and its address. Only look at it from the test's thread. Given certificates, it keeps them."""
    shown, loop = certificate(folder, "scavenger"), asyncio.new_event_loop()
    registry = AgentRegistry(shown, lambda: None, certificates=certificates, expects=expects)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    port = asyncio.run_coroutine_threadsafe(registry.open("127.0.0.1", 0), loop).result(30)
    keeping = asyncio.run_coroutine_threadsafe(registry.keep_certificates(), loop)
    try:
        yield registry, f"127.0.0.1:{port}"
    finally:
        keeping.cancel()
        asyncio.run_coroutine_threadsafe(registry.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@contextmanager
def registry_process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A registry as a process, which writes a line with its agents at every change; and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(certificate(folder, "scavenger"))], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        # The library for logs writes to the standard output, too.
        port = next(line for line in process.stdout if line.strip().isdigit())
        yield process, f"127.0.0.1:{port.strip()}"
    finally:
        process.kill()
        process.wait()
