"""What `deploy/monitoring` contains."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "deploy/monitoring"
DASHBOARD = FOLDER / "grafana/dashboards/malletrain.json"
_NAME = re.compile(r"\b(malletrain_[a-z_]+|process_[a-z_]+)")
_OF_HISTOGRAMS = re.compile(r"_(bucket|sum|count)$")


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    content: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return content


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Title of the panel and text of each query, as Grafana has it."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def metrics_in(text: str) -> set[str]:
    """Names of the metrics that a text names, without the endings of a histogram's series."""
    return {_OF_HISTOGRAMS.sub("", name) for name in _NAME.findall(text)}
