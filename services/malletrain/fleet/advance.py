"""Members that train at the same time, from one end to the next."""

from __future__ import annotations

from collections.abc import Mapping

_NOTHING_LEFT = 1e-9
"""Share of an epoch that is rounding error, not work."""


def train_to_next_end(
    left: dict[int, float], speeds: Mapping[int, float], samples_per_epoch: float, max_s: float = float("inf")
) -> tuple[float, list[int]]:
    """Train until the first member is done.

    Args:
        left: Samples that each member still needs; those of members in `speeds` are reduced.
        speeds: Samples/s of the members that train; at least one above 0 unless `max_s` is finite.
        samples_per_epoch: Samples of an epoch.
        max_s: Stop after so many seconds at the latest.

    Returns:
        Seconds until then, and the members that are done, in the order of `speeds`.
    """
    seconds = min((left[member] / speed for member, speed in speeds.items() if speed > 0), default=max_s)
    seconds = min(seconds, max_s)
    for member, speed in speeds.items():
        left[member] -= speed * seconds
    return seconds, [member for member in speeds if left[member] <= _NOTHING_LEFT * samples_per_epoch]
