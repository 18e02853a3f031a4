from __future__ import annotations

import asyncio
import time

from structlog.testing import capture_logs

from malletrain.runtime.stalls import stalls_logged


def _busy(seconds: float) -> None:
    """Take so much time of the CPU, however busy the machine is."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def _work() -> None:
    await asyncio.sleep(0)
    _busy(0.05)
    await asyncio.sleep(0)


def test_a_long_step_is_logged_with_its_task() -> None:
    async def run() -> None:
        await asyncio.create_task(_work(), name="works")

    with stalls_logged(0.04), capture_logs() as logs:
        asyncio.run(run())
    (entry,) = [entry for entry in logs if "_work" in entry["step"]]
    assert entry["step"] == "works: _work"
    assert entry["cpu_ms"] >= 50.0
    assert entry["ms"] >= 49.0


def test_without_a_limit_nothing_is_logged_and_nothing_changed() -> None:
    before = asyncio.Handle._run  # type: ignore[attr-defined]
    with stalls_logged(0.0), capture_logs() as logs:
        assert asyncio.Handle._run is before  # type: ignore[attr-defined]
        asyncio.run(_work())
    assert not logs


def test_afterwards_nothing_is_changed() -> None:
    before = asyncio.Handle._run  # type: ignore[attr-defined]
    with stalls_logged(0.01):
        asyncio.run(_work())
    assert asyncio.Handle._run is before  # type: ignore[attr-defined]
