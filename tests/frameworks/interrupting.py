"""Trainings in the test's own process, which are interrupted and whose reports are recorded."""

from __future__ import annotations

import pytest


class InterruptedTrainingError(Exception):
    """Stands for whatever ends a training without notice."""


def record_metrics(monkeypatch: pytest.MonkeyPatch, framework: str) -> list[tuple[dict[str, float], int | None]]:
    """What an adapter logs, and at which step of its own, from now on."""
    found: list[tuple[dict[str, float], int | None]] = []
    monkeypatch.setattr(
        f"malletrain.client.{framework}.log_metrics",
        lambda metrics, step=None: found.append(({name: float(value) for name, value in metrics.items()}, step)),
    )
    return found


def record_reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Samples and position of each reported batch, from now on."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "malletrain.client.training.report", lambda samples, position: found.append((samples, position))
    )
    return found
