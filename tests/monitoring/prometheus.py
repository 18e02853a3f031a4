"""A running Prometheus that is asked what the dashboard would ask."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.monitoring.files import dashboard_queries


@dataclass(frozen=True)
class Prometheus:
    """Prometheus on this machine.

    Attributes:
        port: Where it listens on loopback.
    """

    port: int

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return True
        except (URLError, OSError):
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """The data that it answers."""
        with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        return content["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        """The present vector of a query."""
        found = self.ask("query", query=text)
        return [{"metric": {}, "value": found["result"]}] if found["resultType"] == "scalar" else found["result"]

    def value(self, text: str) -> float:
        """The one value of a query; NaN where there is none yet."""
        found = self.query(text)
        return float(found[0]["value"][1]) if len(found) == 1 else math.nan


def dashboard_problems(
    prometheus: Prometheus, without_data: Collection[str], may_be_nan: Collection[str], interval: str
) -> list[tuple[str, str, object]]:
    """Panel, query and what is missing, of each query of the dashboard that returns no figure, or one that is none.

    Args:
        prometheus: It is asked.
        without_data: Metrics of which nothing is measured: queries of them need not return a figure.
        may_be_nan: Metrics, and values of labels, of results that may be NaN, a quantile of nothing.
        interval: What stands for the variables of Grafana, as Prometheus writes it.
    """
    problems: list[tuple[str, str, object]] = []
    for title, query in dashboard_queries():
        found = prometheus.query(query.replace("$__rate_interval", interval).replace("$__range", interval))
        if any(name in query for name in without_data):
            continue
        nan = [entry["metric"] for entry in found if entry["value"][1] == "NaN"]
        problems += [(title, query, of) for of in nan if not any(w in query or w in of.values() for w in may_be_nan)]
        if len(nan) == len(found):
            problems.append((title, query, "nothing"))
    return problems
