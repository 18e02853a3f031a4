"""A what-if: with which settings the past is replayed, and figures of what that gave. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from malletrain.model.what_if import WhatIfComparison

DAYS = {"1 day": 1.0, "2 days": 2.0, "7 days": 7.0, "30 days": 30.0}
"""Lengths of the past that can be replayed, in days."""
FORWARD_POLICIES = {
    "fixed": "constant",
    "from how long nodes stay": "survival",
    "from how often jobs change": "expected",
}
"""What T_fwd may be, by the names of `allocator.forward_policy`."""
POLICIES = {"the Allocator's": "milp", "the same number for each job": "equal", "all that a job can use": "fixed"}
"""Who decides, by the names of `malletrain replay --policy`."""
MIN_FORWARD_S, MAX_FORWARD_S = 1.0, 86_400.0
MAX_PLACES = 10_000


@dataclass(frozen=True)
class WhatIf:
    """A part of the past, and the settings that it is replayed with.

    Attributes:
        past: End of the past in seconds since the epoch, a whole number; 0: not chosen.
        days: Length of the part in days.
        forward_s: T_fwd in seconds.
        forward_policy: Where T_fwd comes from.
        max_parallel: Jobs that train at once.
        policy: Who decides.
    """

    past: int = 0
    days: float = 7.0
    forward_s: float = 120.0
    forward_policy: str = "constant"
    max_parallel: int = 10
    policy: str = "milp"

    @classmethod
    def of(cls, text: Mapping[str, str]) -> WhatIf | None:
        """From the arguments of an address, or of the form. What is not valid counts as absent; None: all of it."""
        parsed: dict[str, Any] = {
            "past": _whole(text.get("past", ""), 1, 10**11),
            "days": _one_of(_number(text.get("days", "")), DAYS.values()),
            "forward_s": _within(_number(text.get("forward", "")), MIN_FORWARD_S, MAX_FORWARD_S),
            "forward_policy": _one_of(text.get("horizon"), FORWARD_POLICIES.values()),
            "max_parallel": _whole(text.get("places", ""), 1, MAX_PLACES),
            "policy": _one_of(text.get("policy"), POLICIES.values()),
        }
        known = {name: value for name, value in parsed.items() if value is not None}
        return cls(**known) if known else None

    def arguments(self) -> dict[str, str]:
        """The arguments of an address that chooses it."""
        return {
            "past": str(self.past) if self.past else "",
            "days": f"{self.days:g}",
            "forward": f"{self.forward_s:g}",
            "horizon": self.forward_policy,
            "places": str(self.max_parallel),
            "policy": self.policy,
        }

    def in_words(self) -> str:
        """Its settings for people."""
        forward = f"T_fwd {self.forward_s:g} s" if self.forward_policy == "constant" else f"T_fwd {self.forward_policy}"
        parts = [forward, f"{self.max_parallel} jobs at once"]
        return ", ".join(parts if self.policy == "milp" else [*parts, f"policy {self.policy}"])


def course_columns(comparison: WhatIfComparison) -> dict[str, list[float]]:
    """The courses, at milliseconds since the epoch."""
    return {
        "time": [1000.0 * time for time in comparison.times_unix],
        "really": list(comparison.really.course),
        "replay": list(comparison.replay.course),
        "free": list(comparison.free.course),
    }


NO_COLUMNS: dict[str, list[float]] = {"time": [], "really": [], "replay": [], "free": []}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole(text: str, minimum: int, maximum: int) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        return None
    return int(text) if minimum <= int(text) <= maximum else None


def _within(value: float | None, minimum: float, maximum: float) -> float | None:
    return value if value is not None and minimum <= value <= maximum else None


def _one_of(value: Any, known: Any) -> Any:
    return value if value in known else None
