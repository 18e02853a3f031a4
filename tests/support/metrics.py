"""Reads what Prometheus would read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from malletrain.runtime.metrics.service_metrics import ServiceMetrics

Values = Mapping[tuple[str, ...], float]
"""By name and the values of the labels, these in the order of the labels' names."""


def values_of(text: str) -> Values:
    """The samples of a page."""
    samples = [entry for family in text_string_to_metric_families(text) for entry in family.samples]
    return {(entry.name, *(value for _, value in sorted(entry.labels.items()))): entry.value for entry in samples}


def fetch(port: int) -> str:
    """The page at a port of loopback."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


async def read(metrics: ServiceMetrics) -> Values:
    """The samples of a service in this process."""
    page = await asyncio.to_thread(generate_latest, metrics.registry)
    return values_of(page.decode())


def needed(program: str) -> str:
    """Path of a program of Debian's package prometheus; the test is skipped without it."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}: apt-get install prometheus")
    return found
