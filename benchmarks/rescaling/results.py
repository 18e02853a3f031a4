"""Figures of the samples, as JSON and as a table. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.rescaling.rounds import Sample

KINDS = ("growth", "shrink", "kill")
STOCK, OURS = "horovodrun", "horovod"
_MIN_GAIN = 8.0
_MAX_RECOVERY_SECONDS = 2.0


def latencies(samples: Sequence[Sample], launcher: str, kind: str) -> list[float]:
    """Latencies of a launcher's changes of a kind, in seconds, in order of size."""
    return sorted(sample.change.latency for sample in samples if (sample.launcher, sample.kind) == (launcher, kind))


def pauses(samples: Sequence[Sample], launcher: str, kind: str) -> list[float]:
    """The same for their pauses."""
    return sorted(sample.change.pause for sample in samples if (sample.launcher, sample.kind) == (launcher, kind))


def p90(ordered: Sequence[float]) -> float:
    """The smallest value that nine tenths of them do not exceed."""
    return ordered[math.ceil(0.9 * len(ordered)) - 1]


def result(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Medians by launcher, in seconds: the pauses of growths and shrinks, and kill to first batch."""
    names = list(dict.fromkeys(sample.launcher for sample in samples))
    return {
        key: {name: round(statistics.median(found), 4) for name in names if (found := of(samples, name, kind))}
        for key, of, kind in (
            ("growth_pause_s", pauses, "growth"),
            ("shrink_pause_s", pauses, "shrink"),
            ("kill_recovery_s", latencies, "kill"),
        )
    }


def table(samples: Sequence[Sample], launchers: Sequence[str]) -> str:
    """The table, in Markdown."""
    return "\n".join(
        [
            "| launcher | change | n | latency in s, median | p90 | pause in s, median | p90 |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
            *(_row(samples, name, kind) for kind in KINDS for name in launchers),
        ]
    )


def _row(samples: Sequence[Sample], launcher: str, kind: str) -> str:
    latency, pause = latencies(samples, launcher, kind), pauses(samples, launcher, kind)
    if not latency:
        return f"| {launcher} | {kind} | 0 | | | | |"
    figures = (statistics.median(latency), p90(latency), statistics.median(pause), p90(pause))
    return f"| {launcher} | {kind} | {len(latency)} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |"


def missing(samples: Sequence[Sample], launchers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Launcher and kind of what never happened."""
    for launcher in launchers:
        for kind in KINDS:
            if not latencies(samples, launcher, kind):
                yield launcher, kind


def missed(samples: Sequence[Sample]) -> list[str]:
    """Goals that were missed, in words."""
    found = result(samples)
    growth, recovery = found["growth_pause_s"], found["kill_recovery_s"]
    words = []
    if {STOCK, OURS} <= growth.keys() and growth[OURS] * _MIN_GAIN > growth[STOCK]:
        gain = growth[STOCK] / growth[OURS]
        words.append(f"goal missed: growth pause {OURS} is 1/{gain:.1f} of {STOCK}'s, expected 1/8 at most")
    if recovery.get(OURS, 0.0) > _MAX_RECOVERY_SECONDS:
        words.append(f"goal missed: kill recovery of {OURS} is {recovery[OURS]:.2f} s, expected 2 s at most")
    return words
