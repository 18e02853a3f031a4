"""Workloads and SWF text for the tests."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from malletrain.simulator.batch.workload import BatchJob, BatchWorkload


def workload(nodes: int, *rows: tuple[float, int, float, float]) -> BatchWorkload:
    """Jobs 1, 2, … from (submit, nodes, run, estimate)."""
    return BatchWorkload(tuple(BatchJob(number, *row) for number, row in enumerate(rows, 1)), nodes)


def lublin_like(jobs: int, nodes: int, load: float, seed: int, *, exact: bool = False) -> BatchWorkload:
    """A workload with the traits of Lublin and Feitelson's model (2003), though not with its numbers.

    A quarter of the jobs is serial, most others take powers of two; run times are drawn from two gamma distributions,
    the longer the likelier for large jobs; arrivals follow the hours of the day; estimates are round and too large.
    """
    rng = random.Random(seed)
    sizes = [_size(nodes, rng) for _ in range(jobs)]
    runs = [_run_s(size / nodes, rng) for size in sizes]
    mean_gap_s = sum(size * run for size, run in zip(sizes, runs, strict=True)) / (nodes * load * jobs)
    rows, now_s = [], 0.0
    for size, run_s in zip(sizes, runs, strict=True):
        rows.append((now_s, size, run_s, run_s if exact else _estimate_s(run_s, rng)))
        by_day = 1.0 - 0.8 * math.sin(2 * math.pi * (now_s % 86400) / 86400)
        now_s += float(round(rng.gammavariate(0.5, 2 * mean_gap_s * by_day)))
    return workload(nodes, *rows)


def _size(nodes: int, rng: random.Random) -> int:
    if rng.random() < 0.25:
        return 1
    exponent = rng.uniform(0.5, math.log2(nodes))
    return min(nodes, max(1, round(2 ** (round(exponent) if rng.random() < 0.75 else exponent))))


def _run_s(share: float, rng: random.Random) -> float:
    long = rng.random() < 0.3 + 0.4 * share
    return float(max(1, round(rng.gammavariate(2.0, 4000.0 if long else 150.0))))


def _estimate_s(run_s: float, rng: random.Random) -> float:
    """Round, mostly too large, now and then too small."""
    wished = run_s * (rng.uniform(1.0, 8.0) if rng.random() < 0.9 else rng.uniform(0.3, 1.0))
    return 300.0 * max(1, math.ceil(wished / 300.0))


@st.composite
def small_workloads(draw: st.DrawFn, *, exact: bool = False) -> BatchWorkload:
    """Few jobs on few nodes in whole seconds: ties of every kind."""
    nodes = draw(st.integers(1, 8))
    rows, now_s = [], 0
    for _ in range(draw(st.integers(1, 25))):
        now_s += draw(st.integers(0, 6))
        run_s = draw(st.integers(1, 20))
        estimate_s = run_s if exact else draw(st.integers(1, 30))
        rows.append((float(now_s), draw(st.integers(1, nodes)), float(run_s), float(estimate_s)))
    return workload(nodes, *rows)


def swf_line(
    number: int,
    submit: object = 0,
    run: object = 60,
    allocated: object = 1,
    requested: object = -1,
    requested_time: object = -1,
    status: object = 1,
) -> str:
    """One line of a log; what the simulator does not read is unknown."""
    values: Sequence[object] = (number, submit, -1, run, allocated, -1, -1, requested, requested_time, -1, status)
    return " ".join(str(value) for value in (*values, *[-1] * 7))


def swf_text(lines: Iterable[str], **header: object) -> str:
    """A log of header comments and lines."""
    return "\n".join((*(f"; {key}: {value}" for key, value in header.items()), *lines, ""))
