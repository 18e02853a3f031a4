"""What trainings tell of their gradients: from training metrics to scaling records, and through a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from malletrain.monitor.machine.noise import NOTHING_SEEN, NoiseSeen, noise_among
from malletrain.v1 import monitor_pb2, resources_pb2
from tests.monitor.running import RunningMonitor, request_of, running_monitor
from tests.monitor.trainer import FakeTrainer


def test_newer_figures_replace_earlier_ones_and_both_are_needed() -> None:
    first = NoiseSeen(batch_per_node=32.0).after(NOTHING_SEEN)
    assert first.noise is None
    both = NoiseSeen(noise_scale=500.0).after(first)
    assert both.noise is not None
    assert (both.noise.noise_scale, both.noise.batch_per_node) == (500.0, 32.0)
    assert NoiseSeen(700.0).after(both) == NoiseSeen(700.0, 32.0)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e16])
def test_a_metric_of_this_name_that_is_no_noise_scale_is_left_out(value: float) -> None:
    assert noise_among({"gradient_noise_scale": value, "loss": 3.0}) is None
    assert noise_among({"gradient_noise_scale": value, "batch_per_node": 8.0}) == NoiseSeen(None, 8.0)


def metrics(first: int, **values: float) -> list[monitor_pb2.MetricValue]:
    return [
        monitor_pb2.MetricValue(name=name, number=number, unix_seconds=1000.0, value=value)
        for number, (name, value) in enumerate(values.items(), first)
    ]


async def told(monitor: RunningMonitor) -> resources_pb2.GradientNoise | None:
    (record,) = (
        await monitor.stub.ListScalingRecords(monitor_pb2.ListScalingRecordsRequest(job_ids=["j1"]), timeout=20)
    ).records
    return record.noise if record.HasField("noise") else None


def test_a_scaling_record_has_the_newest_also_after_a_restart(tmp_path: Path) -> None:
    trainer = FakeTrainer()

    def message(some: list[monitor_pb2.MetricValue]) -> monitor_pb2.ReportRequest:
        trainer.steps(20, 0.1)
        request = request_of(trainer.take("j1"))
        request.metric_values.extend(some)
        return request

    async def send(monitor: RunningMonitor, some: list[monitor_pb2.MetricValue]) -> None:
        async for _ in monitor.stub.Report(iter([message(some)]), timeout=20):
            pass

    async def scenario() -> None:
        async with running_monitor(tmp_path) as monitor:
            await send(monitor, metrics(1, loss=3.0))
            assert await told(monitor) is None
            await send(monitor, metrics(2, batch_per_node=32.0, gradient_noise_scale=800.0))
            await send(monitor, metrics(4, gradient_noise_scale=900.0))
            assert await told(monitor) == resources_pb2.GradientNoise(noise_scale=900.0, batch_per_node=32.0)
        async with running_monitor(tmp_path) as monitor:
            assert await told(monitor) == resources_pb2.GradientNoise(noise_scale=900.0, batch_per_node=32.0)

    asyncio.run(scenario())
