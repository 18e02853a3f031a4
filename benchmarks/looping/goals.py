"""What the control loop has to reach at the sizes for which goals are set. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]
"""What `benchmarks/control_loop.py` prints."""

_SERVICES = ("job_manager", "profiler", "monitor")


@dataclass(frozen=True)
class Goal:
    """An upper limit of a figure.

    Attributes:
        name: What is limited, with its unit.
        most: The limit.
        value: The figure; None if the run has none.
    """

    name: str
    most: float
    value: Callable[[Figures], float | None]

    def missed_by(self, figures: Figures) -> str:
        """A line that says how a run misses the goal; empty if it does not. A run without the figure misses it."""
        value = self.value(figures)
        if value is not None and value <= self.most:
            return ""
        found = "nothing was measured" if value is None else f"it is {value:g}"
        return f"{self.name}: expected at most {self.most:g}, {found}"


def _percentile(name: str) -> Callable[[Figures], float | None]:
    return lambda figures: figures[name].get("p99_ms")


def _refused_percent(figures: Figures) -> float | None:
    plans = figures["plans"]
    count = plans["applied"] + plans["refused"]
    return 100.0 * plans["refused"] / count if count else None


def _cores(figures: Figures) -> float | None:
    cores = figures["cores"]
    return round(sum(cores[name] for name in _SERVICES), 3) if all(name in cores for name in _SERVICES) else None


_RELEASE, _JOIN = _percentile("leave_to_release"), _percentile("join_to_command")
_GOALS = {
    (100, 1000): (
        Goal("leave to release, 99th percentile in ms", 25.0, _RELEASE),
        Goal("join to command, 99th percentile in ms", 100.0, _JOIN),
        Goal("refused plans in percent", 2.0, _refused_percent),
        Goal("JobManager, Profiler and Monitor together in cores", 0.3, _cores),
    ),
    (1000, 10_000): (Goal("leave to release, 99th percentile in ms", 100.0, _RELEASE),),
}


def missed_goals(figures: Figures) -> list[str]:
    """A line for each goal that a run misses; goals are set for some sizes, with one event a second."""
    if figures["events_per_second"] != 1.0 or figures["kills"]:
        return []
    goals = _GOALS.get((figures["jobs"], figures["nodes"]), ())
    return [line for goal in goals if (line := goal.missed_by(figures))]
