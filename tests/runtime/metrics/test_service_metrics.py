from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from tests.support.metrics import fetch, read, values_of
from tests.support.ports import free_port


def rendered(value: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("value", "A value.", value)


async def test_present_values_are_taken_in_the_event_loop() -> None:
    metrics, loop = ServiceMetrics(), asyncio.get_running_loop()

    def take() -> int:
        assert asyncio.get_running_loop() is loop
        return 7

    metrics.watch(take, rendered, 0)
    assert await read(metrics) == {("value",): 7}


async def test_two_metrics_of_one_name_are_refused() -> None:
    metrics = ServiceMetrics()
    metrics.watch(lambda: 1, rendered, 0)
    with pytest.raises(ValueError, match="value"):
        metrics.watch(lambda: 2, rendered, 0)


async def test_they_are_served_while_they_are_open() -> None:
    port = free_port()
    metrics, others = ServiceMetrics(f"127.0.0.1:{port}"), ServiceMetrics(f"127.0.0.1:{port}")
    metrics.watch(lambda: 7, rendered, 0)
    metrics.open()
    others.open()  # the address is taken: noted, no more
    others.close()
    assert values_of(await asyncio.to_thread(fetch, port)) == {("value",): 7}
    metrics.close()
    with pytest.raises(OSError):
        await asyncio.to_thread(fetch, port)
