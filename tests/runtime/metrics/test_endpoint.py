"""The endpoint as a stranger and as Prometheus see it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from malletrain.runtime.errors import UnavailableError
from malletrain.runtime.metrics import service_metrics
from malletrain.runtime.metrics.service_metrics import MetricsEndpoint
from tests.support.metrics import fetch, values_of
from tests.support.ports import free_port
from tests.support.waiting import wait_until


class Broken(Collector):
    def collect(self) -> Iterator[Metric]:
        raise TimeoutError("the event loop is busy")


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("answer", "What is asked for.", registry=registry).set(42)
    return registry


@contextlib.contextmanager
def served(registry: CollectorRegistry, host: str = "127.0.0.1") -> Iterator[int]:
    port = free_port()
    serving = MetricsEndpoint(f"{host}:{port}", registry)
    try:
        yield port
    finally:
        serving.close()


def test_there_is_one_page(registry: CollectorRegistry) -> None:
    with served(registry) as port:
        assert values_of(fetch(port)) == {("answer",): 42}
        with pytest.raises(HTTPError, match="404") as caught, urlopen(f"http://127.0.0.1:{port}/", timeout=10):
            pass
        assert "Python" not in str(caught.value.headers)


def test_the_ipv6_loopback_address(registry: CollectorRegistry) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with served(registry, "[::1]") as port, urlopen(f"http://[::1]:{port}/metrics", timeout=10) as answer:
        assert b"answer 42" in answer.read()


def test_an_address_that_is_taken_is_said(registry: CollectorRegistry) -> None:
    with served(registry) as port, pytest.raises(UnavailableError, match=f"can't listen on 127.0.0.1:{port}"):
        MetricsEndpoint(f"127.0.0.1:{port}", registry)


def test_a_page_that_can_not_be_made_ends_its_connection_and_no_other(registry: CollectorRegistry) -> None:
    broken = Broken()
    with served(registry) as port:
        registry.register(broken)
        with pytest.raises(OSError):
            fetch(port)
        registry.unregister(broken)
        assert values_of(fetch(port)) == {("answer",): 42}


def test_connections_that_say_nothing_are_limited_and_end(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_metrics, "MAX_SECONDS", 0.2)
    with served(registry) as port, contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))

        def answered() -> bool:
            with contextlib.suppress(OSError):
                return values_of(fetch(port)) == {("answer",): 42}
            return False

        wait_until(answered, 10, "an answer once the silent ones are cut")
