"""Metrics of a service's process and of the folder that it keeps its state in."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import structlog
from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from malletrain.common.version import VERSION
from malletrain.runtime.access.certificates import CertificateDescription, certificates_of
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.metrics.service_metrics import ServiceMetrics


def metrics_of_process(service: str, settings: Settings) -> ServiceMetrics:
    """The metrics of a service's process; the service adds its own.

    Args:
        service: Name of the service.
        settings: Where its metrics are served, and where its state is.
    """
    metrics = ServiceMetrics(settings.metrics.of(service), settings.metrics.max_jobs)
    if metrics.served:
        ProcessCollector(registry=metrics.registry)
        metrics.add(_Installed(settings))
    return metrics


class _Installed(Collector):
    def __init__(self, settings: Settings) -> None:
        self._build = {"version": VERSION, "python": platform.python_version()}
        self._settings = settings
        self._fault = ""
        self._log = structlog.get_logger(__name__)

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("malletrain_build", "Versions of MalleTrain and Python, in the labels.", self._build)
        disk = os.statvfs(self._settings.state_dir)
        size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        yield GaugeMetricFamily("malletrain_state_disk_size_bytes", "Size of the file system of state_dir.", size)
        yield GaugeMetricFamily("malletrain_state_disk_free_bytes", "What this account may still write there.", free)
        begin = GaugeMetricFamily(
            "malletrain_certificate_not_before_timestamp_seconds", "When certificates become valid.", labels=["role"]
        )
        end = GaugeMetricFamily(
            "malletrain_certificate_not_after_timestamp_seconds", "When certificates expire.", labels=["role"]
        )
        for certificate in self._certificates():
            begin.add_metric([certificate.role], certificate.not_before)
            end.add_metric([certificate.role], certificate.not_after)
        yield from (begin, end)

    def _certificates(self) -> list[CertificateDescription]:
        try:
            certificates = list(certificates_of(self._settings.state_dir, self._settings.tls.certificate_file))
        except InvalidInputError as error:
            # The other metrics are as good as before. Once is enough: there is a scrape every few seconds.
            if str(error) != self._fault:
                self._log.warning("certificates can't be read for metrics", error=str(error))
            self._fault = str(error)
            return []
        self._fault = ""
        return certificates
