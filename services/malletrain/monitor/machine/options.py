"""What an operator chooses about measurements; see the settings of the same names in `monitor/settings.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MonitorOptions:
    """Limits and factors of what is measured of jobs."""

    stall_factor: float
    stall_floor_seconds: float
    stall_unknown_seconds: float
    warmup_steps: int
    warmup_seconds: float
    window_steps: int
    min_steps: int
    outlier_fence: float
    max_outlier_share: float
    cold_gap_seconds: float
    stall_median_count: int
    rest_seconds: float
