"""The metrics that the services would serve, without a service that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client.core import Metric

from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.job_manager.machine.state import ManagerState
from malletrain.job_manager.telemetry.metrics import JobManagerMetrics
from malletrain.monitor.metrics import MonitorMetrics, MonitorSnapshot
from malletrain.profiler.metrics import ProfilerMetrics, ProfilerSnapshot
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import MetricsSettings, Settings
from malletrain.runtime.metrics.calls import CallInterceptor
from malletrain.runtime.metrics.process import metrics_of_process
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.scavenger.sources.base import SourceStatus
from malletrain.scavenger.telemetry.metrics import Gauges, ScavengerMetrics

_REGISTER: Mapping[str, Callable[[ServiceMetrics], None]] = {
    "scavenger": lambda service: ScavengerMetrics().register(
        service, lambda: Gauges(SourceStatus(), 0, 0, stale=False)
    ),
    "allocator": lambda service: AllocatorMetrics().register(service),
    "job_manager": lambda service: JobManagerMetrics(SystemClock()).register(service, ManagerState),
    "monitor": lambda service: MonitorMetrics().register(service, MonitorSnapshot),
    "profiler": lambda service: ProfilerMetrics().register(service, ProfilerSnapshot),
}


async def declared_metrics(state_dir: Path) -> dict[str, dict[str, Metric]]:
    """By service and name, as in the text format; what every service has is under the empty name."""
    found = {name: await _declared(name, state_dir) for name in _REGISTER}
    common = set.intersection(*(set(families) for families in found.values()))
    own = {
        service: {name: family for name, family in families.items() if name not in common}
        for service, families in found.items()
    }
    return {"": {name: family for name, family in found["monitor"].items() if name in common}, **own}


async def _declared(service: str, state_dir: Path) -> dict[str, Metric]:
    settings = Settings(state_dir=state_dir, metrics=MetricsSettings.model_validate({service: "127.0.0.1:1"}))
    metrics = metrics_of_process(service, settings)
    CallInterceptor(metrics.registry)
    _REGISTER[service](metrics)
    families = await asyncio.to_thread(lambda: list(metrics.registry.collect()))
    return {_served_name(family): family for family in families if family.name.startswith("malletrain")}


def _served_name(family: Metric) -> str:
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
